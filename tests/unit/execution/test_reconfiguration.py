"""Requests to region controllers in memory: replies, timeouts, fallback and splits."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import ControlError
from moefabric.core.failures import FailurePhase
from moefabric.core.flows import Split
from moefabric.core.topology import Fabric
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.units import Scale
from moefabric.execution.clock import RunTimers
from moefabric.execution.executor import ControlSettings
from moefabric.execution.observer import RunObserver
from moefabric.execution.reconfiguration import UNDER_WAY, Reconfigurator, Reply
from moefabric.execution.region_controllers import (
    ControllerSplits,
    RegionController,
    RetriedController,
)
from moefabric.planner.horizon import UNKNOWN, Horizon
from moefabric.planner.mixnet import MIXNET, SPILL
from moefabric.prediction.control_time import CONTROL_S
from moefabric.results.records.records import CircuitChange
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    ImmediateExecutor,
    MemoryController,
    VirtualClock,
    VirtualTimeExecutor,
)
from tests.support.observers import observer

MS = 1_000_000
FABRIC = fabric(1, 1, regions=(2,))
DEMAND = DemandMatrix(FABRIC.servers, [[0.0, 1e9], [0.0, 0.0]])


class LateController(MemoryController):
    """Circuits that settle in 25 ms, and a reply some time later."""

    def __init__(self, clock: VirtualClock, late_ns: int) -> None:
        super().__init__(FABRIC, MIXNET, clock)
        self.late_ns = late_ns

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        change = super().reconfigure(demand, horizon)
        self.clock.sleep_until(self.clock.now_ns() + self.late_ns)
        return change


class LostController(LateController):
    """No circuits, and an error some time later."""

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        self.clock.sleep_until(self.clock.now_ns() + self.late_ns)
        raise ControlError("no answer")

    def ready(self, deadline_s: float) -> bool:
        return False


def reconfigurator(
    controller: RegionController,
    clock: VirtualClock,
    wired: Fabric = FABRIC,
    *,
    background: Executor | None = None,
    lit: CircuitSet | None = None,
    schedule: Callable[[int, Callable[[], object]], Callable[[], None]] | None = None,
    timeout_s: float = 1.0,
    watch: RunObserver | None = None,
) -> Reconfigurator:
    """Return the circuits of a fabric whose first region has a controller."""
    retried = RetriedController(controller, clock, timeout_s, ControllerSplits(MIXNET))
    return Reconfigurator(
        wired,
        {"r0": retried},
        lit or CircuitSet(),
        clock,
        background or ImmediateExecutor(),
        wake=lambda: None,
        schedule=schedule or RunTimers().add,
        settings=ControlSettings(timeout_s=timeout_s),
        observer=watch or RunObserver(),
    )


class Bench:
    """One region's controller, and its replies so far."""

    def __init__(
        self,
        late_ns: int,
        controller: type[LateController] = LateController,
        *,
        wired: Fabric = FABRIC,
        lit: CircuitSet | None = None,
    ) -> None:
        self.clock, own = VirtualClock(), VirtualClock()
        self.controller = controller(own, late_ns)
        self.reconfigurator = reconfigurator(
            self.controller,
            self.clock,
            wired,
            background=VirtualTimeExecutor(self.clock, own),
            lit=lit,
            schedule=self._schedule,
            timeout_s=0.1,
        )
        self.replies: list[Reply] = []

    def _schedule(self, instant_ns: int, action: Callable[[], object]) -> Callable[[], None]:
        timers = RunTimers()
        cancel = timers.add(instant_ns, action)
        self.clock.at(instant_ns, lambda: timers.fire(instant_ns))
        return cancel

    def request(self) -> None:
        self.reconfigurator.request("r0", DEMAND, self.replies.append)

    def wait(self, until_ms: int) -> None:
        self.clock.sleep_until(until_ms * MS)
        self.reconfigurator.process_replies()

    @property
    def errors(self) -> list[str]:
        return [reply.change.error for reply in self.replies]


def test_expected_time_is_that_of_the_optics_and_of_the_last_requests() -> None:
    bench = Bench(10 * MS)
    assert bench.reconfigurator.expected_s("r0", 0, 6 * MS) == pytest.approx(0.031 + CONTROL_S)
    bench.request()
    assert bench.reconfigurator.expected_s("r0", 0, 6 * MS) is None, "a request is under way"
    bench.wait(35)
    assert bench.reconfigurator.expected_s("r0", 35 * MS, 6 * MS) == pytest.approx(0.041)


def test_region_without_controller_expects_no_circuits() -> None:
    two = fabric(1, 1, regions=(2, 2))
    clock = VirtualClock()
    circuits = reconfigurator(MemoryController(two, MIXNET, clock), clock, two)
    assert circuits.expected_s("r1", 0, 6 * MS) is None
    assert circuits.controlled(["r0", "r1"]) == ["r0"]


def test_reply_tells_the_circuits_and_their_dark_time() -> None:
    bench = Bench(10 * MS)
    bench.request()
    bench.wait(34)
    assert (bench.replies, bench.reconfigurator.pending) == ([], True)
    bench.wait(35)
    [reply] = bench.replies
    assert (reply.start_ns, reply.end_ns, reply.change.phases.settle_s) == (0, 35 * MS, 0.025)
    assert str(bench.reconfigurator.circuits()) == "s0/o0~s1/o0"
    assert [bench.reconfigurator.take_dark_ns("r0") for _ in range(2)] == [25 * MS, 0]


class InterruptedFuture(Future[Any]):
    """A future that is done, and whose callbacks have not been called yet."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = list[Callable[[Future[Any]], object]]()

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        self.callbacks.append(fn)


class InterruptedExecutor(Executor):
    """A thread that is interrupted between the result of its future and the callbacks."""

    def __init__(self) -> None:
        self.future = InterruptedFuture()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.future.set_result(fn(*args, **kwargs))
        return self.future


def test_reply_is_processed_once_its_time_is_known() -> None:
    clock, background, replies = VirtualClock(), InterruptedExecutor(), list[Reply]()
    circuits = reconfigurator(LateController(clock, 10 * MS), clock, background=background)
    circuits.request("r0", DEMAND, replies.append)
    circuits.process_replies()
    assert (replies, circuits.pending) == ([], True)
    for callback in background.future.callbacks:
        callback(background.future)
    circuits.process_replies()
    assert [reply.end_ns for reply in replies] == [35 * MS]


class DarkController(LateController):
    """A reply some time later: the requested circuits have no light."""

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon = UNKNOWN) -> CircuitChange:
        change = super().reconfigure(demand, horizon)
        return replace(change, after=CircuitSet(), dark=change.after)


def test_timeout_names_the_circuits_that_the_late_reply_before_left_dark() -> None:
    bench = Bench(300 * MS, DarkController)
    for until_ms in (150, 400, 550):
        if not bench.reconfigurator.pending:
            bench.request()
        bench.wait(until_ms)
    late = "no light on s0/o0~s1/o0 by its last late reply"
    silent = "its controller didn't answer within 0.1 s"
    assert bench.errors == [silent, f"{silent}; {late}"]


def test_timely_reply_without_light_leaves_circuits_of_a_late_one_dark() -> None:
    bench = Bench(300 * MS, DarkController)
    for until_ms, late_ms in ((150, 300), (400, 0), (500, 0), (700, 300)):
        bench.controller.late_ns = late_ms * MS
        if not bench.reconfigurator.pending:
            bench.request()
        bench.wait(until_ms)
    assert bench.errors[1] == ""
    assert "no light on s0/o0~s1/o0" in bench.errors[2]


def test_silent_controller_times_out_and_its_late_reply_counts() -> None:
    """The timeout is 100 ms and twice the 25 that circuits need."""
    bench = Bench(300 * MS)
    bench.request()
    bench.wait(149)
    assert bench.errors == []
    assert bench.reconfigurator.waiting_for(["r0"])
    bench.wait(150)
    assert bench.errors == ["its controller didn't answer within 0.1 s"]
    assert not bench.reconfigurator.waiting_for(["r0"])
    bench.request()
    assert bench.errors[1:] == [UNDER_WAY]
    assert not bench.reconfigurator.circuits()
    bench.wait(325)
    assert bench.reconfigurator.circuits()
    pending, dark_ns = bench.reconfigurator.pending, bench.reconfigurator.take_dark_ns("r0")
    assert (len(bench.replies), pending, dark_ns) == (2, False, 0)


@pytest.mark.parametrize(
    ("controller", "late_ms", "at_last"),
    [
        pytest.param(LostController, 160, False, id="error"),
        pytest.param(LateController, 135, True, id="circuits"),
    ],
)
def test_reply_after_the_timeout_does_not_bring_the_circuits_of_before_back(
    controller: type[LateController], late_ms: int, at_last: bool
) -> None:
    """At dilation 2, the timeout of 150 ms ends after 250 ms, and the reply comes before that."""
    wired = fabric(1, 1, regions=(2,), scale=Scale(1, 2))
    bench = Bench(late_ms * MS, controller, wired=wired, lit=CircuitSet.of(["s0/o0~s1/o0"]))
    bench.request()
    for until_ms in (150, 160):
        bench.wait(until_ms)
    [timeout] = bench.replies
    assert timeout.end_ns == 250 * MS
    for at_ms in (250, 290):
        assert not bench.reconfigurator.circuits(at_ns=at_ms * MS)
    assert bool(bench.reconfigurator.circuits(at_ns=320 * MS)) == at_last


class ScriptedController:
    """A controller that replies as scripted, one word a request: `lit`, or an error.

    `ready` likewise.
    """

    def __init__(self, answers: Sequence[str], ready: Sequence[bool], lit: str = "") -> None:
        self.answers, self.readiness = list(answers), list(ready)
        self.lit = CircuitSet.of(lit.split())
        self.probes: list[float] = []

    def reconfigure(self, _demand: DemandMatrix, _horizon: Horizon) -> CircuitChange:
        word = self.answers.pop(0)
        if word == "lit":
            after = CircuitSet.of(["s0/o0~s1/o0"])
            return CircuitChange(CircuitSet(), after, ReconfigurationPhases())
        raise ControlError(word)

    def ready(self, deadline_s: float) -> bool:
        self.probes.append(deadline_s)
        return self.readiness.pop(0)

    def relied_on(self) -> CircuitSet:
        return self.lit


class StepClock(VirtualClock):
    """A clock that shows given seconds, one after the other, then the last."""

    def __init__(self, *seconds: float) -> None:
        super().__init__()
        self.seconds = list(seconds)

    def now_ns(self) -> int:
        seconds = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return round(seconds * 1e9)


def changes(
    controller: RegionController,
    requests: int,
    clock: VirtualClock | None = None,
    phases: list[FailurePhase] | None = None,
) -> list[CircuitChange]:
    """The replies to so many requests, one after the other."""
    four, clock = fabric(1, 1), clock or VirtualClock()
    heard = phases if phases is not None else []
    watch = observer(failure_logged=lambda phase, *_: heard.append(phase))
    circuits = reconfigurator(controller, clock, four, timeout_s=2.0, watch=watch)
    replies: list[Reply] = []
    for _ in range(requests):
        circuits.request("r0", DemandMatrix(four.servers, [[0.0] * 4] * 4), replies.append)
        circuits.process_replies()
    return [reply.change for reply in replies]


@pytest.mark.parametrize(
    ("answers", "ready", "after", "error", "phases"),
    [
        pytest.param(["lit"], [], "s0/o0~s1/o0", "", [], id="answers"),
        pytest.param(
            ["gone", "lit"],
            [True],
            "s0/o0~s1/o0",
            "",
            ["detected", "recovered"],
            id="is-back-in-time",
        ),
        pytest.param(
            ["silent"], [False], "no light", "silent", ["detected", "recovered"], id="stays-away"
        ),
        pytest.param(
            ["refuse", "refuse"],
            [True],
            "s2/o0~s3/o0",
            "refuse",
            ["detected", "recovered"],
            id="refuses",
        ),
    ],
)
def test_region_goes_on_whatever_its_controller_does(
    answers: list[str], ready: list[bool], after: str, error: str, phases: list[FailurePhase]
) -> None:
    controller = ScriptedController(answers, ready, lit="s2/o0~s3/o0")
    heard: list[FailurePhase] = []
    [change] = changes(controller, 1, phases=heard)
    assert (str(change.after), change.error, heard) == (after, error, phases)
    assert controller.answers == []


def test_controller_that_is_away_is_only_probed_until_it_is_back() -> None:
    controller = ScriptedController(["silent", "lit"], [False, False, True])
    errors = [change.error for change in changes(controller, 3)]
    assert errors == ["silent", "its controller doesn't answer yet", ""]
    assert controller.probes == [2.0, 0.2, 0.2]


def test_controller_that_is_back_is_not_probed_again() -> None:
    controller = ScriptedController(["silent", "lit", "lit"], [False, True])
    errors = [c.error for c in changes(controller, 3, StepClock(0.0, 0.0, 1.5, 9.0))]
    assert errors == ["silent", "", ""]
    assert controller.probes == [0.5, 0.2], "what is left of the timeout; then a probe"


def test_split_that_the_controller_planned_is_used_for_its_demand_and_circuits_alone() -> None:
    four, policy = fabric(1, 1), CountingPolicy()
    rows = [[0.0, 4e9, 1e9, 0.0], [0.0] * 4, [0.0] * 4, [0.0] * 4]
    demand = DemandMatrix(four.servers, rows)
    change = MemoryController(four, policy, VirtualClock()).reconfigure(demand, UNKNOWN)
    splits = ControllerSplits(policy)
    splits.remember(demand, change)
    policy.splits = 0
    assert splits.split(four, demand, change.after) is change.split
    assert policy.splits == 0
    splits.split(four, demand.combine(), change.after)
    splits.split(four, demand, CircuitSet())
    assert policy.splits == 2


class CountingPolicy:
    """A policy that counts its splits."""

    splits, circuits = 0, SPILL.circuits

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        self.splits += 1
        return SPILL.split(fabric, demand, circuits)
