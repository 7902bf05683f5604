"""The replay of an iteration, on agents and light in memory: what comes after what, what waits, what hides, and what it costs."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from controller.planner.eps import EpsOnly
from controller.planner.mixnet import MIXNET
from controller.planner.policy import Policy
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import AgentError
from moefabric.experiment.memory import AtOnce, MemoryAgents, MemoryLight, VirtualClock
from moefabric.experiment.replay import Replay
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.topology import Fabric, Scale
from tests.fabrics import fabric

MS = 1_000_000
NEAR = 1000
"""Rounding to whole nanoseconds and bytes."""
SERVERS = ("s0", "s1", "s2", "s3")
TENTH = 0.1 * 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in 100 ms."""


def demand(*pairs: tuple[int, int]) -> DemandMatrix:
    """A tenth of a second of bytes between each of these pairs of servers."""
    rows = [[0.0] * 4 for _ in range(4)]
    for a, b in pairs:
        rows[a][b] = TENTH
    return DemandMatrix(SERVERS, rows)


NEIGHBOURS, CROSSED, NOTHING = demand((0, 1), (2, 3)), demand((0, 2), (1, 3)), demand()
ATTENTION = Compute("attention", "forward", 0, (0.010,) * 4)
DISPATCH = Collective("dispatch", "forward", 0, NEIGHBOURS)
COMBINE = Collective("combine", "forward", 0, NEIGHBOURS.combine())


class Bench:
    """A fabric of one optical and one electrical NIC a server, in memory, with what its replay announces."""

    def __init__(
        self,
        made: Fabric | None = None,
        policy: Policy | None = None,
        *,
        paced: bool = True,
        background: Executor | None = None,
    ) -> None:
        self.fabric, self.clock = made or fabric(1, 1), VirtualClock()
        self.policy: Policy = policy or MIXNET
        self.light = MemoryLight(self.fabric, self.policy, self.clock)
        self.agents = MemoryAgents(self.fabric, lambda: self.light.lit, self.clock)
        self.announced: list[str] = []
        self.replay = Replay(
            self.fabric, self.policy, self.agents, {"r0": self.light} if self.fabric.optical else {}, CircuitSet(),
            paced=paced, clock=self.clock, background=background or AtOnce(), arming_ns=6_000_000, stolen=lambda: (0, 0), progress=self.announced.append,
        )  # fmt: skip


def test_the_forward_pass_waits_for_light_between_the_gate_and_dispatch() -> None:
    run = Bench().replay.iteration(0, [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), DISPATCH])
    [light], [dispatch] = run.reconfigurations, run.collectives
    assert (light.start_ns, light.end_ns) == (10 * MS, 35 * MS), "25 ms of settling, after attention"
    assert dispatch.start_ns == 41 * MS, "and 6 ms in which the agents are told of a common start"
    assert dispatch.end_ns == pytest.approx(141 * MS, abs=NEAR)
    assert str(light.moved.after) == "s0/o0~s1/o0 s2/o0~s3/o0"


def test_light_that_is_slower_than_its_switch_should_be_is_not_foreseen() -> None:
    """What is held against the measurement isn't taken from it."""
    slow, bench = fabric(1, 1, settle_ns=60 * MS), Bench()
    bench.replay.lighting.lights = {"r0": MemoryLight(slow, MIXNET, bench.clock)}
    run = bench.replay.iteration(0, [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), DISPATCH])
    assert run.reconfigurations[0].moved.phases.settle_s == 0.060
    [dispatch] = run.collectives
    assert (dispatch.waited_ns, dispatch.expected_wait_s) == (66 * MS, 0.025)


def test_an_iteration_is_run_in_order_and_timed_as_a_whole() -> None:
    bench = Bench()
    expert = Compute("expert", "forward", 0, (0.020, 0.005, 0.005, 0.005))
    run = bench.replay.iteration(
        3, [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), DISPATCH, expert, COMBINE]
    )
    assert bench.announced == ["forward dispatch of layer 0", "forward combine of layer 0"]
    assert run.number == 3
    assert run.end_ns - run.start_ns == pytest.approx((10 + 25 + 6 + 100 + 20 + 100) * MS, abs=NEAR)
    assert run.compute_ns == 30 * MS, "the slowest server's 10 + 20 ms; what is left is exposed"
    assert bench.clock.now_ns() == run.end_ns


def test_telling_the_agents_hides_behind_computation() -> None:
    run = Bench().replay.iteration(0, [DISPATCH, Compute("expert", "forward", 0, (0.020,) * 4), COMBINE])
    dispatch, combine = run.collectives
    assert combine.start_ns == dispatch.end_ns + 20 * MS


@pytest.mark.parametrize(
    ("attention_s", "starts_ms"),
    [pytest.param(0.040, 40, id="attention-is-longer"), pytest.param(0.010, 25 + 6, id="settling-is-longer")],
)
def test_in_the_backward_pass_light_moves_behind_attention(attention_s: float, starts_ms: int) -> None:
    moving = Reconfigure("backward", 0, NEIGHBOURS)
    attention = Compute("attention", "backward", 1, (attention_s,) * 4, moving)
    run = Bench().replay.iteration(0, [attention, Collective("combine", "backward", 0, NEIGHBOURS)])
    assert (run.reconfigurations[0].start_ns, run.reconfigurations[0].end_ns) == (0, 25 * MS)
    assert run.collectives[0].start_ns == starts_ms * MS
    assert run.compute_ns == attention_s * 1e9


def test_dark_time_is_counted_once_by_the_collective_that_waited_for_it() -> None:
    light = Reconfigure("forward", 0, NEIGHBOURS)
    run = Bench().replay.iteration(0, [light, DISPATCH, COMBINE, light, DISPATCH])
    assert [collective.dark_ns for collective in run.collectives] == [25 * MS, 0, 0]
    assert len(run.reconfigurations) == 2, "one that moves nothing was asked for, too"
    assert run.reconfigurations[1].moved.before == run.reconfigurations[1].moved.after


def test_new_demand_moves_the_light_and_the_bytes_with_it() -> None:
    crossed = Collective("dispatch", "forward", 1, CROSSED)
    operations: list[Operation] = [
        Reconfigure("forward", 0, NEIGHBOURS),
        DISPATCH,
        Reconfigure("forward", 1, CROSSED),
        crossed,
    ]
    bench = Bench()
    run = bench.replay.iteration(0, operations)
    assert str(bench.replay.circuits) == "s0/o0~s2/o0 s1/o0~s3/o0"
    for collective in run.collectives:
        assert {record.path for record in collective.records} == {"o0"}
        assert collective.prediction.seconds == pytest.approx(0.1)


def test_what_has_no_light_goes_by_the_eps_in_the_same_time() -> None:
    run = Bench().replay.iteration(0, [DISPATCH])
    assert {(r.src, r.dst, r.path) for r in run.collectives[0].records} == {
        ("s0", "s1", "e0"),
        ("s2", "s3", "e0"),
    }


def test_a_fabric_without_light_never_waits_for_any() -> None:
    hidden = Compute("attention", "backward", 0, (0.010,) * 4, Reconfigure("backward", 0, NEIGHBOURS))
    operations: list[Operation] = [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), hidden, DISPATCH]
    run = Bench(fabric(0, 1), EpsOnly()).replay.iteration(0, operations)
    assert run.reconfigurations == []
    assert run.collectives[0].start_ns == 20 * MS
    assert run.collectives[0].dark_ns == 0


def test_an_all_to_all_in_which_nobody_owes_anything_takes_no_time() -> None:
    run = Bench().replay.iteration(0, [Collective("dispatch", "forward", 0, NOTHING), ATTENTION])
    assert run.collectives == []
    assert run.end_ns == 10 * MS


@pytest.mark.parametrize("scale", [Scale(500), Scale(500, 3), Scale(1, 2)], ids=["bytes", "both", "dilation"])
def test_scaling_bytes_leaves_wall_times_and_dilation_stretches_them(scale: Scale) -> None:
    made = fabric(1, 1, scale=scale, settle_ns=scale.wall_ns(25 * MS))
    run = Bench(made).replay.iteration(0, [ATTENTION, Reconfigure("forward", 0, NEIGHBOURS), DISPATCH])
    [dispatch] = run.collectives
    assert run.compute_ns == 10 * MS * scale.dilation
    assert dispatch.dark_ns == 25 * MS * scale.dilation
    assert dispatch.end_ns - dispatch.start_ns == pytest.approx(100 * MS * scale.dilation, rel=1e-5)
    assert dispatch.records[0].bytes == round(TENTH / scale.bytes)


def test_flows_are_paced_a_little_above_the_rate_at_which_all_end_together() -> None:
    [paced] = Bench().replay.iteration(0, [DISPATCH]).collectives
    assert [r.rate_bps for r in paced.records] == pytest.approx([1.03 * 100e9 * 1448 / 1514] * 2)
    [greedy] = Bench(paced=False).replay.iteration(0, [DISPATCH]).collectives
    assert {r.rate_bps for r in greedy.records} == {None}


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
def test_a_lost_transfer_ends_the_run_in_one_line(broken: dict[tuple[str, str], str], said: str) -> None:
    bench = Bench()
    bench.agents.broken = broken
    with pytest.raises(AgentError) as told:
        bench.replay.iteration(0, [DISPATCH])
    assert str(told.value) == said
    assert bench.announced == []


def test_a_picture_shows_each_server_computing_dark_and_sending() -> None:
    run = Bench().replay.iteration(0, [ATTENTION, Reconfigure("forward", 0, demand((0, 1))), DISPATCH])
    mine = {
        server: [(s.kind, s.start_ns // MS, s.end_ns // MS) for s in run.spans if s.server == server]
        for server in SERVERS
    }
    assert mine["s0"][:3] == [("attention", 0, 10), ("reconfiguration", 10, 35), ("dark", 10, 35)]
    assert mine["s0"][3][:2] == ("dispatch", 41)
    assert [kind for kind, _, _ in mine["s2"]] == ["attention", "dispatch"], "no light of s2 or s3 moves"


class WhenAsked(Executor):
    """Does what it was given when its result is asked for, and never otherwise."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        class Later(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                return fn(*args, **kwargs)

        return Later()


def test_no_byte_is_sent_while_hidden_light_still_moves() -> None:
    bench = Bench(background=WhenAsked())
    attention = Compute("attention", "backward", 1, (0.001,) * 4, Reconfigure("backward", 0, NEIGHBOURS))
    run = bench.replay.iteration(0, [attention, Collective("combine", "backward", 0, NEIGHBOURS)])
    assert {record.path for record in run.collectives[0].records} == {"o0"}


def test_light_that_moves_in_a_thread_of_its_own_is_waited_for() -> None:
    made, clock = fabric(1, 1), VirtualClock()
    light = MemoryLight(made, MIXNET, clock)
    replay = Replay(
        made,
        MIXNET,
        MemoryAgents(made, lambda: light.lit, clock),
        {"r0": light},
        CircuitSet(),
        clock=clock,
        arming_ns=6_000_000,
    )
    attention = Compute("attention", "backward", 1, (0.001,) * 4, Reconfigure("backward", 0, NEIGHBOURS))
    try:
        run = replay.iteration(0, [attention, Collective("combine", "backward", 0, NEIGHBOURS)])
    finally:
        replay.close()
    assert {record.path for record in run.collectives[0].records} == {"o0"}
    assert run.collectives[0].start_ns >= run.reconfigurations[0].end_ns == 25 * MS
