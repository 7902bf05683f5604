"""A job that loses servers, GPUs and controllers, on agents and light in memory: who takes whose place, and what it costs."""

from collections.abc import Sequence

import numpy as np
import pytest

from controller.planner.mixnet import MIXNET
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix, Placement
from moefabric.errors import AgentError, ControlError
from moefabric.experiment.enduring import Enduring
from moefabric.experiment.injecting import Injector
from moefabric.experiment.memory import AtOnce, MemoryLight, VirtualClock
from moefabric.experiment.memory_crew import MemoryCrew
from moefabric.experiment.patience import PatientLight
from moefabric.experiment.replay import Replay
from moefabric.experiment.results import Json, result
from moefabric.experiment.runs import IterationRun, Moved, Suffered
from moefabric.experiment.workload import Workload
from moefabric.failure_log import Do, Note
from moefabric.failures import Failure, How, Kind, Planned, told
from moefabric.model import Model, Training
from moefabric.records import Phases
from moefabric.topology import Eps, Fabric, Ocs, Region, Scale

MODEL = Model("tiny", layers=1, hidden=4096, ffn=64, experts=4, top_k=1, kv_hidden=64)
MS = 1_000_000


def standing_by(backups: int = 1) -> Fabric:
    """Four servers of two GPUs, one optical and one electrical NIC each, and backup servers."""
    regions = [Region("r0", 0, ("s0", "s1", "s2", "s3"), Ocs("ocs0", 4, 25 * MS))]
    if backups:
        waiting = tuple(f"s{4 + i}" for i in range(backups))
        regions.append(Region("backup", 1, waiting, None, backup=True))
    return Fabric("lab", tuple(regions), 2, 1, 1, 100e9, Eps(4 + backups), Scale())


class Bench:
    """A job of four ranks of two GPUs, one a server, that all send each other the same."""

    def __init__(self, failures: Sequence[Planned] = (), backups: int = 1, restore_s: float = 0.0) -> None:
        self.fabric, self.clock, own = standing_by(backups), VirtualClock(), VirtualClock()
        self.light = MemoryLight(self.fabric, MIXNET, self.clock)
        self.crew = MemoryCrew(self.fabric, lambda: self.light.lit, self.clock)
        self.notes: list[Note] = []
        training = Training(4, 2, 4096, 8, 1e15, 0.5)
        work = Workload(
            MODEL,
            training,
            (Placement(("s0", "s1", "s2", "s3"), 4, 4),),
            np.ones((1, 1, 4, 4), dtype=np.int64),
            4,
            "even",
        )
        self.replay = Replay(
            self.fabric, MIXNET, self.crew, {"r0": self.light}, CircuitSet(), clock=self.clock, background=AtOnce(),
            arming_ns=6 * MS, stolen=lambda: (0, 0),
        )  # fmt: skip
        injector = Injector(
            failures,
            lambda failure: self.clock.at(max(own.now_ns(), self.clock.now_ns()), lambda: self._break(failure)),
            self._mend,
            own, self.fabric.scale, AtOnce(),
        )  # fmt: skip
        self.job = Enduring(self.replay, work, self.crew, injector, restore_s, self._seen)

    def run(self, iterations: int) -> list[IterationRun]:
        """So many iterations."""
        return [self.job.iteration(number) for number in range(iterations)]

    def result(self, runs: Sequence[IterationRun]) -> Json:
        """What a run says of them."""
        clock = self.replay.clock
        felt = Suffered(tuple(told(self.notes)), tuple(self.job.windows), clock.wall_was_ns, clock.was_ns)
        return result(self.fabric, "mixnet", "mixnet", runs, cpu_idle=[0.5], remarks=[], suffered=felt)

    def _break(self, failure: Failure) -> None:
        self.crew.die(*failure.what)
        self.notes.append(Note(self.clock.now_ns(), "inject", failure.kind, failure.what))

    def _mend(self, failure: Failure) -> None:
        self.crew.live(*failure.what)
        self.notes.append(Note(self.clock.now_ns(), "clear", failure.kind, failure.what))

    def _seen(self, do: Do, kind: str, what: Sequence[str], why: str) -> None:
        self.notes.append(Note(self.clock.now_ns(), do, kind, tuple(what), why))


def breaks(kind: Kind, *what: str, clear: int | None = 2) -> Planned:
    """5 ms into the second collective of iteration 1."""
    return Planned(Failure(kind, what), 1, 1, 5 * MS, clear)


def servers_of(run: IterationRun) -> set[str]:
    return {name for c in run.collectives for r in c.records for name in (r.src, r.dst)}


def test_a_lost_server_is_replaced_over_the_eps_and_gets_its_place_back() -> None:
    bench = Bench([breaks(Kind.SERVER, "s3")])
    healthy, broken, mended = bench.run(3)
    assert servers_of(healthy) == servers_of(mended) == {"s0", "s1", "s2", "s3"}
    assert servers_of(broken) == {"s0", "s1", "s2", "s4"}
    by = {r.path for c in broken.collectives for r in c.records if "s4" in (r.src, r.dst)}
    assert by == {"e0"}, "a backup server has no light"
    assert all("s3" not in c.pair for r in broken.reconfigurations for c in r.moved.after), "nor has the lost"
    assert (broken.retried, healthy.retried) == (12, 0), "all pairs of the collective in which it died"


def test_a_lost_server_costs_what_was_done_and_the_silence_until_it_is_noticed() -> None:
    bench = Bench([breaks(Kind.SERVER, "s3")])
    healthy, broken, mended = bench.run(3)
    assert broken.lost_ns > 2_000_000_000
    assert broken.end_ns - broken.start_ns > healthy.end_ns - healthy.start_ns + 2_000_000_000
    assert mended.lost_ns == 0
    [failure] = bench.result([healthy, broken, mended])["failures"]
    assert (failure["kind"], failure["what"], failure["iteration"], failure["ok"]) == (
        "server",
        ["s3"],
        1,
        True,
    )
    assert failure["detected_s"] == pytest.approx(2.0)
    assert failure["recovered_s"] == pytest.approx(2.0)
    assert failure["action"] == "s3 by s4; the iteration starts anew"
    assert {lane["server"] for lane in failure["lanes"]} == {"s3", "s4"}


def test_a_lost_gpu_of_a_rank_is_heard_of_at_once_and_its_partial_sums_cross_servers() -> None:
    bench = Bench([breaks(Kind.GPU, "s1/1")])
    healthy, broken, mended = bench.run(3)
    kinds = [c.operation.kind for c in broken.collectives]
    assert kinds.count("tensor") == 4
    tensor = next(c for c in broken.collectives if c.operation.kind == "tensor")
    assert {(r.src, r.dst) for r in tensor.records} == {("s1", "s4"), ("s4", "s1")}
    assert "tensor" not in [c.operation.kind for c in (*healthy.collectives, *mended.collectives)]
    [failure] = bench.result([healthy, broken, mended])["failures"]
    assert failure["detected_s"] == failure["recovered_s"] == 0.0
    assert bench.crew.mended == 1, "connections in mid-transfer go with what is abandoned"
    assert broken.retried == 12


def test_a_checkpoint_takes_its_time_to_load() -> None:
    plain, loading = Bench([breaks(Kind.GPU, "s1/1")]), Bench([breaks(Kind.GPU, "s1/1")], restore_s=3.0)
    took = [run.end_ns - run.start_ns for bench in (plain, loading) for run in bench.run(2)[1:]]
    assert took[1] - took[0] == 3_000_000_000
    assert loading.notes[-1].why.endswith("starts anew after 3 s of loading a checkpoint")


def test_bytes_that_were_sent_in_vain_are_retried_not_lost() -> None:
    bench = Bench([breaks(Kind.SERVER, "s3")])
    said = bench.result(bench.run(3))
    assert said["integrity"]["lost_transfers"] == 0
    assert said["integrity"]["bytes_sent"] == said["integrity"]["bytes_received"]
    assert said["integrity"]["retried_transfers"] == 12
    assert said["fidelity"]["verdict"] == "pass"


def test_where_nobody_can_take_a_place_the_run_ends_in_one_line() -> None:
    with pytest.raises(
        AgentError, match="server s3 is lost and the fabric has no backup server: give it some"
    ):
        Bench([breaks(Kind.SERVER, "s3")], backups=0).run(2)


def test_a_stand_in_that_dies_too_is_replaced_by_another() -> None:
    bench = Bench(
        [breaks(Kind.SERVER, "s3", clear=None), Planned(Failure(Kind.SERVER, ("s4",)), 2, 0, MS)], backups=2
    )
    runs = bench.run(3)
    assert [servers_of(run) - {"s0", "s1", "s2"} for run in runs] == [{"s3"}, {"s4"}, {"s5"}]


def test_a_server_that_dies_while_another_is_being_missed_is_replaced_too() -> None:
    """The loss names the first; the second is missed when connections are to be opened again."""
    second = Planned(Failure(Kind.SERVER, ("s2",)), 1, 1, 1000 * MS)
    bench = Bench([breaks(Kind.SERVER, "s3", clear=None), second], backups=2)
    assert servers_of(bench.run(2)[1]) == {"s0", "s1", "s4", "s5"}
    assert [(note.do, note.what) for note in bench.notes if note.do != "inject"] == [
        ("detected", ("s3",)),
        ("detected", ("s2",)),
        ("recovered", ("s2", "s3")),
    ]


def test_what_fails_between_collectives_is_found_by_the_next_one() -> None:
    bench = Bench([Planned(Failure(Kind.SERVER, ("s2",)), 1)])
    assert servers_of(bench.run(2)[1]) == {"s0", "s1", "s3", "s4"}


def test_a_failure_strikes_once_though_its_iteration_starts_anew() -> None:
    bench = Bench([breaks(Kind.GPU, "s1/1")])
    bench.run(2)
    assert [note.do for note in bench.notes] == ["inject", "detected", "recovered"]
    assert bench.replay.clock.held == 0, "long waits are skipped again"


def test_collectives_that_felt_a_failure_are_told_not_judged() -> None:
    bench = Bench()
    bench.run(1)
    bench.notes.append(Note(bench.clock.now_ns(), "inject", "nic", ("s0/e0",)))
    said = bench.result(bench.run(2))
    assert {(c["iteration"], tuple(c["failures"])) for c in said["collectives"]} == {(0, (0,)), (1, (0,))}
    assert said["fidelity"]["reasons"] == ("no collective was measured",)


def test_a_job_warms_up_with_those_that_are_there() -> None:
    bench = Bench()
    bench.crew.die("s3")
    bench.crew.leave(["s3"])
    bench.job.warm_up()
    assert bench.crew.lost() == (frozenset(["s3"]), frozenset())
    assert servers_of(bench.run(1)[0]) == {"s0", "s1", "s2", "s4"}


class Fickle:
    """A controller that answers as it is told to, one word a time it is asked: `lit`, `refuse`, `silent`; it is ready after that, or not."""

    def __init__(self, answers: Sequence[str], ready: Sequence[bool], lit: str = "") -> None:
        self.answers, self.readiness, self.lit = list(answers), list(ready), CircuitSet.of(lit.split())
        self.looked: list[float] = []

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        word = self.answers.pop(0)
        if word == "lit":
            return Moved(CircuitSet(), CircuitSet.of(["s0/o0~s1/o0"]), Phases())
        raise ControlError(word)

    def ready(self, deadline_s: float) -> bool:
        self.looked.append(deadline_s)
        return self.readiness.pop(0)

    def relied_on(self) -> CircuitSet:
        return self.lit


DEMAND = DemandMatrix(("s0", "s1"), [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("answers", "ready", "after", "why", "seen"),
    [
        pytest.param(["lit"], [], "s0/o0~s1/o0", "", [], id="answers"),
        pytest.param(
            ["gone", "lit"], [True], "s0/o0~s1/o0", "", ["detected", "recovered"], id="is-back-in-time"
        ),
        pytest.param(["silent"], [False], "no light", "silent", ["detected", "recovered"], id="stays-away"),
        pytest.param(
            ["refuse", "refuse"], [True], "s2/o0~s3/o0", "refuse", ["detected", "recovered"], id="refuses"
        ),
    ],
)
def test_a_region_goes_on_whatever_its_controller_does(
    answers: list[str], ready: list[bool], after: str, why: str, seen: list[str]
) -> None:
    told_of: list[str] = []
    controller = Fickle(answers, ready, lit="s2/o0~s3/o0")
    light = PatientLight(controller, 2.0, lambda do, _why: told_of.append(do))
    moved = light.reconfigure(DEMAND)
    assert (str(moved.after), moved.why, told_of) == (after, why, seen)
    assert controller.answers == []


def test_a_controller_that_is_away_is_only_glanced_at_until_it_is_back() -> None:
    controller = Fickle(["silent", "lit"], [False, False, True])
    light = PatientLight(controller, 2.0, glance_s=0.1, clock=lambda: 0.0)
    said = [light.reconfigure(DEMAND).why for _ in range(3)]
    assert said == ["silent", "its controller doesn't answer yet", ""]
    assert controller.looked == [2.0, 0.1, 0.1]


def test_a_stopped_controllers_region_is_on_the_eps_and_the_iteration_ends() -> None:
    bench = Bench()
    controller = Fickle(["silent", "lit"], [False, True])
    bench.replay.lighting.lights = {"r0": PatientLight(controller, 2.0)}
    [run] = bench.run(1)
    assert {r.path for c in run.collectives for r in c.records} == {"e0"}
    assert run.reconfigurations[0].why == "silent"


def test_how_a_controller_fails_is_said() -> None:
    assert str(Failure(Kind.CONTROLLER, ("r0",), How.STOP)) == "controller r0 (stopped)"


def test_a_controller_that_is_back_is_not_looked_for_again() -> None:
    controller = Fickle(["silent", "lit", "lit"], [False, True])
    light = PatientLight(controller, 2.0, clock=iter([0.0, 1.5, 9.0, 9.0]).__next__)
    whys = [light.reconfigure(DEMAND).why for _ in range(3)]
    assert whys == ["silent", "", ""]
    assert controller.looked == [0.5, 0.2], "what is left of its patience; then a glance"
