"""Experiments with the model's assumptions: calibration, TopoOpt's circuits, the 3:1 tree."""

import pytest
from moefabric_studies.grids import Grid
from moefabric_studies.paper.measures import hidden_iteration_s
from moefabric_studies.paper.results import PaperResults

from moefabric.workload.models.model import DIRECTIONS


@pytest.fixture(scope="module")
def grids(predicted: PaperResults) -> dict[str, Grid]:
    return {grid.name: grid for grid in predicted.grids}


def test_grids_are_rectangular(grids: dict[str, Grid]) -> None:
    assert len(grids) == 15
    for grid in grids.values():
        assert {len(cells) for cells in grid.rows} == {len(grid.header)}


def test_gpu_speeds_of_the_calibration_are_shown(
    predicted: PaperResults, grids: dict[str, Grid]
) -> None:
    assert {cells[0]: cells[1] for cells in grids["calibration"].rows} == {
        name: f"{calibrated.job.training.utilisation:.2f} of 312 Tflop/s"
        for name, calibrated in predicted.evaluation.calibrations.items()
    }


def test_fat_tree_column_fails_without_its_calibration(grids: dict[str, Grid]) -> None:
    inside = {cells[0]: cells[1] for cells in grids["utilisation"].rows}
    assert inside["calibrated"] == inside["null: the published fat-tree"] == "16"
    assert int(inside["0.4"]) == int(inside["0.6"]) == 8


def test_published_topoopt_lies_between_two_and_three_circuits_with_one_path(
    grids: dict[str, Grid],
) -> None:
    rows = {cells[0]: cells for cells in grids["topoopt"].rows if cells[1] == "one path"}
    for model in ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "deepseek-r1"):
        two, three, published = (float(rows[model][column]) for column in (2, 3, -1))
        assert three < published < two
    assert float(rows["qwen-moe"][-1]) < float(rows["qwen-moe"][3])


def test_published_pair_of_servers_has_two_to_three_circuits(grids: dict[str, Grid]) -> None:
    (cells,) = grids["implied-circuits"].rows
    assert all(1.8 <= float(count) <= 3.1 for count in cells[1:])


def test_paper_value_of_the_3_to_1_tree_is_between_spread_and_hashed_flows(
    grids: dict[str, Grid],
) -> None:
    ratios = {cells[0]: float(cells[2].rstrip("x")) for cells in grids["oversubscription"].rows}
    assert ratios["8 of a leaf"] < 1.0
    assert ratios["1 of a leaf"] < 1.6 < ratios["1 of a leaf, flows hashed"]


def test_no_single_assumption_gives_the_papers_ratio_at_large_batches(
    grids: dict[str, Grid],
) -> None:
    ratios = {cells[0]: cells[1:4] for cells in grids["batch"].rows}
    base = ratios["as in the tables"]
    assert len({*base}) == 1
    assert max(map(float, ratios["all computation fixed"])) < 1.75
    assert len({*ratios["2 circuits, one path"]}) == 1
    _, at_32, at_64 = map(float, ratios["2 circuits, one path, 70 % fixed"])
    assert (at_32, at_64) == pytest.approx((1.8, 2.0), abs=0.1)


def test_memory_does_not_explain_the_measured_experts(
    predicted: PaperResults, grids: dict[str, Grid]
) -> None:
    steps = {cells[:2]: cells[2:] for cells in grids["steps"].rows}
    flops, roofline = (steps["mixtral-8x7b", one] for one in ("flops", "roofline"))
    assert f"{predicted.rows('experts')[0].value:.1f}" == flops[4]
    assert float(flops[4]) < float(roofline[4]) < 1.1 * float(flops[4]) < 100
    at_8, at_16 = (row.value for row in predicted.rows("experts"))
    assert at_8
    assert at_16
    assert at_16 / at_8 == pytest.approx(2 * 989 / 312, rel=0.02)
    batch = {cells[0]: cells[1:] for cells in grids["batch"].rows}["compute: roofline"]
    assert len({*batch[:3]}) == len({*batch[3:]}) == 1


def test_sign_of_a_failed_server_is_that_of_the_backup_servers_nics(
    predicted: PaperResults, grids: dict[str, Grid]
) -> None:
    percents = {cells[0]: cells[1:] for cells in grids["failures"].rows}
    nic, gpu, server, other = percents["as in the tables"]
    rows = [f"{row.value:+.1f} %" for row in predicted.rows("failures")]
    assert rows == [nic, gpu, server, other]
    assert (server[0], other[0]) == ("-", "-")
    few = percents["backup server of 2 electrical NICs"]
    assert few[:2] == (nic, gpu)
    assert (few[2][0], few[3][0]) == ("+", "+")


def test_prices_with_copper_have_the_ratio_of_the_row(
    predicted: PaperResults, grids: dict[str, Grid]
) -> None:
    at_400 = {cells[:2]: float(cells[4]) for cells in grids["prices"].rows}
    fat_tree, mixnet = (at_400["copper to the leaves", name] for name in ("fat-tree", "mixnet"))
    (row,) = (row for row in predicted.rows("cost") if "copper" in row.name)
    assert fat_tree / mixnet == pytest.approx(row.value, abs=0.005)
    assert mixnet < at_400["optics", "mixnet"]


def test_reconfigurations_are_hidden_while_they_are_shorter_than_computation(
    predicted: PaperResults,
) -> None:
    def longer(delay_s: float) -> float:
        return hidden_iteration_s(predicted.evaluation, "mixtral-8x22b", 400e9, delay_s)

    job = predicted.evaluation.jobs["mixtral-8x22b"]
    forward, backward = (job.layer_times(directions=(one,)) for one in DIRECTIONS)
    attention_s, experts_s = backward.attention_s, forward.busiest_expert_s
    assert 0 < attention_s < experts_s
    assert longer(0.9 * attention_s) == longer(0.0)
    assert longer(experts_s) - longer(0.0) == pytest.approx(
        job.layer_passes * (experts_s - attention_s)
    )


def test_percentiles_of_optics_are_those_of_the_rows(
    predicted: PaperResults, grids: dict[str, Grid]
) -> None:
    control = {cells[0]: cells[1:] for cells in grids["control"].rows}
    mean, late = predicted.rows("links")
    assert control["NIC usable, s"][0] == f"{mean.value:.2f}"
    assert control["NIC usable, s"][-1] == f"{late.value:.2f}"
    assert list(control["NIC usable, s"][1:]) == sorted(control["NIC usable, s"][1:])


def test_degrees_and_delays_of_the_grids_are_those_of_the_rows(
    predicted: PaperResults, grids: dict[str, Grid]
) -> None:
    (cells, _) = grids["degrees"].rows
    at = dict(zip(grids["degrees"].header, cells, strict=True))
    low, _ = predicted.rows("degree")
    assert float(at["2"]) / float(at["4"]) == pytest.approx(low.value, abs=2e-3)
    blocked, hidden, diverted = grids["delays"].rows
    gain, _ = predicted.rows("delay")
    assert blocked[6] == f"{gain.value:+.1f} %"
    longest = max(float(one[6].removesuffix(" %")) for one in (hidden, diverted))
    assert longest < float(blocked[6].removesuffix(" %"))


def test_trained_mixtral_is_uneven_and_differs_by_block(grids: dict[str, Grid]) -> None:
    loads = [list(map(float, cells[1:])) for cells in grids["blocks"].rows]
    assert [cells[0] for cells in grids["blocks"].rows] == ["0", "7", "15"]
    assert all(sum(block) == pytest.approx(8, abs=0.05) for block in loads)
    assert all(1.05 < max(block) < 2.4 for block in loads)
    assert len({block.index(max(block)) for block in loads}) > 1
