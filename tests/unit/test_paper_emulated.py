"""The paper's tables from packets, in memory: what is sent stands for what is predicted, and what was measured becomes rows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.planner.plan import policy_named
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import SpecError
from moefabric.experiment.memory import AtOnce, MemoryAgents, MemoryLight, VirtualClock
from moefabric.experiment.replay import Replay
from moefabric.experiment.results import Json, result
from moefabric.experiment.sending import planned_flows
from moefabric.fluid import predict_regions
from moefabric.paper.emulated import NETWORKS as EMULATED
from moefabric.paper.emulated import Part, cells, emulated, steps
from moefabric.paper.job import Job
from moefabric.paper.network import NETWORKS, AllToAll
from moefabric.paper.page import page
from moefabric.paper.read import jobs
from moefabric.paper.scene import UnmeasuredError
from moefabric.paper.seen import Cell, Packets, Seen, better, seen
from moefabric.paper.stage import Rails, at, emulation, fabric, operations
from moefabric.paper.tables import CALIBRATED, OUTSIDE, WITHIN, Paper
from moefabric.paper.text import last, lines
from moefabric.topology import Fabric

EXAMPLES = Path(__file__).parents[2] / "examples/paper"
JOBS = jobs(EXAMPLES / "jobs.yaml")
RATE = 400e9


def wired(job: Job, network: str) -> Fabric:
    return at(fabric("t", job, emulation(job, network).wiring), job, RATE)


@pytest.mark.parametrize("network", [*EMULATED, "oversubscribed"])
@pytest.mark.parametrize("name", JOBS)
def test_what_is_sent_takes_as_long_as_the_tables_predict(name: str, network: str) -> None:
    """The flows of each network over its emulated wiring, against the formula that the predicted tables use."""
    job = JOBS[name]
    made, expected = wired(job, network), NETWORKS[network].all_to_all(job, RATE)
    policy = policy_named(emulation(job, network).policy)
    dispatch = DemandMatrix(made.servers, job.owed)
    lit = policy.circuits(made, made.regions[0], dispatch, CircuitSet()) if made.optical else CircuitSet()
    sends = Rails(job, made.servers, policy) if made.rails else policy
    for demand, seconds in ((dispatch, expected.dispatch_s), (dispatch.combine(), expected.combine_s)):
        flows = planned_flows(made, sends, demand, lit)
        assert predict_regions(made, lit, flows)["r0"].seconds == pytest.approx(seconds, rel=2e-3)


@pytest.mark.parametrize("rate", [100e9, 800e9])
def test_every_rate_is_the_same_packets(rate: float) -> None:
    """NICs keep their rate on the wire, and what a server owes is as many bytes there."""
    job = JOBS["mixtral-8x7b"]
    base = fabric("t", job, emulation(job, "mixnet").wiring)
    made, other = at(base, job, rate), at(base, job, RATE)
    assert made.scale.rate_bps(made.nic_rate_bps) == pytest.approx(base.nic_rate_bps)
    assert made.scale.size_bytes(1e9) == pytest.approx(other.scale.size_bytes(1e9), abs=1)
    assert made.scale.dilation == pytest.approx(other.scale.dilation * rate / RATE)


def replayed(job: Job, network: str, stolen: float = 0.0) -> tuple[Fabric, Json]:
    """A cell in memory; `stolen` is the part of the CPU that others have in every collective."""
    made, clock = wired(job, network), VirtualClock(10**12)
    policy = policy_named(emulation(job, network).policy)
    light = MemoryLight(made, policy, clock)
    ticks = iter(int(100 * stolen) * number for number in range(100))
    taken = ((next(ticks), 100 * number) for number in range(100))
    replay = Replay(
        made, policy, MemoryAgents(made, lambda: light.lit, clock), {"r0": light}, CircuitSet(), clock=clock,
        background=AtOnce(), stolen=lambda: next(taken),
    )  # fmt: skip
    run = replay.iteration(0, operations(job, made))
    return made, result(made, "t", network, [run], cpu_idle=[0.5], remarks=[])


def test_a_cell_is_the_mean_of_its_all_to_alls() -> None:
    job = JOBS["mixtral-8x7b"]
    _, entry = replayed(job, "mixnet")
    expected = NETWORKS["mixnet"].all_to_all(job, RATE)
    told = seen(entry, expected.circuits)
    assert told.sent.dispatch_s == pytest.approx(expected.dispatch_s, rel=1e-3)
    assert told.sent.layer_s == pytest.approx(expected.layer_s, rel=1e-3)
    assert told.fluid_s == pytest.approx(expected.layer_s, rel=2e-3)
    assert len(told.errors) == 4
    assert told.light == 1.0
    assert told.believed


def test_a_cell_that_others_disturbed_is_told_and_gives_no_errors() -> None:
    _, entry = replayed(JOBS["llama-moe"], "mixnet", stolen=0.5)
    told = seen(entry, NETWORKS["mixnet"].all_to_all(JOBS["llama-moe"], RATE).circuits)
    assert not told.believed
    assert told.errors == ()
    assert told.sent.dispatch_s > 0
    quiet = replace(told, disturbed=0.0)
    assert better(told, quiet) is quiet
    assert better(quiet, told) is quiet


# --- rows --------------------------------------------------------------------------------------------------------------


def packets(foreseen: Paper, slower: Callable[[Cell], float], *parts: str) -> Packets:
    """As if every all-to-all of these cells had taken so many times as long as predicted."""

    def one(cell: Cell) -> Seen:
        there = foreseen.scene
        named = {job.name: job for job in (*there.jobs.values(), *there.measured.values())}
        sent = NETWORKS[cell.network].all_to_all(named[cell.job], cell.rate_bps)
        longer = sent.times(slower(cell))
        errors = (slower(cell) - 1,) * 4
        return Seen(longer, sent.layer_s, errors, 0.0, 0.0, "pass", (), 0.5)

    wanted = cells(foreseen.scene, [Part.of(text) for text in parts])
    return Packets({cell: one(cell) for cell in wanted}, {1000: 0.006, 25_000_000: 0.031, 10**9: 1.006})


def test_every_row_stands_beside_its_prediction(foreseen: Paper) -> None:
    made = emulated(foreseen, packets(foreseen, lambda _: 1.0))
    assert [table.name for table in made.tables] == [
        "iteration", "efficiency", "speed", "circuits", "share", "delay", "past",
    ]  # fmt: skip
    for table in made.tables:
        for row in table.rows:
            if table.name != "delay" and "blocked" not in row.name:
                assert row.error is None or row.error == pytest.approx(0.0, abs=1e-9), row
    judged = {table.name: len(table.rows) for table in made.tables}
    assert judged == {
        "iteration": 80,
        "efficiency": 19,
        "speed": 7,
        "circuits": 1,
        "share": 3,
        "delay": 2,
        "past": 20,
    }


def test_a_longer_all_to_all_is_a_longer_iteration_and_another_verdict(foreseen: Paper) -> None:
    """Of MixNet's iteration, only the all-to-alls are measured: half as long again, they leave the band."""
    made = emulated(foreseen, packets(foreseen, lambda cell: 1.5 if cell.network == "mixnet" else 1.0))
    there, scene = {(row.name, row.on): row for row in made.tables[0].rows}, foreseen.scene
    row = there["mixnet", "llama-moe at 100Gb/s"]
    part = scene.iteration("llama-moe", "mixnet", 100e9)
    longer = (part.seconds + part.all_to_all_s / 2) / scene.calibrations["llama-moe"].unit_s
    assert row.ours == pytest.approx(longer)
    assert row.predicted == pytest.approx(part.seconds / scene.calibrations["llama-moe"].unit_s)
    assert (row.verdict, there["fat-tree", "llama-moe at 100Gb/s"].verdict) == (OUTSIDE, CALIBRATED)


def test_blocking_is_what_moving_light_was_seen_to_take(foreseen: Paper) -> None:
    made = emulated(foreseen, packets(foreseen, lambda _: 1.0))
    rows = {(row.name, row.on): row.ours for table in made.tables for row in table.rows}
    part = foreseen.scene.iteration("qwen-moe", "mixnet", RATE)
    job = foreseen.scene.jobs["qwen-moe"]
    waited = 0.031 * (job.micro_batches + job.pp - 1) * job.stage_layers
    unit = foreseen.scene.calibrations["qwen-moe"].unit_s
    assert rows["mixnet, 25 ms blocked", "qwen-moe at 400Gb/s"] == pytest.approx(
        (part.seconds + waited) / unit
    )


def test_rows_of_what_was_not_sent_are_left_out(foreseen: Paper) -> None:
    made = emulated(foreseen, packets(foreseen, lambda _: 1.0, "llama-moe@100Gb/s"))
    rows = [(table.name, row.on) for table in made.tables for row in table.rows]
    assert set(rows) == {("iteration", "llama-moe at 100Gb/s")}
    assert len(rows) == 5
    with pytest.raises(UnmeasuredError, match="llama-moe on mixnet"):
        made.scene.all_to_all("llama-moe", "mixnet", RATE)


def test_the_last_line_tells_rows_and_error(foreseen: Paper) -> None:
    sent = packets(foreseen, lambda _: 1.01, "mixtral-8x7b@400Gb/s")
    made = emulated(foreseen, sent)
    end = f"{made.within} of {len(made.judged)} rows are within their bands; completion error 1.00% in the median of 28 all-to-alls"
    assert last(made) == list(lines(made))[-1] == end
    assert {row.verdict for row in made.judged} == {WITHIN, OUTSIDE}
    broken = replace(sent, lost={Cell("mixtral-8x7b", "topoopt", RATE): "gone"})
    assert "; 1 cells ended in a fault; completion" in last(emulated(foreseen, broken))
    assert broken.invalid
    assert not sent.invalid


def test_lines_and_page_have_both_columns(foreseen: Paper) -> None:
    made = emulated(foreseen, packets(foreseen, lambda cell: 1.02 if "mixnet" in cell.network else 1.0))
    said = "\n".join(lines(made))
    assert "predicted  emulated" in said
    assert "light that settles in 25 ms carries traffic 31.00 ms after the demand came in" in said
    html = page(foreseen, made)
    assert html.count("On packets.") == 4 + 4 + 1 + 1 + 2
    assert html.count("<svg") == page(foreseen).count("<svg") + 12
    assert "emulated ones</span>" in html
    assert page(foreseen, emulated(foreseen, packets(foreseen, lambda _: 1.0, "qwen-moe@800Gb/s")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mixtral-9x9b", "--only: mixtral-9x9b at that rate is no cell; models: mixtral-8x22b, "),
        ("llama-moe@50Gb/s", "--only: llama-moe at that rate is no cell"),
        ("llama-moe@fast", "--only: 'fast' is not a quantity"),
    ],
    ids=["model", "rate-without-prices", "no-rate"],
)
def test_a_part_that_is_none_is_told(foreseen: Paper, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        cells(foreseen.scene, [Part.of(text)])


def test_the_cells_are_those_of_the_tables(foreseen: Paper) -> None:
    """16 pairs of model and rate on 6 networks, DeepSeek-R1 on 5, 3:1 where servers are under two leaves, and the production cluster."""
    wanted = cells(foreseen.scene)
    assert len(wanted) == len(set(wanted)) == 16 * 6 + 4 * 5 + 4 + 3
    assert steps(wanted, light=True) == len(wanted) + 6
    assert {cell.job for cell in cells(foreseen.scene, [Part("qwen-moe", RATE)])} == {
        "qwen-moe",
        "qwen-moe in production",
    }


def test_nothing_waits_where_nothing_moves() -> None:
    sent = Packets({}, {25_000_000: 0.031})
    assert (sent.waited_s(0.0), sent.waited_s(0.025)) == (0.0, 0.031)
    assert sent.median_error is None
    with pytest.raises(UnmeasuredError, match=r"settles in 0\.1 s"):
        sent.waited_s(0.1)


def test_an_all_to_all_of_another_rate_is_in_proportion() -> None:
    job = JOBS["deepseek-r1"]
    for network in NETWORKS.values():
        slow, fast = (network.all_to_all(job, rate) for rate in (100e9, 800e9))
        assert isinstance(slow, AllToAll)
        assert (slow.dispatch_s, slow.combine_s) == pytest.approx((8 * fast.dispatch_s, 8 * fast.combine_s))
        assert (slow.circuits == fast.circuits).all()
