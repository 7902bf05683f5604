"""Light of an optical switch: when each cross-connect is lit, its power, and waits for light."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.crossbar import Crossbar, Lights
from moefabric.emulator.ocs.cross_connects import CrossConnects, Pair
from moefabric.emulator.ocs.device_failures import ActiveFailures, OcsFailureKind
from moefabric.emulator.ocs.device_spec import DeviceHost, DeviceSpec
from moefabric.emulator.ocs.events import OcsEventKind
from moefabric.emulator.ocs.physics import Activation, Settling, conflicting, loss_db
from moefabric.emulator.ocs.port_settings import Admin, PortTable
from moefabric.runtime.event_loop import Timers

LATE_NS = 100_000
"""Delays of a crossbar load below this are ignored: hundreds of ports take less."""


class LightTable:
    """Times at which cross-connects are lit; the crossbar follows each change.

    Under failures the real light may differ from the light that the device believes in.
    """

    def __init__(
        self,
        crossbar: Crossbar,
        timers: Timers,
        spec: DeviceSpec,
        ports: PortTable,
        host: DeviceHost,
    ) -> None:
        self.lit_at: dict[Pair, int] = {}
        """For each cross-connect, the time from which it is lit (CLOCK_MONOTONIC, ns)."""
        self._crossbar, self._timers, self._spec, self._ports = crossbar, timers, spec, ports
        self.shown = crossbar.cross_connects
        """Returns the real light, as `lit_at`."""
        self._failures, self._events, self._host = ports.failures, ports.failures.events, host
        self._loss = spec.profile.loss
        self._settling = Settling(spec.profile.settle, spec.serial)
        self._activation = Activation(spec.link_up, spec.serial)
        self._link_up_ns: dict[Pair, int] = {}
        """Time from light to the link of the NIC at the end of each commanded path."""
        self._links: dict[int, int | None] = {}
        self._alarmed: frozenset[int] = frozenset()
        self._in_batch = False
        self._batch_start_ns: int | None = None
        self._loaded_ns = 0

    @property
    def settled_at_ns(self) -> int:
        """When all cross-connects are lit; in the past, or 0, if they are lit already."""
        return max(self.lit_at.values(), default=0)

    def is_lit(self, pair: Pair) -> bool:
        """Return whether the device believes that a cross-connect is lit."""
        return self.lit_at[pair] <= self._timers.now_ns()

    def has_monitor(self, port: int) -> bool:
        """Return whether a port has a power monitor."""
        self._ports.check([port])
        kind = self._loss.monitors
        return kind == "both" or (kind == "inputs" and self._ports.is_input(port))

    def read_dbm(self, ports: Collection[int]) -> dict[int, float]:
        """Return the readings of power monitors by port; ports without one are left out."""
        now = self._timers.now_ns()
        received = {
            pair[1]: self._received_dbm(pair)
            for pair, lit_at_ns in self.shown().items()
            if lit_at_ns <= now
        }
        return {
            port: max(self._loss.floor_dbm, self._power_dbm(port, received))
            + self._ports.settings(port).offset_db
            for port in ports
            if self.has_monitor(port)
        }

    def _power_dbm(self, port: int, received: Mapping[int, float]) -> float:
        """Return the real power: at an input the transceiver's, at an output the path's."""
        loss, admin = self._loss, self._ports.admin(port)
        if admin is Admin.FAILED:
            return loss.floor_dbm
        if self._ports.is_input(port):
            return loss.launch_dbm
        if port in received:
            return received[port]
        # Light that a loss failure makes too weak for a receiver may still reach a monitor.
        pair = next((pair for pair in self.lit_at if pair[1] == port), None)
        if pair and admin is Admin.ENABLED and self.is_lit(pair) and self._failures.loss_db(pair):
            return self._received_dbm(pair)
        return loss.floor_dbm

    def _received_dbm(self, pair: Pair) -> float:
        """Return the optical power at the end of a path, after its loss and that of failures."""
        lost_db = loss_db(self._loss, self._spec.serial, pair) + self._failures.loss_db(pair)
        return self._loss.launch_dbm - lost_db

    def set_batch(self, *, active: bool) -> None:
        """Start or end a batch, whose settle times all start at its first change.

        The emulator needs noticeable time between two commands of a line; a real device doesn't.
        """
        self._in_batch, self._batch_start_ns = active, None

    def change(self, after: CrossConnects) -> tuple[list[Pair], list[Pair]]:
        """Switch to other cross-connects.

        Returns:
            The cross-connects that are added, and those that are removed.

        Raises:
            FabricError, OSError: if the mirrors do not move; nothing has changed.
        """
        before, requested = self.lit_at.keys(), after.pairs
        added, removed = sorted(requested - before), sorted(before - requested)
        conflicts = conflicting(added, removed)
        times = self._settling.times_ns(added, conflicts=conflicts) if added else []
        previous = self.lit_at
        lit_at = dict(previous)
        for pair in removed:
            del lit_at[pair]
        now = self._timers.now_ns()  # as late as possible: the mirrors move within microseconds
        start = now if self._batch_start_ns is None else self._batch_start_ns
        self.lit_at = lit_at | self._lit_at(added, times, start)
        try:
            self.refresh()
            self._postpone(added, self._loaded_ns - now)
        except (FabricError, OSError):
            self.lit_at = previous
            raise
        if self._in_batch and self._batch_start_ns is None:
            self._batch_start_ns = self._loaded_ns
        return added, removed

    def settle_again(self, ports: Iterable[int]) -> None:
        """Restart the settle time of the cross-connects of these ports."""
        touched = set(ports)
        pairs = sorted(pair for pair in self.lit_at if touched & {*pair})
        times = self._settling.times_ns(pairs, conflicts=False)
        self.lit_at |= self._lit_at(pairs, times, self._timers.now_ns())
        self.announce(pairs)

    def _lit_at(self, pairs: list[Pair], times: list[int], start_ns: int) -> dict[Pair, int]:
        """Return when cross-connects with these settle times are lit; draw their links' times."""
        link_up = {pair: self._activation.time_ns() for pair in pairs}
        self._link_up_ns |= link_up
        return {
            pair: start_ns + time_ns + (0 if self._spec.link_down else link_up[pair])
            for pair, time_ns in zip(pairs, times, strict=True)
        }

    def announce(self, pairs: Collection[Pair]) -> None:
        """Schedule an event for the time when these cross-connects have settled."""
        if not pairs:
            return

        def publish() -> None:
            now = self._timers.now_ns()
            if lit := tuple(pair for pair in pairs if self.lit_at.get(pair, now + 1) <= now):
                self._events.publish(OcsEventKind.SETTLED, made=lit)

        self._timers.call_at(max(self.lit_at[pair] for pair in pairs), publish)

    def refresh(self) -> None:
        """Load the crossbar with the cross-connects whose ports are open and work."""
        lights = self._lights()
        self._crossbar.load(lights)
        self._loaded_ns = self._timers.now_ns()
        self._report_links(lights)
        self._update_alarms(lights)

    def _report_links(self, lights: Lights) -> None:
        """Report which NICs' links go down and until when, as links depend on received light."""
        if not self._spec.link_down:
            return
        usual_ns = self._spec.link_up.fixed_ns
        up_at = {
            pair[1]: lit_at_ns + self._link_up_ns.get(pair, usual_ns)
            for pair, lit_at_ns in lights.items()
        }
        size = self._ports.size
        links = {q - size.inputs: up_at.get(q) for q in size.output_numbers}
        if changed := dict(links.items() - self._links.items()):
            self._links = links
            self._host.set_links(changed)

    def adopt(self, remembered: Mapping[Pair, int]) -> None:
        """Start with the cross-connects of the crossbar.

        Args:
            remembered: saved cross-connects, which are adopted if a failure or a shutter keeps them
                dark and no lit path uses their ports.
        """
        shown = self.shown()
        busy = {port for pair in shown for port in pair}
        closed = self._ports.closed | {port for failure in self._failures for port in failure.ports}
        self.lit_at = shown | {
            pair: at_ns
            for pair, at_ns in remembered.items()
            if closed & {*pair} and not busy & {*pair}
        }
        self._report_links(self._lights())

    def clear(self) -> None:
        """Switch all light off."""
        self.lit_at = {}
        self._crossbar.load({})
        self._report_links({})

    def _postpone(self, pairs: Collection[Pair], late_ns: int) -> None:
        """Postpone the light by the delay of the mirrors on a busy machine."""
        if late_ns <= LATE_NS or not pairs:
            return
        if min(self.lit_at[pair] for pair in pairs) > self._loaded_ns + late_ns:
            self.lit_at |= {pair: self.lit_at[pair] + late_ns for pair in pairs}
            self.refresh()

    def _lights(self) -> Lights:
        """Return the real light, which failures may change without notice to the device."""
        closed = self._ports.closed | self._ports.failed
        has_loss, least_dbm = self._failures.first(OcsFailureKind.LOSS), self._loss.sensitivity_dbm
        lights = self.lit_at
        if closed or has_loss:
            lights = {
                pair: at_ns
                for pair, at_ns in self.lit_at.items()
                if not closed & {*pair} and not (has_loss and self._received_dbm(pair) < least_dbm)
            }
        if stuck := self._failures.ports(OcsFailureKind.STUCK):
            held = {(p, q): at_ns for (p, q), at_ns in self.shown().items() if p in stuck - closed}
            taken = {q for _, q in held}
            lights = held | {
                (p, q): at_ns
                for (p, q), at_ns in lights.items()
                if p not in stuck and q not in taken
            }
        return lights

    def _update_alarms(self, lights: Lights) -> None:
        """Publish which connected and enabled outputs lost their light, and which regained it."""
        lit, outputs = ({q for _, q in pairs} for pairs in (lights, self.lit_at))
        dark = frozenset(outputs - lit - self._ports.closed)
        if low := dark - self._alarmed:
            self._events.publish(OcsEventKind.POWER_LOW, ports=tuple(sorted(low)))
        if back := self._alarmed - dark:
            self._events.publish(OcsEventKind.POWER_CLEAR, ports=tuple(sorted(back)))
        self._alarmed = dark


class Completions:
    """Callbacks that wait for light. Failures may delay or suppress the calls."""

    def __init__(self, timers: Timers, light: LightTable, failures: ActiveFailures) -> None:
        self._timers, self._light, self._failures = timers, light, failures
        self._keys = itertools.count()
        self._waiting: dict[int, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the light of all earlier commands has settled, or at once."""
        key = next(self._keys)
        self._waiting[key] = callback
        if self._failures.strike(OcsFailureKind.DROP_COMPLETION):
            return
        delay = self._failures.strike(OcsFailureKind.DELAY)
        at_ns = self._settled_ns() + round(delay.value * 1e9 if delay else 0)
        if at_ns <= self._timers.now_ns():
            self._call(key)
        else:
            self._timers.call_at(at_ns, partial(self._call, key))

    def resume(self) -> None:
        """Call those whose completion was suppressed, once light has settled."""
        for key in list(self._waiting):
            self._timers.call_at(self._settled_ns(), partial(self._call, key))

    def drop(self) -> None:
        """Forget all callbacks."""
        self._waiting.clear()

    def _settled_ns(self) -> int:
        return max(self._light.settled_at_ns, self._timers.now_ns())

    def _call(self, key: int) -> None:
        if callback := self._waiting.pop(key, None):
            callback()
