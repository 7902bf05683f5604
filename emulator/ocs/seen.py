"""An optical switch as it is seen: what is joined, lit, shut, named and written beside each port."""

import itertools
from collections.abc import Callable, Collection, Mapping
from ipaddress import IPv4Network
from typing import Any

from emulator.light import Crossbar, Ports
from emulator.loop import Timers
from emulator.ocs.build import Build, Outside
from emulator.ocs.events import Event, Kind
from emulator.ocs.faults import Faults, Ill
from emulator.ocs.matching import CrossConnects, Pair, Refusal, RefusedError
from emulator.ocs.physics import Settling, loss_db
from emulator.ocs.port import Admin, Identity, PortSettings, SystemSettings, Tuning
from emulator.ocs.users import Users
from moefabric.ocs_profile import PLACEHOLDER, Profile

Listener = Callable[[Event], None]


class Seen:
    """The state of a switch, and what can be asked of it. Nothing here changes anything but who listens."""

    def __init__(
        self,
        crossbar: Crossbar,
        timers: Timers,
        build: Build,
        outside: Outside,
        wall_s: Callable[[], float],
    ) -> None:
        self._crossbar, self.timers, self.build = crossbar, timers, build
        self._outside, self.wall_s = outside, wall_s
        self.profile, self.ports = self.build.profile, crossbar.ports
        self.identity = _identity(self.profile, self.ports, self.build.serial)
        self._settling = Settling(self.profile.settle, self.build.serial)
        self._listeners: dict[int, Listener] = {}
        self._listening = itertools.count()
        self.version = int(wall_s() * 1000)
        """Another number after each change of cross-connects, larger than any before, also after a restart."""
        self.changed_s = wall_s()
        """The time of day of the last such change."""
        self.connects = CrossConnects(self.ports)
        """What is joined, as the device believes."""
        self._lit_at: dict[Pair, int] = {}
        self._shut: set[int] = set()
        self._names: dict[Pair, str] = {}
        self._settings: dict[int, PortSettings] = {}
        self.system = _system(self.profile, self.build.address)
        self.users = Users(self.profile.users)
        self.faults = Faults()
        self._links: dict[int, int | None] = {}
        self._alarmed: frozenset[int] = frozenset()
        self._keep_timer = False
        self._moved_ns = 0

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC, as the store has it."""
        return self.timers.now_ns()

    @property
    def all_ports(self) -> range:
        """1..N are inputs, N+1..N+M outputs."""
        return range(1, self.ports.output_numbers.stop)

    def admin(self, port: int) -> Admin:
        """Whether a port is enabled. RefusedError if there is no such port."""
        self._must_be(port)
        if port in self.faults.ports(Ill.PORT):
            return Admin.FAILED
        return Admin.DISABLED if port in self._shut else Admin.ENABLED

    def tuning(self, port: int) -> Tuning:
        """How far a port's light is, as the device believes. RefusedError if there is no such port."""
        admin, pair = self.admin(port), self.pair_of(port)
        if admin is Admin.FAILED:
            return Tuning.FAILED
        if admin is Admin.DISABLED or pair is None:
            return Tuning.BLOCKED
        return Tuning.TUNED if self._lit_at[pair] <= self.now_ns() else Tuning.TUNING

    def pair_of(self, port: int) -> Pair | None:
        """The cross-connect that an input or output is part of."""
        if port in self.connects.joined:
            return port, self.connects.joined[port]
        return self.connects.by_output.get(port)

    def partner(self, port: int) -> int | None:
        """The port that an input or output is joined to. RefusedError if there is no such port."""
        self._must_be(port)
        pair = self.pair_of(port)
        return None if pair is None else pair[1] if pair[0] == port else pair[0]

    def name_of(self, pair: Pair) -> str:
        """What a cross-connect is called; empty if nobody called it anything."""
        return self._names.get(pair, "")

    def settings(self, port: int) -> PortSettings:
        """What is written beside a port. RefusedError if there is no such port."""
        self._must_be(port)
        return self._settings.get(port, PortSettings())

    def has_monitor(self, port: int) -> bool:
        """Whether a port has a power monitor. RefusedError if there is no such port."""
        self._must_be(port)
        monitors = self.profile.loss.monitors
        return monitors == "both" or (monitors == "inputs" and port in self.ports.input_set)

    def power_dbm(self, port: int) -> float | None:
        """What a port's power monitor reads; None where it has none. RefusedError if there is no such port."""
        return self.powers_dbm([port]).get(port)

    def powers_dbm(self, ports: Collection[int]) -> dict[int, float]:
        """What the power monitors of these ports read, but of those that have none. RefusedError for a port that isn't there."""
        now, loss, received = self.now_ns(), self.profile.loss, {}
        for in_port, light in self._crossbar.show().items():
            if light.lit_at_ns <= now:
                received[light.out_port] = loss.launch_dbm - self.loss_db((in_port, light.out_port))
        read = {}
        for port in ports:
            if self.has_monitor(port):
                dbm = self._power_dbm(port, received)
                read[port] = max(loss.floor_dbm, dbm) + self.settings(port).offset_db
        return read

    def loss_db(self, pair: Pair) -> float:
        """What the path from an input to an output loses, faults included."""
        return loss_db(self.profile.loss, self.build.serial, pair) + self.faults.loss_db(pair)

    @property
    def settled_at_ns(self) -> int:
        """When everything commanded so far has light; an instant in the past, or 0, where it has."""
        return max(self._lit_at.values(), default=0)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of each event from now on, before the command that led to it returns; the answer ends that."""
        key = next(self._listening)
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def memory(self) -> dict[str, Any]:
        """What the next process has to know; of cross-connects, those that the mirrors don't show."""
        lit = {(p, light.out_port) for p, light in self._crossbar.show().items()}
        return {
            "version": self.version,
            "joined": [[p, q, self._lit_at[p, q]] for p, q in self.connects if (p, q) not in lit],
            "shut": sorted(self._shut),
            "names": [[*pair, name] for pair, name in self._names.items()],
            "settings": {str(port): vars(settings) for port, settings in self._settings.items()},
            "system": vars(self.system),
            "users": [vars(account) for account in self.users],
            "faults": [fault.as_json() for fault in self.faults],
        }

    def _must_be(self, port: int) -> None:
        if port not in self.all_ports:
            raise RefusedError(Refusal.NO_SUCH_PORT, f"{port}: ports are 1..{self.all_ports.stop - 1}")

    def _power_dbm(self, port: int, received: Mapping[int, float]) -> float:
        """What light a port really gets: an input from its transceiver, an output from what shines into it."""
        loss = self.profile.loss
        if self.admin(port) is Admin.FAILED:
            return loss.floor_dbm
        if port in self.ports.input_set:
            return loss.launch_dbm
        if port in received:
            return received[port]
        pair = self.pair_of(port)  # lit, though too weakly for the receiver behind it
        if pair and self.faults.loss_db(pair) and self.tuning(port) is Tuning.TUNED:
            return loss.launch_dbm - self.loss_db(pair)
        return loss.floor_dbm

    def _tell(self, kind: Kind, **what: Any) -> None:
        event = Event(self.now_ns(), kind, **what)
        for listener in list(self._listeners.values()):
            listener(event)


def _system(profile: Profile, address: str) -> SystemSettings:
    if not address:
        return SystemSettings(startup=profile.startup)
    network = IPv4Network(f"{address}/24", strict=False)
    return SystemSettings(
        startup=profile.startup,
        ip=address,
        gateway=str(network[1]),
        mask=str(network.netmask),
        broadcast=str(network.broadcast_address),
    )


def _identity(profile: Profile, ports: Ports, serial: str) -> Identity:
    model = profile.model.replace(PLACEHOLDER, str(ports))
    return Identity(profile.vendor, model, serial, profile.firmware)
