"""Light that goes away by itself is noticed; what a controller moves never counts as lost."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import pytest

from moefabric.controller.recovery.failure_state import DetectedFailure
from moefabric.controller.recovery.light_watch import (
    MOST_FRAMES,
    SILENT_S,
    LightWatch,
    check_period_s,
    lost_light,
)
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.nic import Nic
from moefabric.core.ocs import OcsControl
from moefabric.core.protocols import ProbeResult
from moefabric.core.topology import Fabric, ocs_port
from moefabric.core.units import NS_PER_S, Scale
from tests.support.fabrics import fabric
from tests.support.recovery_bench import Bench

RING = ["s0/o0~s1/o0", "s0/o1~s3/o1", "s1/o1~s2/o0", "s2/o1~s3/o0"]
KEPT = RING[:2]
OTHER = ["s0/o0~s2/o0", "s1/o0~s3/o0"]
SILENT, GONE = "no frame passes it", "the OCS doesn't connect it any more"


@dataclass
class Watched:
    """A region with a ring of circuits and the watch of their light."""

    relights: bool = True
    bench: Bench = field(default_factory=lambda: Bench(fabric(2, 2)))
    repairs: int = 0
    notes: list[tuple[str, str]] = field(default_factory=list)
    since_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller = self.bench.controllers["r0"]
        self.ocs, self.recovery = self.bench.ocs["r0"], self.bench.recovery()
        assert self.controller.reconciler is not None
        self.reconciler = self.controller.reconciler
        self.recovery.note_light = self.note
        self.controller.light({"circuits": RING}, 0.0)
        self.watch = LightWatch(
            self.recovery,
            self.reconciler,
            self.bench.lock,
            nullcontext,
            self.repair if self.relights else None,
            clock_ns=lambda: round(self.ocs.clock.now_s() * NS_PER_S),
        )

    def note(self, phase: str, circuit: str, _why: str, since_ns: int) -> None:
        self.notes.append((phase, circuit))
        self.since_ns.append(since_ns)

    def repair(self) -> None:
        self.repairs += 1
        self.controller.relight()

    def block(self, nic: str) -> None:
        """Pull the fibre of a NIC."""
        self.ocs.opaque |= {ocs_port(self.bench.fabric, Nic.parse(nic))}

    @property
    def dark(self) -> list[str]:
        return list(self.controller.circuits()["dark"])

    @property
    def standing(self) -> list[DetectedFailure]:
        return [report.failure for report in self.recovery.history.standing()]


def is_by_eps(watched: Watched, source: str, to: str) -> bool:
    return any("leaf" in end for link in watched.bench.route(source, to) for end in link)


def test_lit_circuits_are_left_alone() -> None:
    watched = Watched()
    for _ in range(3):
        watched.watch.check()
    assert (watched.bench.lit(), watched.repairs, watched.notes) == (CircuitSet.of(RING), 0, [])


def test_disconnected_light_moves_traffic_and_is_named() -> None:
    watched = Watched(relights=False)
    watched.ocs.disconnect_all()
    watched.watch.check()
    assert (watched.bench.lit(), watched.dark) == (CircuitSet(), RING)
    assert is_by_eps(watched, "s0", "s1")
    assert watched.standing == [DetectedFailure(c, FailureKind.LIGHT) for c in RING]
    [first, *_] = watched.recovery.history.standing()
    assert first.action == "its pair is on the EPS"
    assert watched.notes == [("lost", circuit) for circuit in RING]
    assert watched.controller.statistics_reply()["lost_light"] == 4


@pytest.mark.parametrize("electrical", [0, 2], ids=["panel", "with-eps"])
@pytest.mark.parametrize("forwards", [False, True], ids=["direct", "forwarding"])
def test_lost_light_is_lit_again_and_cleared(electrical: int, forwards: bool) -> None:
    watched = Watched(bench=Bench(replace(fabric(2, electrical), forwarding=forwards)))
    watched.ocs.disconnect_all()
    watched.watch.check()
    assert watched.ocs.circuits() == watched.bench.lit() == CircuitSet.of(RING)
    assert (watched.standing, watched.dark) == ([], [])
    assert sorted(watched.notes[4:]) == [("clear", circuit) for circuit in RING]


@pytest.mark.parametrize("policy", ["mixnet", "static", "topoopt", "uniform"])
def test_circuits_of_a_policy_are_lit_again_whether_it_moves_any(policy: str) -> None:
    watched = Watched()
    demand = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0]]
    watched.controller.demand({"demand": demand, "policy": policy}, 0.0)
    pairs = sorted(circuit.pair for circuit in watched.bench.lit())
    assert len(pairs) >= 2
    watched.ocs.disconnect_all()
    watched.watch.check()
    assert watched.bench.lit() == watched.ocs.circuits()
    assert sorted(circuit.pair for circuit in watched.bench.lit()) == pairs
    assert watched.standing == []


def test_light_since_when_is_that_of_the_last_good_check() -> None:
    watched = Watched()
    watched.ocs.clock.wait_until(5.0)
    watched.watch.check()
    watched.ocs.clock.wait_until(6.0)
    watched.ocs.disconnect_all()
    watched.ocs.clock.wait_until(7.0)
    watched.watch.check()
    assert watched.since_ns[:4] == [5 * NS_PER_S] * 4


def test_only_circuits_without_light_are_left() -> None:
    watched = Watched(relights=False)
    watched.block("s1/o1")
    watched.watch.check()
    assert watched.dark == ["s1/o1~s2/o0"]
    assert watched.bench.lit() == CircuitSet.of(RING) - CircuitSet.of(watched.dark)
    assert is_by_eps(watched, "s1", "s2")
    assert not is_by_eps(watched, "s0", "s1")


def test_light_that_stays_away_is_tried_again_in_growing_intervals() -> None:
    watched = Watched()
    watched.block("s1/o1")
    tries = []
    for _ in range(200):
        before = watched.repairs
        watched.watch.check()
        watched.ocs.clock.wait_until(watched.ocs.clock.now_s() + 0.5)
        if watched.repairs > before:
            tries.append(watched.ocs.clock.now_s())
    assert 5 <= len(tries) <= 12
    assert tries[-1] - tries[-2] > 10
    watched.ocs.opaque = frozenset()
    watched.ocs.clock.wait_until(watched.ocs.clock.now_s() + 60)
    watched.watch.check()
    assert (watched.bench.lit(), watched.standing) == (CircuitSet.of(RING), [])


def test_light_stays_dark_without_relighting_until_the_next_request() -> None:
    watched = Watched(relights=False)
    watched.ocs.disconnect_all()
    for _ in range(3):
        watched.watch.check()
    assert (watched.bench.lit(), watched.repairs) == (CircuitSet(), 0)
    watched.controller.light({"circuits": RING}, 0.0)
    assert (watched.bench.lit(), watched.standing) == (CircuitSet.of(RING), [])


def test_lost_circuit_that_nobody_asks_for_any_more_is_no_failure() -> None:
    watched = Watched(relights=False)
    watched.ocs.disconnect_all()
    watched.watch.check()
    watched.controller.light({"circuits": OTHER}, 0.0)
    assert watched.standing == []


class MovingProbe:
    """A probe during which the controller moves circuits itself, so that no frame arrives."""

    def __init__(self, watched: Watched, targets: list[list[str]]) -> None:
        self.watched, self.targets, self.inner = watched, targets, watched.ocs

    def prepare(self, circuits: CircuitSet) -> None:
        """Do nothing."""

    def probe(self, circuits: CircuitSet, timeout_s: float) -> ProbeResult:
        if not self.targets:
            return self.inner.probe(circuits, timeout_s)
        targets, self.targets = self.targets, []
        for target in targets:
            self.watched.controller.light({"circuits": target}, 0.0)
        return ProbeResult(CircuitSet())


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param([OTHER], id="to-others"),
        pytest.param([OTHER, RING], id="away-and-back"),
        pytest.param([[]], id="to-none"),
    ],
)
def test_own_reconfiguration_is_never_taken_for_lost_light(targets: list[list[str]]) -> None:
    watched = Watched()
    watched.reconciler.probe = MovingProbe(watched, targets)
    watched.watch.check()
    assert (watched.notes, watched.repairs) == ([], 0)
    assert watched.bench.lit() == CircuitSet.of(targets[-1])


def test_circuits_that_stay_are_checked_while_others_move() -> None:
    watched = Watched(relights=False)
    watched.reconciler.probe = MovingProbe(watched, [KEPT])
    watched.watch.check()
    assert watched.notes == [("lost", circuit) for circuit in KEPT]


def test_report_of_the_ocs_alone_tells_without_probes() -> None:
    watched = Watched(relights=False)
    watched.reconciler.probe = None
    watched.block("s1/o1")
    watched.watch.check()
    assert watched.notes == []
    watched.ocs.disconnect_all()
    watched.watch.check()
    assert watched.notes == [("lost", circuit) for circuit in RING]
    watched.controller.light({"circuits": RING}, 0.0)
    assert (watched.dark, watched.standing) == ([], [])


def test_absent_ocs_is_no_lost_light() -> None:
    watched = Watched()
    watched.reconciler.probe = None
    watched.ocs.gone = True
    with pytest.raises(ControlError, match="no answer"):
        watched.watch.check()
    assert (watched.bench.lit(), watched.notes) == (CircuitSet.of(RING), [])


def test_frames_tell_where_the_ocs_is_absent() -> None:
    watched = Watched(relights=False)

    class Dark(MovingProbe):
        def probe(self, circuits: CircuitSet, timeout_s: float) -> ProbeResult:
            return ProbeResult(CircuitSet())

    watched.reconciler.probe, watched.ocs.gone = Dark(watched, []), True
    watched.watch.check()
    assert watched.notes == [("lost", circuit) for circuit in RING]


def test_relay_without_light_is_replaced() -> None:
    watched = Watched()
    watched.bench.deliver(["s0/e0", "s0/e1"], up=False)
    [(server, relay)] = watched.recovery.relay_circuits.items()
    watched.watch.repair = None
    watched.block(str(relay.far_end(server)))
    watched.watch.check()
    assert relay not in watched.recovery.relay_circuits.values()
    watched.controller.relight()
    assert watched.recovery.relay_circuits.keys() == {"s0"}
    assert relay not in watched.recovery.relay_circuits.values()


def test_lost_light_prefers_what_the_ocs_shows() -> None:
    a, b = CircuitSet.of(RING[:1]), CircuitSet.of(RING[1:2])
    both = CircuitSet.of(KEPT)
    assert lost_light(both, a, is_probed=True) == {
        **dict.fromkeys(a, SILENT),
        **dict.fromkeys(b, GONE),
    }
    assert lost_light(both, a, is_probed=False) == dict.fromkeys(b, GONE)


def with_control(wired: Fabric, **settings: object) -> Fabric:
    [region] = wired.regions
    assert region.ocs is not None
    ocs = replace(region.ocs, control=replace(OcsControl(), **settings))  # type: ignore[arg-type]
    return replace(wired, regions=(replace(region, ocs=ocs),))


def test_period_is_less_than_a_second_with_the_silence() -> None:
    wired = fabric(2, 2)
    assert check_period_s(wired, wired.regions[0]) + SILENT_S < 1
    dilated = replace(wired, scale=Scale(dilation=10))
    assert check_period_s(dilated, wired.regions[0]) == 5.0


def test_no_period_without_checks() -> None:
    wired = with_control(fabric(2, 2), light_check_ns=0)
    assert check_period_s(wired, wired.regions[0]) == 0


def test_large_fabric_sends_no_more_frames() -> None:
    wired = fabric(1, 6, regions=(64,) * 8)
    fibres = 64 * 8 * wired.optical
    assert fibres / check_period_s(wired, wired.regions[0]) == pytest.approx(MOST_FRAMES)
