"""Iterations of all regions in lockstep, in memory: order, waits, hidden work and times."""

from collections.abc import Callable
from concurrent.futures import Executor as ThreadExecutor
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import AgentError
from moefabric.core.flows import FlowRecord
from moefabric.core.server_paths import ServerPaths
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, Instruments, RunSettings
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.policy import EpsOnly, Policy
from moefabric.planner.sending.flow_pacing import LEAST_HEADROOM
from moefabric.results.records.counted_traffic import CountedTraffic
from moefabric.results.records.records import RunFailures
from moefabric.results.verdict.iteration_outcome import outcomes_of
from moefabric.results.verdict.measurements import FabricMeasurements
from moefabric.workload.iterations.iteration import Collective, Compute, Operation, Reconfigure
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    SERVERS,
    TENTH,
    ImmediateExecutor,
    MemoryAgents,
    MemoryController,
    VirtualClock,
    VirtualTimeExecutor,
    demand,
    instruments_in_memory,
)
from tests.support.observers import observer

MS = 1_000_000
NEAR = 1000
"""Rounding to whole nanoseconds and bytes."""


NEIGHBOURS, CROSSED, NOTHING = demand((0, 1), (2, 3)), demand((0, 2), (1, 3)), demand()
ATTENTION = Compute("attention", "forward", 0, (0.010,) * 4)
DISPATCH = Collective("dispatch", "forward", 0, NEIGHBOURS)
COMBINE = Collective("combine", "forward", 0, NEIGHBOURS.combine())


class Bench:
    """Servers of one optical and one electrical NIC in memory; `announced` is the progress."""

    def __init__(
        self, wired: Fabric | None = None, policy: Policy | None = None, *, paced: bool = True
    ) -> None:
        self.fabric, self.clock = wired or fabric(1, 1), VirtualClock()
        self.policy: Policy = policy or MIXNET
        self.controller = MemoryController(self.fabric, self.policy, self.clock)
        self.agents = MemoryAgents(self.fabric, lambda: self.controller.lit, self.clock)
        self.announced: list[str] = []
        self.paced = paced
        self.executor = self.make_executor(ImmediateExecutor())

    def make_executor(self, background: ThreadExecutor) -> Executor:
        return Executor(
            self.fabric,
            self.policy,
            self.agents,
            {"r0": self.controller} if self.fabric.optical else {},
            CircuitSet(),
            settings=RunSettings(
                paced=self.paced, arming_ns=6_000_000, control=ControlSettings(control_s=0.0)
            ),
            instruments=instruments_in_memory(self.clock, background),
            observer=observer(collective_ended=self.announced.append),
        )


def test_forward_pass_waits_for_circuits_between_gate_and_dispatch() -> None:
    run = Bench().executor.iteration(
        0, [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), DISPATCH]
    )
    [light], [dispatch] = run.reconfigurations, run.collectives
    assert (light.start_ns, light.end_ns) == (10 * MS, 35 * MS), (
        "25 ms of settling, after attention"
    )
    assert dispatch.start_ns == 35 * MS
    assert dispatch.harness_ns == run.harness_ns == 6 * MS, "agents are told of a common start"
    assert dispatch.end_ns == pytest.approx(135 * MS, abs=NEAR)
    assert str(light.change.after) == "s0/o0~s1/o0 s2/o0~s3/o0"


def test_slow_settling_is_not_predicted() -> None:
    """What is held against the measurement isn't taken from it."""
    slow, bench = fabric(1, 1, settle_ns=60 * MS), Bench()
    bench.controller.fabric, bench.controller.region = slow, slow.regions[0]
    run = bench.executor.iteration(0, [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), DISPATCH])
    assert run.reconfigurations[0].change.settled_s == 0.060
    [dispatch] = run.collectives
    assert (dispatch.waited_ns, dispatch.predicted_wait_s) == (60 * MS, 0.025)
    traffic = CountedTraffic(bench.fabric, [])
    measured = FabricMeasurements.of(bench.fabric, run, RunFailures(), traffic, set())
    assert list(measured.dark_time.values) == pytest.approx([60 / 25 - 1])


def test_iteration_runs_in_order_and_is_timed_as_a_whole() -> None:
    bench = Bench()
    expert = Compute("expert", "forward", 0, (0.020, 0.005, 0.005, 0.005))
    run = bench.executor.iteration(
        3, [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), DISPATCH, expert, COMBINE]
    )
    assert bench.announced == ["forward dispatch of layer 0", "forward combine of layer 0"]
    assert run.number == 3
    assert run.end_ns - run.start_ns == pytest.approx((10 + 25 + 100 + 20 + 100) * MS, abs=NEAR)
    assert run.compute_ns == 30 * MS, "the slowest server's 10 + 20 ms; what is left is exposed"
    assert bench.clock.now_ns() == run.end_ns


def test_run_waits_for_the_bytes_that_gpus_hand_over_and_predicts_it() -> None:
    """Half of a server's 8 GPUs hand their bytes to the others, in 5 ms, and get theirs in 5 ms."""
    paths, nvlink_rate_bps = ServerPaths(pcie_switches=2), 8 * TENTH / 2 / 4 / 0.005
    wired = replace(fabric(0, 1), server_paths=paths, nvlink_rate_bps=nvlink_rate_bps)
    bench = Bench(wired)
    expert = Compute("expert", "forward", 0, (0.020,) * 4)
    run = bench.executor.iteration(0, [DISPATCH, expert, COMBINE])
    dispatch, combine = run.collectives
    assert (dispatch.start_ns, dispatch.waited_ns) == (5 * MS, 0)
    assert combine.start_ns - dispatch.end_ns == (5 + 20 + 5) * MS
    assert run.end_ns - run.start_ns == pytest.approx((2 * 110 + 20) * MS, abs=NEAR)
    assert run.predicted_s == pytest.approx(0.240)
    assert [one.predicted_s for one in run.collectives] == pytest.approx([0.1, 0.1])
    [first, _] = outcomes_of(bench.fabric, [run])[0].collectives
    assert (first.pause_s, first.measured_s) == pytest.approx((0.010, 0.100), abs=1e-5)


def test_arming_hides_behind_computation() -> None:
    run = Bench().executor.iteration(
        0, [DISPATCH, Compute("expert", "forward", 0, (0.020,) * 4), COMBINE]
    )
    dispatch, combine = run.collectives
    assert combine.start_ns == dispatch.end_ns + 20 * MS


@pytest.mark.parametrize(
    ("attention_s", "starts_ms"),
    [
        pytest.param(0.040, 40, id="attention-is-longer"),
        pytest.param(0.010, 25, id="settling-is-longer"),
    ],
)
def test_backward_reconfiguration_hides_behind_attention(
    attention_s: float, starts_ms: int
) -> None:
    moving = Reconfigure("backward", 0, NEIGHBOURS)
    attention = Compute("attention", "backward", 1, (attention_s,) * 4, moving)
    run = Bench().executor.iteration(
        0, [attention, Collective("combine", "backward", 0, NEIGHBOURS)]
    )
    assert (run.reconfigurations[0].start_ns, run.reconfigurations[0].end_ns) == (0, 25 * MS)
    assert run.collectives[0].start_ns == starts_ms * MS
    assert run.compute_ns == attention_s * 1e9


def test_dark_time_is_counted_once_by_the_collective_that_waited() -> None:
    light = Reconfigure("forward", 0, NEIGHBOURS)
    run = Bench().executor.iteration(0, [light, DISPATCH, COMBINE, light, DISPATCH])
    assert [collective.dark_ns for collective in run.collectives] == [25 * MS, 0, 0]
    assert len(run.reconfigurations) == 2, "one that moves nothing was asked for, too"
    assert run.reconfigurations[1].change.before == run.reconfigurations[1].change.after


def test_new_demand_moves_circuits_and_bytes() -> None:
    crossed = Collective("dispatch", "forward", 1, CROSSED)
    operations: list[Operation] = [
        Reconfigure("forward", 0, NEIGHBOURS),
        DISPATCH,
        Reconfigure("forward", 1, CROSSED),
        crossed,
    ]
    bench = Bench()
    run = bench.executor.iteration(0, operations)
    assert str(bench.executor.circuits) == "s0/o0~s2/o0 s1/o0~s3/o0"
    for collective in run.collectives:
        assert {record.path for record in collective.records} == {"o0"}
        assert collective.predicted_s == pytest.approx(0.1)


def test_pairs_without_circuits_use_the_eps() -> None:
    run = Bench().executor.iteration(0, [DISPATCH])
    assert {(r.src, r.dst, r.path) for r in run.collectives[0].records} == {
        ("s0", "s1", "e0"),
        ("s2", "s3", "e0"),
    }


def test_fabric_without_circuits_never_waits_for_them() -> None:
    hidden = Compute(
        "attention", "backward", 0, (0.010,) * 4, Reconfigure("backward", 0, NEIGHBOURS)
    )
    operations: list[Operation] = [
        ATTENTION,
        Reconfigure("forward", 0, NEIGHBOURS),
        hidden,
        DISPATCH,
    ]
    run = Bench(fabric(0, 1), EpsOnly()).executor.iteration(0, operations)
    assert run.reconfigurations == []
    assert run.collectives[0].start_ns == 20 * MS
    assert run.collectives[0].dark_ns == 0


def test_empty_all_to_all_takes_no_time() -> None:
    run = Bench().executor.iteration(0, [Collective("dispatch", "forward", 0, NOTHING), ATTENTION])
    assert run.collectives == []
    assert run.end_ns == 10 * MS


@pytest.mark.parametrize(
    "scale", [Scale(500), Scale(500, 3), Scale(1, 2)], ids=["bytes", "both", "dilation"]
)
def test_byte_scaling_keeps_wall_times_and_dilation_stretches_them(scale: Scale) -> None:
    wired = fabric(1, 1, scale=scale, settle_ns=scale.wall_ns(25 * MS))
    run = Bench(wired).executor.iteration(
        0, [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), DISPATCH]
    )
    [dispatch] = run.collectives
    assert run.compute_ns == 10 * MS * scale.dilation
    assert dispatch.dark_ns == 25 * MS * scale.dilation
    assert dispatch.end_ns - dispatch.start_ns == pytest.approx(100 * MS * scale.dilation, rel=1e-5)
    assert dispatch.records[0].bytes == round(TENTH / scale.bytes)


def test_flows_are_paced_above_the_rate_at_which_all_end_together() -> None:
    [paced] = Bench().executor.iteration(0, [DISPATCH]).collectives
    rates_bps = [LEAST_HEADROOM * 100e9 * 1448 / 1514] * 2
    assert [r.rate_bps for r in paced.records] == pytest.approx(rates_bps, rel=1e-5)
    [greedy] = Bench(paced=False).executor.iteration(0, [DISPATCH]).collectives
    assert {r.rate_bps for r in greedy.records} == {None}


def test_only_paced_flows_are_consolidated() -> None:
    everyone = demand(*((a, b) for a in range(4) for b in range(4) if a != b))
    operations = [Collective("dispatch", "forward", 0, everyone)]
    counts = [
        len(run.records)
        for paced in (True, False)
        for run in Bench(fabric(0, 3), EpsOnly(), paced=paced)
        .executor.iteration(0, operations)
        .collectives
    ]
    assert counts == [12, 36], "one flow for each pair, or one for each of a pair's NICs"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        pytest.param(
            {("s0", "s1"): "7 of 1000 bytes arrived"},
            "forward dispatch of layer 0: s0 to s1 by e0: 7 of 1000 bytes arrived",
            id="one",
        ),
        pytest.param(
            {("s0", "s1"): "its bytes changed", ("s2", "s3"): "its bytes changed"},
            "forward dispatch of layer 0: s0 to s1 by e0: its bytes changed (and 1 more)",
            id="several",
        ),
    ],
)
def test_lost_transfer_ends_the_run_in_one_line(
    broken: dict[tuple[str, str], str], said: str
) -> None:
    bench = Bench()
    bench.agents.broken = broken
    with pytest.raises(AgentError) as error:
        bench.executor.iteration(0, [DISPATCH])
    assert str(error.value) == said
    assert bench.announced == []


def test_timeline_shows_each_server_computing_dark_and_sending() -> None:
    run = Bench().executor.iteration(
        0, [ATTENTION, Reconfigure("forward", 0, demand((0, 1))), DISPATCH]
    )
    mine = {
        server: [
            (s.kind, s.start_ns // MS, s.end_ns // MS) for s in run.spans if s.server == server
        ]
        for server in SERVERS
    }
    assert mine["s0"][:3] == [("attention", 0, 10), ("reconfiguration", 10, 35), ("dark", 10, 35)]
    assert mine["s0"][3][:2] == ("dispatch", 35)
    assert [kind for kind, _, _ in mine["s2"]] == ["attention", "dispatch"], (
        "no light of s2 or s3 moves"
    )


def test_no_byte_is_sent_during_a_hidden_reconfiguration() -> None:
    bench = Bench()
    own = VirtualClock()
    bench.controller.clock = own
    bench.executor = bench.make_executor(VirtualTimeExecutor(bench.clock, own))
    attention = Compute(
        "attention", "backward", 1, (0.001,) * 4, Reconfigure("backward", 0, NEIGHBOURS)
    )
    collective = Collective("combine", "backward", 0, NEIGHBOURS)
    run = bench.executor.iteration(0, [attention, collective])
    assert {record.path for record in run.collectives[0].records} == {"o0"}
    assert run.collectives[0].start_ns >= run.reconfigurations[0].end_ns == 25 * MS


class BackgroundThreads(ThreadPoolExecutor):
    """Threads whose work can be waited for, with the callbacks on its end."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Future[None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        reply: Future[Any] = Future()
        self.work.append(super().submit(lambda: reply.set_result(fn(*args, **kwargs))))
        return reply


class SynchronizedAgents(MemoryAgents):
    """Agents on whose virtual clock no time passes while background threads work."""

    threads: BackgroundThreads

    def wait_ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        wait(self.threads.work)
        return super().wait_ended(until_ns)


def test_reconfiguration_in_a_background_thread_is_waited_for() -> None:
    wired, clock = fabric(1, 1), VirtualClock()
    light = MemoryController(wired, MIXNET, clock)
    agents = SynchronizedAgents(wired, lambda: light.lit, clock)
    agents.threads = BackgroundThreads()
    executor = Executor(
        wired,
        MIXNET,
        agents,
        {"r0": light},
        CircuitSet(),
        settings=RunSettings(arming_ns=6_000_000, control=ControlSettings(control_s=0.0)),
        instruments=Instruments(clock=clock, background=agents.threads),
    )
    attention = Compute(
        "attention", "backward", 1, (0.001,) * 4, Reconfigure("backward", 0, NEIGHBOURS)
    )
    try:
        run = executor.iteration(0, [attention, Collective("combine", "backward", 0, NEIGHBOURS)])
    finally:
        executor.close()
    assert {record.path for record in run.collectives[0].records} == {"o0"}
    assert run.collectives[0].start_ns >= run.reconfigurations[0].end_ns == 25 * MS
