"""The light of an optical switch: mirrors that follow what is joined, and what outlives a process."""

from collections.abc import Collection, Iterable, Mapping

from emulator.light import Light
from emulator.ocs.events import Kind
from emulator.ocs.faults import Fault, Faults, Ill
from emulator.ocs.matching import CrossConnects, Pair
from emulator.ocs.port import PortSettings, SystemSettings
from emulator.ocs.seen import Seen
from emulator.ocs.users import Users
from moefabric.ocs_manners import Account

KEEP_NS = 20_000_000
"""A burst of changes is written down once."""
LATE_NS = 100_000
"""A crossbar of hundreds of ports takes no longer to load."""


class Lit(Seen):
    """A switch whose mirrors move."""

    def _settle_anew(self, ports: Iterable[int]) -> None:
        """What these ports are joined to has light after the settle time, counted from now."""
        touched = set(ports)
        again = [pair for pair in self.connects if touched & {*pair}]
        dark = 0 if self.build.link_down else self.build.link_up_ns
        for pair, time_ns in zip(again, self._settling.times_ns(again, conflicts=False), strict=True):
            self._lit_at[pair] = self.now_ns() + time_ns + dark
        if again:
            self._tell_settled(tuple(again), max(self._lit_at[pair] for pair in again))

    def _tell_settled(self, made: tuple[Pair, ...], at_ns: int) -> None:
        def settled() -> None:
            now = self.now_ns()
            if lit := tuple(pair for pair in made if self._lit_at.get(pair, now + 1) <= now):
                self._tell(Kind.SETTLED, made=lit)

        self.timers.at(at_ns, settled)

    def _make_good(self, made: Collection[Pair], commanded_ns: int) -> None:
        """Have light come that much later by which the mirrors moved late, if a busy machine kept them from it."""
        late = self._moved_ns - commanded_ns
        if late > LATE_NS and made and min(self._lit_at[pair] for pair in made) > self._moved_ns + late:
            self._lit_at |= {pair: self._lit_at[pair] + late for pair in made}
            self._relight()

    def _relight(self, *, force: bool = False) -> None:
        """Move the mirrors to what is joined, less what is shut or out of order."""
        lights = self._lights()
        self._crossbar.load(lights)
        self._moved_ns = self.now_ns()
        self._tell_links(lights)
        if force or self._alarmed:
            self._alarm(lights)

    def _lights(self) -> dict[int, Light]:
        """The light there really is: faults may keep it from being what the device believes."""
        closed = self._shut | self.faults.ports(Ill.PORT)
        lights = {p: Light(q, self._lit_at[p, q]) for p, q in self.connects}
        if closed:
            lights = {p: at for p, at in lights.items() if p not in closed and at.out_port not in closed}
        if self.faults.having(Ill.LOSS):
            lights = {p: at for p, at in lights.items() if self._is_heard((p, at.out_port))}
        if stuck := self.faults.ports(Ill.STUCK):
            lights = _held(lights, self._crossbar.show(), stuck, closed)
        return lights

    def _is_heard(self, pair: Pair) -> bool:
        loss = self.profile.loss
        return loss.launch_dbm - self.loss_db(pair) >= loss.sensitivity_dbm

    def _alarm(self, lights: Mapping[int, Light]) -> None:
        """Tell of outputs that are joined and enabled, and have no light by a fault; and when they have it again."""
        lit = {light.out_port for light in lights.values()}
        dark = frozenset(q for _, q in self.connects if q not in lit and q not in self._shut)
        if low := dark - self._alarmed:
            self._tell(Kind.POWER_LOW, ports=tuple(sorted(low)))
        if back := self._alarmed - dark:
            self._tell(Kind.POWER_CLEAR, ports=tuple(sorted(back)))
        self._alarmed = dark

    def _tell_links(self, lights: Mapping[int, Light]) -> None:
        """Tell which links go down, and until when. A NIC's link hangs on the light that it receives."""
        if not self.build.link_down:
            return
        up_at = {light.out_port: light.lit_at_ns + self.build.link_up_ns for light in lights.values()}
        links = {q - self.ports.inputs: up_at.get(q) for q in self.ports.output_numbers}
        changed = {
            port: at for port, at in links.items() if port not in self._links or self._links[port] != at
        }
        if changed:
            self._links = links
            self._outside.links(changed)

    def _write_down(self) -> None:
        """Have the memory kept, soon: what is lit the mirrors themselves remember."""
        if not self._keep_timer:
            self._keep_timer = True
            self.timers.at(self.now_ns() + KEEP_NS, self._keep)

    def _keep(self) -> None:
        self._keep_timer = False
        self._outside.keep(self.memory())

    def _recall(self) -> None:
        """Start with what the mirrors show and what was written down."""
        told = self.build.memory or {}
        self.version = max(self.version, int(told.get("version", 0)) + 1)
        self.system = SystemSettings(**told["system"]) if "system" in told else self.system
        if "users" in told:
            self.users = Users(Account(**one) for one in told["users"])
        self.users.changed = self._write_down
        self._settings = {int(port): PortSettings(**one) for port, one in told.get("settings", {}).items()}
        self._shut = set(told.get("shut", ()))
        suffered = [Fault.from_json(one) for one in told.get("faults", ())]
        self.faults = Faults({fault.number: fault for fault in suffered})
        if self.system.startup == "volatile":
            self._forget()
        else:
            lit = {(p, light.out_port): light.lit_at_ns for p, light in self._crossbar.show().items()}
            dark = {(p, q): at for p, q, at in told.get("joined", ())}
            self._take_over(lit, dark)
            self._names = {(p, q): name for p, q, name in told.get("names", ()) if (p, q) in self._lit_at}
        self._tell_links(self._lights())

    def _take_over(self, lit: Mapping[Pair, int], dark: Mapping[Pair, int]) -> None:
        """What is dark for a fault or a shutter is joined too, unless its ports are lit by now."""
        lights = {p: Light(q, at) for (p, q), at in lit.items()}
        busy = {port for pair in lit for port in pair}
        closed = self._shut | {port for fault in self.faults for port in fault.ports}
        also = {(p, q): at for (p, q), at in dark.items() if {p, q} & closed and not {p, q} & busy}
        self._lit_at = {(p, light.out_port): light.lit_at_ns for p, light in lights.items()} | also
        self.connects = CrossConnects(self.ports, dict(self._lit_at.keys()))

    def _forget(self) -> None:
        self.connects, self._lit_at, self._names = CrossConnects(self.ports), {}, {}
        self.version += 1
        self._crossbar.load({})
        self._tell_links({})


def _held(
    lights: Mapping[int, Light], shown: Mapping[int, Light], stuck: Collection[int], closed: Collection[int]
) -> dict[int, Light]:
    """Light where some mirrors don't move: theirs stays, and what would shine into the same output is lost."""
    held = {p: light for p, light in shown.items() if p in stuck and p not in closed}
    taken = {light.out_port for light in held.values()}
    moved = {p: light for p, light in lights.items() if p not in stuck and light.out_port not in taken}
    return moved | held
