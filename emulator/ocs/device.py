"""State of an optical switch, shared by all its front ends.

The state belongs to one thread and is independent of connections, sessions and protocols. A command
is accepted or refused at once; a refused command (`RefusedError`) changes nothing. The light of an
accepted command follows after the settle time; `OcsDevice.when_settled` calls back then.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from ipaddress import IPv4Network
from typing import Any

from moefabric.core.errors import FabricError
from moefabric.core.ocs import PLACEHOLDER, UserAccount
from moefabric.emulator.crossbar.crossbar import Crossbar
from moefabric.emulator.ocs.cross_connects import (
    CrossConnects,
    Pair,
    Refusal,
    RefusedError,
    refused_ports,
)
from moefabric.emulator.ocs.device_failures import ActiveFailures, OcsFailure, OcsFailureKind
from moefabric.emulator.ocs.device_spec import DeviceHost, DeviceSpec
from moefabric.emulator.ocs.events import EventBus, OcsEvent, OcsEventKind
from moefabric.emulator.ocs.light import Completions, LightTable
from moefabric.emulator.ocs.port_settings import Identity, PortTable, SystemSettings
from moefabric.emulator.ocs.users import Users
from moefabric.runtime.event_loop import Timer, Timers

SAVE_DELAY_NS = 20_000_000
"""Delay of `DeviceHost.save` after a change, so that a burst of changes is saved once."""
REBOOT_DELAY_NS = 100_000_000
"""Delay of a reboot that a client commands, so that its reply is sent first."""

Target = Callable[[CrossConnects], CrossConnects]
"""Function from the present cross-connects to the requested ones."""


class OcsDevice:
    """An optical switch: its state and its commands.

    Methods that take port numbers raise RefusedError for unknown ports.

    Attributes:
        connects: the cross-connects that the device believes it has.
        version: increases with each change of cross-connects, also across restarts.
        changed_s: time of day of the last change of cross-connects.
        ports: administrative states and settings of the ports.
        light: the time at which each cross-connect is lit, and power monitors.
        completions: clients that wait for light.
        system: settings of the switch as a whole.
    """

    def __init__(
        self,
        crossbar: Crossbar,
        timers: Timers,
        spec: DeviceSpec | None = None,
        host: DeviceHost | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Take over a crossbar. Its lit paths stay lit if the start-up mode is `preserve`.

        Args:
            timers: clock and timers of the device's thread.
            wall_s: time of day in seconds since the epoch.

        Raises:
            FabricError: if the mirrors can't be moved.
        """
        spec, host = spec or DeviceSpec(), host or DeviceHost()
        memory = spec.memory or {}
        self.timers, self.wall_s, self.profile = timers, wall_s, spec.profile
        model = self.profile.model.replace(PLACEHOLDER, str(crossbar.ports))
        self.identity = Identity(self.profile.vendor, model, spec.serial, self.profile.firmware)
        self.system = SystemSettings(**(memory.get("system") or _system_settings(spec)))
        accounts = [UserAccount(**user) for user in memory["users"]] if "users" in memory else None
        self.users = Users(spec.profile.users if accounts is None else accounts)
        self.events = EventBus(timers.now_ns)
        self.failures = ActiveFailures(
            self.events, map(OcsFailure.from_json, memory.get("faults", ()))
        )
        self.ports = PortTable(crossbar.ports, self.failures, memory)
        self.version = max(int(wall_s() * 1000), int(memory.get("version", 0)) + 1)
        self.changed_s = wall_s()
        self.connects = CrossConnects(crossbar.ports)
        self.light = LightTable(crossbar, timers, spec, self.ports, host)
        self.completions = Completions(timers, self.light, self.failures)
        StateSaver(self, host)
        if self.system.startup == "volatile":
            self._disconnect_all()
        else:
            self.light.adopt({(p, q): at_ns for p, q, at_ns in memory.get("joined", ())})
            self.connects = CrossConnects(crossbar.ports, dict(self.light.lit_at.keys()))

    # ---- reading

    def memory(self) -> dict[str, Any]:
        """Return the state that the next process needs.

        The state excludes cross-connects that can be read from the crossbar.
        """
        shown, lit_at = self.light.shown(), self.light.lit_at
        return {
            "version": self.version,
            "joined": [[*pair, lit_at[pair]] for pair in self.connects if pair not in shown],
            "shut": sorted(self.ports.closed),
            "settings": {str(port): vars(stored) for port, stored in self.ports.stored.items()},
            "system": vars(self.system),
            "users": [vars(account) for account in self.users],
            "faults": [asdict(failure) for failure in self.failures],
        }

    # ---- commands for cross-connects

    def add(self, pairs: Collection[Pair]) -> None:
        """Connect these pairs. The profile decides about older cross-connects of their ports."""
        self.change(lambda now: now.add(pairs, move=self.profile.busy == "move"))

    def only(self, pairs: Collection[Pair]) -> None:
        """Connect these pairs and no others."""
        self.change(lambda now: now.only(pairs))

    def sub(self, pairs: Collection[Pair]) -> None:
        """Disconnect these pairs. The profile decides whether each must be connected."""
        strict = self.profile.absent == "refuse"
        self.change(lambda now: now.sub([pair for pair in pairs if strict or pair in now.pairs]))

    def sub_ports(self, ports: Collection[int]) -> None:
        """Disconnect these inputs and outputs."""
        self.ports.check(ports)

        def target(now: CrossConnects) -> CrossConnects:
            pairs = {port: now.pair_of(port) for port in ports}
            absent = sorted(port for port, pair in pairs.items() if pair is None)
            if absent and self.profile.absent == "refuse":
                raise refused_ports(Refusal.NOT_CONNECTED, "not joined:", absent)
            return now.sub({pair for pair in pairs.values() if pair is not None})

        self.change(target)

    def clear(self) -> None:
        """Remove all cross-connects."""
        self.only([])

    def change(self, target: Target) -> None:
        """Replace the cross-connects.

        Raises:
            RefusedError: if the command is refused. Nothing has changed, unless a failure
                `partial-apply` is active.
        """
        before = self.connects
        with self._command():
            requested = target(before)
            new = {port for pair in requested.pairs - before.pairs for port in pair}
            self.ports.check_works(new)
            if self.profile.shut == "refuse":
                self.ports.check_open(new)
            after = self.failures.partly_applied(before, requested)
            if after.pairs != before.pairs:
                self._move(after)
            if after is not requested:
                added = len(after.pairs - before.pairs)
                removed = len(before.pairs - after.pairs)
                total = added + len(requested.pairs - after.pairs)
                applied = f"{removed} parted, {added} of {total} joined, then the mirrors failed"
                raise RefusedError(Refusal.HARDWARE, applied)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the light of all previous commands has settled, or at once.

        The failures `delay` and `drop-completion` delay and suppress the call.
        """
        self.completions.add(callback)

    # ---- commands for ports and settings

    def enable(self, ports: Collection[int]) -> None:
        """Open the shutters of these ports; their light comes after the settle time."""
        self._set_shutters(ports, OcsEventKind.ENABLED)

    def disable(self, ports: Collection[int]) -> None:
        """Close the shutters of these ports; their cross-connects stay."""
        self._set_shutters(ports, OcsEventKind.DISABLED)

    def configure_system(self, **changes: Any) -> None:
        """Write settings of the switch (fields of SystemSettings)."""
        self.system = replace(self.system, **changes)
        self.events.publish(OcsEventKind.SETTINGS)

    # ---- failures and restarts

    def inject(self, failure: OcsFailure) -> None:
        """Inject a failure, which gets a number.

        Raises:
            FabricError: if it can't be one of these ports.
        """
        self.ports.check(failure.ports)
        self._check_directions(failure)
        self.failures.add(failure)
        self.light.refresh()

    def clear_failures(self, number: int | None = None) -> None:
        """Clear a failure, or all (None). Light returns after the settle time.

        Raises:
            FabricError: if no failure has this number.
        """
        cleared = self.failures.clear(number)
        self.light.settle_again(port for failure in cleared for port in failure.ports)
        self.light.refresh()
        if any(failure.kind is OcsFailureKind.DROP_COMPLETION for failure in cleared):
            self.completions.resume()

    def reboot(self) -> None:
        """Drop waiting clients, and in volatile start-up mode all cross-connects."""
        self.completions.drop()
        self.events.publish(OcsEventKind.REBOOT)
        if self.system.startup == "volatile":
            self._disconnect_all()

    def call_later(self, delay_ns: int, callback: Callable[[], object]) -> Timer:
        """Call a function in the device's thread after a delay."""
        return self.timers.call_at(self.timers.now_ns() + delay_ns, callback)

    # ---- internal

    def _check_directions(self, failure: OcsFailure) -> None:
        """Refuse ports that aren't of the direction that a kind of failure needs."""
        inputs, outputs = self.ports.size.input_numbers, self.ports.size.output_numbers
        match failure.kind:
            case OcsFailureKind.STUCK:
                needed = [("an input", inputs)] * len(failure.ports)
            case OcsFailureKind.LOSS:
                needed = [("an input", inputs), ("an output", outputs)]
            case _:
                return
        for port, (what, numbers) in zip(failure.ports, needed, strict=True):
            if port not in numbers:
                span = f"{numbers.start}..{numbers.stop - 1}"
                raise FabricError(f"fault {failure.kind}: {port} is not {what} ({span})")

    @contextmanager
    def _command(self) -> Iterator[None]:
        """Execute a command, unless a failure rejects it, and publish why it is refused."""
        try:
            self.failures.check_reject()
            yield
        except RefusedError as refused:
            self.events.publish(OcsEventKind.REFUSED, words=str(refused))
            raise

    def _move(self, after: CrossConnects) -> None:
        try:
            added, removed = self.light.change(after)
        except (FabricError, OSError) as failed:
            raise RefusedError(Refusal.HARDWARE, str(failed)) from failed
        self.connects, self.changed_s = after, self.wall_s()
        self.version += 1
        self.events.publish(OcsEventKind.CHANGED, made=tuple(added), parted=tuple(removed))
        self.light.announce(added)

    def _disconnect_all(self) -> None:
        self.connects = CrossConnects(self.ports.size)
        self.version += 1
        self.light.clear()

    def _set_shutters(self, ports: Collection[int], event: OcsEventKind) -> None:
        with self._command():
            self.ports.check(ports)
            self.ports.check_works(ports)
        opens, closed = event is OcsEventKind.ENABLED, self.ports.closed
        changed = set(ports) & closed if opens else set(ports) - closed
        if not changed:
            return
        closed ^= changed
        if opens:
            self.light.settle_again(changed)
        self.light.refresh()
        self.events.publish(event, ports=tuple(sorted(changed)))


class StateSaver:
    """Has the host save the state of a switch soon after a change."""

    def __init__(self, device: OcsDevice, host: DeviceHost) -> None:
        self._device, self._host, self._is_due = device, host, False
        device.events.subscribe(self._on_event)
        device.users.on_change = self._save_soon

    def _on_event(self, event: OcsEvent) -> None:
        if event.kind not in (OcsEventKind.SETTLED, OcsEventKind.REFUSED):
            self._save_soon()

    def _save_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._device.call_later(SAVE_DELAY_NS, self._save)

    def _save(self) -> None:
        self._is_due = False
        self._host.save(self._device.memory())


def _system_settings(spec: DeviceSpec) -> dict[str, str]:
    """Return the settings of a new switch that may differ from the defaults."""
    settings: dict[str, str] = {"startup": spec.profile.startup}
    if spec.address:
        network = IPv4Network(f"{spec.address}/{spec.prefix}", strict=False)
        settings |= {"ip": spec.address, "gateway": str(network[1])}
        settings |= {"mask": str(network.netmask), "broadcast": str(network.broadcast_address)}
    return settings
