"""Emulated tables, in memory: sent flows stand for predictions, and measurements become rows."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from moefabric_studies.paper.cell_runner import CellRunner
from moefabric_studies.paper.emulated import CellFilter, emulated_tables, select_cells, step_count
from moefabric_studies.paper.emulation_setup import (
    at_nic_rate,
    layer_operations,
    network_emulation,
    region_fabric,
)
from moefabric_studies.paper.evaluation import UnmeasuredError
from moefabric_studies.paper.job import PaperJob
from moefabric_studies.paper.loader import load_jobs
from moefabric_studies.paper.measurements import (
    Cell,
    CellMeasurement,
    Measurements,
    WaitTimes,
    cell_measurement,
    less_disturbed,
)
from moefabric_studies.paper.network import NETWORKS, AllToAll
from moefabric_studies.paper.page import page
from moefabric_studies.paper.results import PaperResults
from moefabric_studies.paper.rows import CALIBRATED, INVALID, OUTSIDE
from moefabric_studies.paper.text import summary_lines, text_lines

from moefabric.api.units import Units
from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric
from moefabric.execution.executor import Executor, Instruments
from moefabric.planner.sending.flow_pacing import planned_flows
from moefabric.results.parts import Json
from moefabric.results.progress import PlainProgressReporter
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.simulator.fluid import predict_regions
from tests.support.memory_testbed import (
    ImmediateExecutor,
    MemoryAgents,
    MemoryController,
    VirtualClock,
)
from tests.support.paths import EXAMPLES

JOBS = load_jobs(EXAMPLES / "paper/jobs.yaml")
RATE = 400e9


def scaled_fabric(job: PaperJob, network: str) -> Fabric:
    return at_nic_rate(region_fabric("t", job, network_emulation(job, network)), job, RATE)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_sent_flows_last_as_long_as_tables_predict(job: PaperJob, network: str) -> None:
    """Compares the flows over the emulated wiring with the formula of the predicted tables."""
    fabric, expected = scaled_fabric(job, network), NETWORKS[network].all_to_all(job, RATE)
    policy = policy_named(network_emulation(job, network).policy)
    dispatch = job.demand(fabric.servers)
    circuits = (
        policy.circuits(fabric, fabric.regions[0], dispatch, CircuitSet())
        if fabric.optical
        else CircuitSet()
    )
    for demand, seconds in (
        (dispatch, expected.dispatch_s),
        (dispatch.combine(job.model.combine_ratio), expected.combine_s),
    ):
        flows = planned_flows(fabric, policy, demand, circuits)
        region = predict_regions(fabric, circuits, flows)["r0"]
        assert region.seconds == pytest.approx(seconds, rel=2e-3)


@pytest.mark.parametrize("rate", [100e9, 800e9])
def test_packets_of_all_rates_are_equal(rate: float) -> None:
    job = JOBS["mixtral-8x7b"]
    base = region_fabric("t", job, network_emulation(job, "mixnet"))
    fabric, other = at_nic_rate(base, job, rate), at_nic_rate(base, job, RATE)
    assert fabric.scale.rate_bps(fabric.nic_rate_bps) == pytest.approx(base.nic_rate_bps)
    assert fabric.scale.size_bytes(1e9) == pytest.approx(other.scale.size_bytes(1e9), abs=1)
    assert fabric.scale.dilation == pytest.approx(other.scale.dilation * rate / RATE)


def result_in_memory(job: PaperJob, network: str, cpu_steal: float = 0.0) -> Json:
    """Replay a cell in memory while others use a part `cpu_steal` of the CPU."""
    fabric, clock = scaled_fabric(job, network), VirtualClock(10**12)
    policy = policy_named(network_emulation(job, network).policy)
    controller = MemoryController(fabric, policy, clock)
    ticks = ((int(100 * cpu_steal) * number, 100 * number) for number in range(100))
    agents = MemoryAgents(fabric, lambda: controller.lit, clock)
    executor = Executor(
        fabric,
        policy,
        agents,
        {"r0": controller},
        CircuitSet(),
        instruments=Instruments(
            clock=clock,
            background=ImmediateExecutor(),
            cpu_steal=lambda: next(ticks),
            counters=agents.counters,
        ),
    )
    run = executor.iteration(0, layer_operations(job, fabric))
    return fabric_result(fabric, "t", network, [run], cpu_idle=[0.5], remarks=[]).to_json()


def test_cell_measurement_is_mean_of_all_to_alls() -> None:
    job = JOBS["mixtral-8x7b"]
    expected = NETWORKS["mixnet"].all_to_all(job, RATE)
    measurement = cell_measurement(result_in_memory(job, "mixnet"), expected.circuits)
    assert measurement.all_to_all.dispatch_s == pytest.approx(expected.dispatch_s, rel=1e-3)
    assert measurement.all_to_all.layer_s == pytest.approx(expected.layer_s, rel=1e-3)
    assert measurement.fluid_layer_s == pytest.approx(expected.layer_s, rel=2e-3)
    assert len(measurement.errors) == 4
    assert measurement.bytes_by_light == 1.0
    assert measurement.is_undisturbed


def test_disturbed_cell_has_no_errors() -> None:
    job = JOBS["llama-moe"]
    result = result_in_memory(job, "mixnet", cpu_steal=0.5)
    disturbed = cell_measurement(result, NETWORKS["mixnet"].all_to_all(job, RATE).circuits)
    assert not disturbed.is_undisturbed
    assert disturbed.errors == ()
    assert disturbed.all_to_all.dispatch_s > 0
    quiet = replace(disturbed, disturbed=0.0, verdict="degraded")
    assert less_disturbed(disturbed, quiet) is quiet
    assert less_disturbed(quiet, disturbed) is quiet
    invalid = replace(quiet, verdict="invalid")
    assert less_disturbed(invalid, replace(quiet, disturbed=0.9)).verdict == "degraded"


def measurements(
    predicted: PaperResults, factor: Callable[[Cell], float], *filters: str
) -> Measurements:
    """Return measurements in which all-to-alls last `factor` times as long as predicted."""
    jobs = predicted.evaluation.jobs_by_full_name

    def measured(cell: Cell) -> CellMeasurement:
        all_to_all = NETWORKS[cell.network].all_to_all(jobs[cell.job], cell.rate_bps)
        errors = (factor(cell) - 1,) * 4
        return CellMeasurement(
            all_to_all.scaled(factor(cell)), all_to_all.layer_s, errors, 0.0, 0.0, 0.5, "pass", ()
        )

    cells = select_cells(predicted.evaluation, [CellFilter.parse(text) for text in filters])
    waits = {
        1000: WaitTimes((0.006,)),
        25_000_000: WaitTimes((0.030, 0.031, 0.050)),
        10**9: WaitTimes((1.006,)),
    }
    return Measurements({cell: measured(cell) for cell in cells}, waits)


@pytest.mark.nightly
def test_every_emulated_row_has_its_prediction(predicted: PaperResults) -> None:
    emulated = emulated_tables(predicted, measurements(predicted, lambda _: 1.0))
    for table in (*emulated.tables, emulated.aims):
        for row in table.rows:
            if table.name != "delay" and "blocked" not in row.name:
                assert row.error is None or row.error == pytest.approx(0.0, abs=1e-9), row
    assert [(table.name, len(table.rows)) for table in (*emulated.tables, emulated.aims)] == [
        ("iteration", 80),
        ("efficiency", 18),
        ("speed", 8),
        ("circuits", 1),
        ("share", 6),
        ("delay", 2),
        ("aims", 20),
    ]


@pytest.mark.nightly
def test_longer_all_to_all_prolongs_iteration_and_changes_verdict(predicted: PaperResults) -> None:
    emulated = emulated_tables(
        predicted, measurements(predicted, lambda cell: 1.5 if cell.network == "mixnet" else 1.0)
    )
    rows = {(row.name, row.subject): row for row in emulated.tables[0].rows}
    row = rows["mixnet", "llama-moe at 100Gb/s"]
    iteration = predicted.evaluation.iteration("llama-moe", "mixnet", 100e9)
    unit_s = predicted.evaluation.calibrations["llama-moe"].unit_s
    assert row.value == pytest.approx((iteration.seconds + iteration.all_to_all_s / 2) / unit_s)
    assert row.predicted == pytest.approx(iteration.seconds / unit_s)
    assert row.verdict == OUTSIDE
    assert rows["fat-tree", "llama-moe at 100Gb/s"].verdict == CALIBRATED


@pytest.mark.nightly
def test_blocked_row_uses_measured_wait(predicted: PaperResults) -> None:
    emulated = emulated_tables(predicted, measurements(predicted, lambda _: 1.0))
    values = {(row.name, row.subject): row.value for table in emulated.tables for row in table.rows}
    evaluation = predicted.evaluation
    iteration, job = evaluation.iteration("qwen-moe", "mixnet", RATE), evaluation.jobs["qwen-moe"]
    waited_s = 0.031 * (job.micro_batches + job.pp - 1) * job.stage_layers
    unit_s = evaluation.calibrations["qwen-moe"].unit_s
    assert values["mixnet, 25 ms blocked", "qwen-moe at 400Gb/s"] == pytest.approx(
        (iteration.seconds + waited_s) / unit_s
    )


def test_rows_without_measurement_are_left_out(predicted: PaperResults) -> None:
    emulated = emulated_tables(
        predicted, measurements(predicted, lambda _: 1.0, "llama-moe@100Gb/s")
    )
    rows = [(table.name, row.subject) for table in emulated.tables for row in table.rows]
    assert set(rows) == {("iteration", "llama-moe at 100Gb/s")}
    assert len(rows) == 5
    with pytest.raises(UnmeasuredError, match="llama-moe on mixnet"):
        emulated.evaluation.all_to_all("llama-moe", "mixnet", RATE)


def test_summary_states_signed_error_and_lost_cells(predicted: PaperResults) -> None:
    measured = measurements(predicted, lambda _: 0.99, "mixtral-8x7b@400Gb/s")
    lines = list(summary_lines(emulated_tables(predicted, measured)))
    assert "packets: completion error p50 -1.00%, p5 -1.00%, p95 -1.00% of 32 all-to-alls" in lines
    assert not measured.is_invalid
    broken = replace(measured, lost={Cell("mixtral-8x7b", "topoopt", RATE): "gone"})
    assert "1 cells ended in an error" in summary_lines(emulated_tables(predicted, broken))
    assert broken.is_invalid


def test_value_of_an_invalid_cell_is_not_used(predicted: PaperResults) -> None:
    measured = measurements(predicted, lambda _: 1.0)
    cell = Cell("llama-moe", "mixnet", 100e9)
    late = replace(measured.cells[cell], verdict="invalid", late=0.5, reasons=("late",))
    broken = replace(measured, cells={**measured.cells, cell: late})
    emulated = emulated_tables(predicted, broken)
    rows = {(row.name, row.subject): row for row in emulated.rows("iteration")}
    row = rows["mixnet", "llama-moe at 100Gb/s"]
    assert (row.value, row.verdict) == (None, INVALID)
    assert rows["mixnet", "llama-moe at 200Gb/s"].value is not None
    efficiency = {(row.name, row.subject): row for row in emulated.rows("efficiency")}
    assert efficiency["to fat-tree lowest", "4 models at 100Gb/s"].verdict == INVALID
    assert broken.is_invalid
    assert len(broken.errors) == len(measured.errors) - 4
    text = "\n".join(text_lines(emulated))
    assert "llama-moe on mixnet at 100Gb/s: invalid: late" in text
    assert "deepseek-r1 on rail-optimised at 400Gb/s: pass" in text
    assert "qwen-moe on oversubscribed at 400Gb/s: pass" in text
    assert f"1 of {len(broken.cells)} cells are invalid; {emulated.invalid_rows} rows" in text
    assert page(predicted, emulated)


def test_waits_are_stated_as_a_distribution(predicted: PaperResults) -> None:
    measured = measurements(predicted, lambda _: 1.0, "llama-moe@100Gb/s")
    assert measured.to_json()["reconfiguration"]["0.025"] == {
        "p50_s": 0.031,
        "p95_s": pytest.approx(0.0481),
        "n": 3,
    }
    text = "\n".join(text_lines(emulated_tables(predicted, measured)))
    expected = "25 ms carry traffic after p50 31.00 ms, p95 48.10 ms (n = 3)"
    assert f"circuits that settle in {expected}" in text


@pytest.mark.nightly
def test_text_and_page_show_predicted_and_emulated_values(predicted: PaperResults) -> None:
    emulated = emulated_tables(
        predicted, measurements(predicted, lambda cell: 1.02 if "mixnet" in cell.network else 1.0)
    )
    text = "\n".join(text_lines(emulated))
    assert "predicted  emulated" in text
    html = page(predicted, emulated)
    assert html.count("Emulated.") == 4 + 4 + 1 + 1 + 2
    assert html.count("<svg") == page(predicted).count("<svg") + 12
    assert "emulated rows</span>" in html
    assert "n = 3" in html
    partial = measurements(predicted, lambda _: 1.0, "qwen-moe@800Gb/s")
    assert page(predicted, emulated_tables(predicted, partial))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixtral-9x9b", "--only: mixtral-9x9b on that .* is no cell; models: mixtral-8x22b, "),
        ("llama-moe@50Gb/s", "--only: llama-moe on that network at that rate is no cell"),
        ("llama-moe/no-tree", "networks: fat-tree, oversubscribed, "),
        ("llama-moe@fast", "--only: 'fast' is not a quantity"),
    ],
    ids=["model", "rate-without-prices", "network-of-another-model", "no-rate"],
)
def test_filter_without_cells_is_refused(predicted: PaperResults, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        select_cells(predicted.evaluation, [CellFilter.parse(text)])


def test_cells_cover_the_tables(predicted: PaperResults) -> None:
    """Five models are on 7 networks at 4 rates, and three in production."""
    cells = select_cells(predicted.evaluation)
    assert len(cells) == len(set(cells)) == 5 * 7 * 4 + 3
    chosen = ["deepseek-r1/rail-optimised@400Gb/s", "qwen-moe/oversubscribed@400Gb/s"]
    assert len(select_cells(predicted.evaluation, list(map(CellFilter.parse, chosen)))) == 2
    assert step_count(cells, waits=True) == len(cells) + 6
    filtered = select_cells(predicted.evaluation, [CellFilter("qwen-moe", RATE)])
    assert {cell.job for cell in filtered} == {"qwen-moe", "qwen-moe in production"}
    narrow = CellFilter.parse("mixtral-8x22b/oversubscribed@100Gb/s")
    assert select_cells(predicted.evaluation, [narrow]) == [
        Cell("mixtral-8x22b", "oversubscribed", 100e9)
    ]


def test_measured_wait_is_zero_without_delay() -> None:
    measured = Measurements({}, {25_000_000: WaitTimes((0.031,))})
    assert (measured.wait_s(0.0), measured.wait_s(0.025)) == (0.0, 0.031)
    assert measured.error_quantile(50) is None
    with pytest.raises(UnmeasuredError, match=r"settles in 0\.1 s"):
        measured.wait_s(0.1)


def test_cells_with_a_result_are_not_measured_again() -> None:
    cell, circuits = Cell("mixtral-8x22b", "mixnet", RATE), np.array([[0, 2], [2, 0]])
    one = CellMeasurement(
        AllToAll(0.1, 0.2, circuits), 0.6, (0.1, -0.2), 0.0, 0.01, 0.5, "pass", ("none",)
    )
    units = Units()
    units.value(str(cell), CellMeasurement, lambda: one)
    results = json.loads(json.dumps(units.results))
    runner = CellRunner(JOBS, PlainProgressReporter(), Units(results=results))
    runner.run_all([cell])  # it would need root, and a minute
    back = runner.measurements[cell]
    assert np.array_equal(back.all_to_all.circuits, circuits)
    assert (back.to_json(), back.errors) == (one.to_json(), one.errors)
