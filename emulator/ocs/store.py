"""The crosspoint store: the one state of an optical switch, which all its front-ends show and change.

It belongs to one thread, and knows nothing of connections, sessions or protocols. A command is accepted or refused at once
(`RefusedError`, and nothing has changed); its light follows after the settle time, and `when_settled` tells whoever waits for it.
Everything that happens is an `Event`, told to all that subscribed.
"""

import itertools
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from emulator.light import Crossbar
from emulator.loop import Timers
from emulator.ocs.build import Build, Outside
from emulator.ocs.events import Kind
from emulator.ocs.faults import Fault, Ill
from emulator.ocs.flaps import Flaps
from emulator.ocs.lit import Lit
from emulator.ocs.matching import Busy, CrossConnects, Pair, Refusal, RefusedError
from emulator.ocs.physics import conflicting
from moefabric.errors import FabricError


class Store(Lit):
    """An optical switch's state and all that can be commanded. The mirrors follow at once."""

    def __init__(
        self,
        crossbar: Crossbar,
        timers: Timers,
        build: Build | None = None,
        outside: Outside | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Take the mirrors over: what is lit stays lit, if the start-up mode is to preserve it.

        `wall_s` is the time of day. FabricError if the mirrors can't be moved.
        """
        super().__init__(crossbar, timers, build or Build(), outside or Outside(), wall_s)
        self.flaps = Flaps(self)
        self._serial = itertools.count()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._at_once = False
        """Whether what is commanded now is to count from one instant."""
        self._begun_ns: int | None = None
        """That instant, once there is one."""
        self._recall()

    def add(self, pairs: Collection[Pair]) -> None:
        """Join these pairs as well. The profile says what becomes of other cross-connects of their ports."""
        self._command(lambda now: now.add(pairs, Busy(self.profile.busy)))

    def only(self, pairs: Collection[Pair]) -> None:
        """Join these pairs and no others."""
        self._command(lambda now: now.only(pairs))

    def sub(self, pairs: Collection[Pair]) -> None:
        """Part these pairs. The profile says whether each has to be joined."""
        self._command(lambda now: now.sub(self._there(now, pairs)))

    def sub_ports(self, ports: Collection[int]) -> None:
        """Part whatever these inputs or outputs are joined to."""
        for port in ports:
            self._must_be(port)
        found = {port: self.pair_of(port) for port in ports}
        absent = sorted(port for port, pair in found.items() if pair is None)
        if absent and self.profile.absent == "refuse":
            said = f"not joined: {', '.join(map(str, absent))}"
            raise self._refused(RefusedError(Refusal.NOT_CONNECTED, said))
        self._command(lambda now: now.sub({pair for pair in found.values() if pair is not None}))

    def clear(self) -> None:
        """Part everything."""
        self._command(lambda now: now.only([]))

    def change(self, target: Callable[[CrossConnects], CrossConnects]) -> None:
        """Join what `target` makes of what is joined now. RefusedError, and nothing changed, where that can't be."""
        self._command(target)

    def call(self, pair: Pair, name: str) -> None:
        """Name a cross-connect that is joined; it loses the name when it is parted."""
        if self.connects.joined.get(pair[0]) != pair[1]:
            raise self._refused(RefusedError(Refusal.NOT_CONNECTED, f"{pair[0]} is not joined to {pair[1]}"))
        self._names[pair] = name
        self._write_down()

    def enable(self, ports: Collection[int]) -> None:
        """Let light through these ports again, after the settle time. RefusedError if one is out of order."""
        self._switch(ports, Kind.ENABLED)

    def disable(self, ports: Collection[int]) -> None:
        """Let no light through these ports; what they are joined to stays so."""
        self._switch(ports, Kind.DISABLED)

    def configure(self, port: int, **changes: Any) -> None:
        """Write settings beside a port (fields of PortSettings)."""
        self._settings[port] = replace(self.settings(port), **changes)
        self._tell(Kind.SETTINGS, ports=(port,))
        self._write_down()

    def configure_system(self, **changes: Any) -> None:
        """Write settings of the switch (fields of SystemSettings)."""
        self.system = replace(self.system, **changes)
        self._tell(Kind.SETTINGS)
        self._write_down()

    def when_settled(self, do: Callable[[], None]) -> None:
        """Call `do` once all that was commanded before has light: now, if it has; never, if it is a fault's will."""
        key = next(self._serial)
        self._waiting[key] = do
        if self.faults.strike(Ill.NEVER):
            self._shown(Ill.NEVER)
            return
        late = self.faults.strike(Ill.DELAY)
        if late:
            self._shown(Ill.DELAY)
        at_ns = max(self.settled_at_ns, self.now_ns()) + round(late.value * 1e9 if late else 0)
        if at_ns <= self.now_ns():
            self._complete(key)
        else:
            self.timers.at(at_ns, lambda: self._complete(key))

    def inject(self, fault: Fault) -> Fault:
        """Suffer a fault from now on; it with its number. RefusedError for ports that aren't there."""
        for port in fault.ports:
            self._must_be(port)
        known = self.faults.add(fault)
        self._tell(Kind.FAULT, ports=known.ports, words=f"{known.number}: {known}")
        if known.ill is Ill.PORT:
            self._tell(Kind.PORT_FAILED, ports=known.ports)
        self._relight(force=True)
        self._write_down()
        return known

    def heal(self, number: int | None = None) -> list[Fault]:
        """Suffer a fault no more, or none at all. Light comes back after the settle time. FabricError for a number that none has."""
        gone = self.faults.clear(number)
        for fault in gone:
            self._tell(Kind.FAULT_CLEARED, ports=fault.ports, words=f"{fault.number}: {fault}")
            if fault.ill is Ill.PORT:
                self._tell(Kind.PORT_RECOVERED, ports=fault.ports)
        self._settle_anew(port for fault in gone for port in fault.ports)
        self._relight(force=True)
        self._write_down()
        if any(fault.ill is Ill.NEVER for fault in gone):
            self._release()
        return gone

    def strike(self, ill: Ill) -> Fault | None:
        """For a front-end's door: whether a fault of this kind (RESET) shows itself now."""
        if self.faults.having(ill) is None:
            return None
        fault = self.faults.strike(ill)
        self._shown(ill)
        return fault

    def reboot(self) -> None:
        """Forget what a reboot forgets: waiting clients, and all that is joined if the start-up mode is volatile."""
        self._waiting.clear()
        self.flaps.forget()
        self._tell(Kind.REBOOT)
        if self.system.startup == "volatile":
            self._forget()

    def started(self) -> None:
        """Say that the switch is there."""
        self._tell(Kind.STARTED, words=f"{len(self.connects)} cross-connects")

    def _there(self, now: CrossConnects, pairs: Collection[Pair]) -> Collection[Pair]:
        if self.profile.absent == "refuse":
            return pairs
        return [pair for pair in pairs if now.joined.get(pair[0]) == pair[1]]

    def _refused(self, refused: RefusedError) -> RefusedError:
        self._tell(Kind.REFUSED, words=str(refused))
        return refused

    def _command(self, target: Callable[[CrossConnects], CrossConnects]) -> None:
        """Make a change of cross-connects, or refuse it."""
        before = self.connects
        try:
            self._deny()
            wanted = target(self.connects)
            self._must_work(wanted)
            after = self._partial(wanted)
            self._move(after)
        except RefusedError as refused:
            raise self._refused(refused) from refused
        if after is not wanted:
            made, parted = len(set(after) - set(before)), len(set(before) - set(after))
            missed = len(set(wanted) - set(after))
            said = f"{parted} parted, {made} of {made + missed} joined, then the mirrors failed"
            raise self._refused(RefusedError(Refusal.HARDWARE, said))

    def _deny(self) -> None:
        if self.faults.strike(Ill.DENY):
            self._shown(Ill.DENY)
            raise RefusedError(Refusal.DENIED, "the device is not ready for this")

    def _must_work(self, wanted: CrossConnects) -> None:
        """RefusedError if a new cross-connect has a port that is out of order, or shut where that counts."""
        failed = self.faults.ports(Ill.PORT)
        shut = self._shut if self.profile.shut == "refuse" else set()
        if not failed and not shut:
            return
        touched = {port for pair in set(wanted) - set(self.connects) for port in pair}
        if broken := sorted(touched & failed):
            raise RefusedError(Refusal.FAILED, f"out of order: port {', '.join(map(str, broken))}")
        if closed := sorted(touched & shut):
            raise RefusedError(Refusal.FAILED, f"disabled: port {', '.join(map(str, closed))}")

    def _must_be_whole(self, ports: Collection[int]) -> None:
        for port in ports:
            self._must_be(port)
        if failed := sorted(set(ports) & self.faults.ports(Ill.PORT)):
            raise RefusedError(Refusal.FAILED, f"out of order: port {', '.join(map(str, failed))}")

    def _partial(self, wanted: CrossConnects) -> CrossConnects:
        """What a fault leaves of a change for several cross-connects."""
        if (fault := self.faults.having(Ill.PARTIAL)) is None:
            return wanted
        old = set(self.connects)
        new = [pair for pair in wanted if pair not in old]
        if len(new) <= fault.value:
            return wanted
        self.strike(Ill.PARTIAL)
        undone = set(new[int(fault.value) :])
        return CrossConnects(self.ports, dict(set(wanted) - undone))

    def at_once(self, *, begins: bool) -> None:
        """What is commanded until this ends is done as at one instant, that of its first move.

        Between two commands of a line a device takes no time that one could see, and this program does.
        """
        self._at_once, self._begun_ns = begins, None

    def _move(self, after: CrossConnects) -> None:
        """Move the mirrors. RefusedError, and nothing changed, if they don't."""
        old, new = set(self.connects), set(after)
        if old == new:
            return
        made, parted = sorted(new - old), sorted(old - new)
        times = self._settling.times_ns(made, conflicts=conflicting(old, new)) if made else []
        dark = 0 if self.build.link_down else self.build.link_up_ns
        lit_at = {pair: at for pair, at in self._lit_at.items() if pair in new}
        kept = self.connects, self._lit_at
        now = self.now_ns()  # as late as can be: the mirrors move within microseconds of it
        begun = now if self._begun_ns is None else self._begun_ns
        lit_at.update(zip(made, (begun + time_ns + dark for time_ns in times), strict=True))
        self.connects, self._lit_at = after, lit_at
        try:
            self._relight()
            self._make_good(made, now)
            if self._at_once and self._begun_ns is None:
                self._begun_ns = self._moved_ns
        except (FabricError, OSError) as failed:
            self.connects, self._lit_at = kept
            raise RefusedError(Refusal.HARDWARE, str(failed)) from failed
        for pair in parted:
            self._names.pop(pair, None)
        self.version += 1
        self.changed_s = self.wall_s()
        self._tell(Kind.CHANGED, made=tuple(made), parted=tuple(parted))
        if made:
            self._tell_settled(tuple(made), max(lit_at[pair] for pair in made))
        self._write_down()

    def _switch(self, ports: Collection[int], to: Kind) -> None:
        """Enable or disable ports."""
        try:
            self._deny()
            self._must_be_whole(ports)
        except RefusedError as refused:
            raise self._refused(refused) from refused
        changed = set(ports) & self._shut if to is Kind.ENABLED else set(ports) - self._shut
        if not changed:
            return
        self._shut ^= changed
        if to is Kind.ENABLED:
            self._settle_anew(changed)
        self._relight(force=True)
        self._tell(to, ports=tuple(sorted(changed)))
        self._write_down()

    def _complete(self, key: int) -> None:
        if do := self._waiting.pop(key, None):
            do()

    def _release(self) -> None:
        """Tell those who would never have heard."""
        for key in list(self._waiting):
            at_ns = max(self.settled_at_ns, self.now_ns())
            self.timers.at(at_ns, lambda key=key: self._complete(key))  # type: ignore[misc]

    def _shown(self, ill: Ill) -> None:
        self._tell(Kind.FAULT_SHOWN, words=ill.value)
