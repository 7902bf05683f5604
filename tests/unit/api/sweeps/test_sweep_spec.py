"""The sweep file: points, and all faults at once."""

from pathlib import Path
from typing import Any

import pytest

from moefabric import Sweep
from moefabric.api.sweeps.plan import plan_sweep
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.core.errors import SpecError
from tests.support.paths import EXAMPLES
from tests.support.sweep_runs import EXPERIMENT, RATES, sweep_spec

SETTLE = "wiring.regions[0].ocs.settle"


def test_points_are_the_product_of_variants_and_grid() -> None:
    spec = sweep_spec(
        grid={RATES: ["100Gb/s", "400Gb/s"], SETTLE: ["1ms", "25ms", "1s"]},
        variants=[{"name": "plain"}, {"name": "deep", "changes": {"model.layers": 2}}],
        changes={"training.iterations": 2},
    )
    points = spec.points()
    assert [point.number for point in points] == list(range(12))
    assert spec.run_count == 24
    assert spec.axes == (RATES, SETTLE, "variant")
    last = points[-1]
    assert last.values == {RATES: "400Gb/s", SETTLE: "1s", "variant": "deep"}
    expected = {"training.iterations": 2, "model.layers": 2, RATES: "400Gb/s", SETTLE: "1s"}
    assert last.changes == expected
    assert str(points[1]) == f"{RATES}=100Gb/s, {SETTLE}=25ms, variant=plain"


def test_structured_values_are_named_in_tables() -> None:
    link = {"place": "uplinks", "delay": "1ms"}
    spec = sweep_spec(grid={"wiring.eps": [{"name": "thin", "spines": 1}, {"link": link}]})
    shown = [point.values["wiring.eps"] for point in spec.points()]
    assert shown == ["thin", '{"link": {"place": "uplinks", "delay": "1ms"}}']


@pytest.mark.parametrize(
    ("keys", "faults"),
    [
        ({"grid": {RATES: []}}, [f"grid.{RATES}: at least 1 is needed"]),
        ({"grid": {"a..b": [1]}}, ["grid.a..b: isn't a place"]),
        ({"grid": {RATES: [1, 1]}}, [f"grid.{RATES}: 1 is given twice"]),
        (
            {"changes": {RATES: "1Gb/s"}, "variants": [{"name": "a", "changes": {RATES: 1}}]},
            [f"changes.{RATES}: grid has it already", f"variants[0].changes.{RATES}: grid has"],
        ),
        ({"seeds": [3, 3], "repetitions": 2}, ["seeds: 3 is given twice", "repetitions: a pred"]),
        ({"grid": {"seed": [1]}}, ["seeds: grid has the seeds already"]),
        (
            {"figures": ["error", "speed"]},
            ["figures[0]: a prediction has no", "speed is no figure"],
        ),
        ({"variants": [{"name": "a"}, {"name": "a"}]}, ["variants: 'a' is given twice"]),
        (
            {"mode": "walk", "cores": 0},
            ["mode: 'run', 'train' or 'predict'", "cores: must be at least 1"],
        ),
        ({"mode": "run", "repetitions": 1000, "seeds": list(range(99))}, ["198,000 runs are more"]),
        ({"experiment": 3}, ["experiment: text is needed"]),
        ({"seeds": [1, -1]}, ["seeds[1]: must be at least 0"]),
    ],
)
def test_faults_are_found_at_once(keys: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        sweep_spec(**keys)
    lines = str(error.value).splitlines()
    assert len(lines) == len(faults), lines
    for line, fault in zip(lines, faults, strict=True):
        assert fault in line


def test_every_experiment_is_checked_before_anything_runs(tmp_path: Path) -> None:
    spec = sweep_spec(
        grid={RATES: ["100Gb/s", "0Gb/s"], "training.ep": [8, 16], "fabrics[7].optical": [1]}
    )
    with pytest.raises(SpecError) as error:
        plan_sweep(spec, tmp_path)
    assert "fabrics[7].optical: is no place in this document" in str(error.value)
    spec = sweep_spec(grid={RATES: ["100Gb/s", "0Gb/s"], "training.ep": [8, 16]})
    with pytest.raises(SpecError) as error:
        plan_sweep(spec, tmp_path)
    rate = "wiring.nic_rate: '0Gb/s' is not a rate above zero"
    ranks = "model.experts: 8 experts don't fill 16 ranks evenly"
    gpus = "training: ep 16 x tp 4 needs 64 GPUs, 4 servers have 32, which it must fill: tp 2 does"
    first = f"{RATES}=100Gb/s, training.ep=16 and 1 more"
    assert str(error.value).splitlines() == [
        f"{first}: {ranks}",
        f"{first}: {gpus}",
        f"{RATES}=0Gb/s, training.ep=8 and 1 more: {rate}",
    ]


def test_baseline_that_is_no_fabric_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="baseline: 'esp' is not one of the fabrics: eps, mixnet"):
        plan_sweep(sweep_spec(baseline="esp"), tmp_path)


def test_same_experiment_at_two_points_is_a_fault(tmp_path: Path) -> None:
    same = [{"name": "a"}, {"name": "b", "changes": {RATES: "100Gb/s"}}]
    with pytest.raises(SpecError, match="variant=b: is the same as variant=a"):
        plan_sweep(sweep_spec(grid={}, variants=same), tmp_path)


def test_ids_depend_on_the_inputs_of_a_result(tmp_path: Path) -> None:
    first = list(plan_sweep(sweep_spec(), tmp_path).runs)
    assert len(set(first)) == 4
    assert list(plan_sweep(sweep_spec(figures=["iteration_s"], retries=3), tmp_path).runs) == first
    more = plan_sweep(sweep_spec(seeds=[1, 2, 3]), tmp_path).runs
    assert set(first) < set(more)
    changed = plan_sweep(sweep_spec(changes={"training.iterations": 2}), tmp_path).runs
    assert not set(first) & set(changed)


def test_id_follows_the_contents_of_input_files(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.json"
    matrix.write_text((EXAMPLES / "data/gating-8x8.json").read_text())
    spec = sweep_spec(experiment={**EXPERIMENT, "gating": {"matrix": "matrix.json"}}, seeds=[])
    first = plan_sweep(spec, tmp_path)
    assert len(first.archives) == 1
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    matrix.rename(elsewhere / "matrix.json")
    assert list(plan_sweep(spec, elsewhere).runs) == list(first.runs)
    (elsewhere / "matrix.json").write_text((EXAMPLES / "data/gating-8x8.json").read_text() + " ")
    assert not set(plan_sweep(spec, elsewhere).runs) & set(first.runs)


def test_id_follows_the_code_of_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module, fabric = tmp_path / "swept_policy.py", EXPERIMENT["fabrics"][-1]
    module.write_text("from moefabric.planner.static import STATIC\n")
    fabric = {**fabric, "policy": "swept_policy:STATIC"}
    spec = sweep_spec(experiment={**EXPERIMENT, "fabrics": [fabric]}, seeds=[])
    first = list(plan_sweep(spec, tmp_path).runs)
    assert list(plan_sweep(spec, tmp_path).runs) == first
    module.write_text("from moefabric.planner.static import STATIC  # faster\n")
    assert not set(plan_sweep(spec, tmp_path).runs) & set(first)


def training_sweep(folder: Path, text: str = "") -> SweepSpec:
    program = {"program": "job/train.py", "hidden": 8, "sequence": 8, "batch": 1}
    (folder / "job").mkdir(exist_ok=True)
    (folder / "job/train.py").write_text(text)
    return sweep_spec(mode="train", experiment={**EXPERIMENT, "train": program}, seeds=[])


def test_program_of_a_training_stays_in_its_folder_and_decides_the_id(tmp_path: Path) -> None:
    first = plan_sweep(training_sweep(tmp_path), tmp_path)
    for run in first.runs.values():
        assert run.task.mode == "train"
        assert run.task.document["train"]["program"] == str(tmp_path / "job/train.py")
        assert run.task.needs.memory_bytes > 8 * 400e6
    assert list(plan_sweep(training_sweep(tmp_path), tmp_path).runs) == list(first.runs)
    changed = plan_sweep(training_sweep(tmp_path, "print()"), tmp_path)
    assert not set(changed.runs) & set(first.runs)


def test_program_of_a_run_travels_with_it(tmp_path: Path) -> None:
    spec = training_sweep(tmp_path).model_copy(update={"mode": "run"})
    plan = plan_sweep(spec, tmp_path)
    (program,) = {run.task.document["train"]["program"] for run in plan.runs.values()}
    digest, name = program.split("/")
    assert digest in plan.archives
    assert name == "train.py"


def test_training_without_a_program_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="train: is missing: it names the program that trains"):
        plan_sweep(sweep_spec(mode="train"), tmp_path)
    spec = training_sweep(tmp_path)
    (tmp_path / "job/train.py").unlink()
    with pytest.raises(SpecError, match=r"train\.program: .*train\.py: No such file"):
        plan_sweep(spec, tmp_path)


def test_missing_input_file_is_a_fault(tmp_path: Path) -> None:
    spec = sweep_spec(experiment={**EXPERIMENT, "gating": {"matrix": "none.json"}})
    with pytest.raises(SpecError, match=r"none.json: No such file"):
        plan_sweep(spec, tmp_path)


@pytest.mark.parametrize(
    ("keys", "cores"),
    [
        ({}, 1),
        ({"mode": "run"}, 2),
        ({"mode": "run", "cores": 3}, 3),
        ({"mode": "run", "changes": {"scale": {"bytes": 100}}}, 2),
        ({"mode": "run", "changes": {"scale": {"bytes": 10000}}}, 1),
    ],
)
def test_cores_of_a_run_follow_its_scale(keys: dict[str, Any], cores: int, tmp_path: Path) -> None:
    plan = plan_sweep(sweep_spec(**keys, grid={}), tmp_path)
    assert {run.task.needs.cores for run in plan.runs.values()} == {cores}


@pytest.mark.parametrize("name", ["nic-rates", "settle"])
def test_examples_are_valid(name: str) -> None:
    spec = Sweep.load(EXAMPLES / "sweep" / f"{name}.yaml").spec
    assert plan_sweep(spec, EXAMPLES / "sweep").runs
