"""A file of another kind names the command that takes it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from moefabric.api.result import Result
from moefabric.api.sweep import Sweep
from moefabric.config.demand_file import read_demand
from moefabric.config.hosts import hosts_of_file
from moefabric.config.loader import load_experiment, load_fabric
from moefabric.config.model import load_model
from moefabric.core.errors import SpecError
from moefabric.execution.programs.perf import PerfResult
from moefabric.execution.programs.replay import ReplayResult
from moefabric.traces.formats import trace_reader
from tests.support.paths import EXAMPLES, GOLDEN

EXPERIMENT = EXAMPLES / "prototype.yaml"
FABRIC = EXAMPLES / "fabric.yaml"
SWEEP = EXAMPLES / "sweep/settle.yaml"
RESULT = GOLDEN / "report/sample.json"
AN_EXPERIMENT = "describes an experiment, which `moefabric run` takes"
A_SWEEP = "describes a sweep, which `moefabric sweep` takes"
A_RESULT = "is the result of a run, which `moefabric report` takes"
MISTAKES: list[tuple[Callable[[Path], object], Path, str]] = [
    (load_experiment, SWEEP, f"{A_SWEEP}; an experiment is needed"),
    (load_experiment, RESULT, f"{A_RESULT}; an experiment is needed"),
    (load_experiment, EXAMPLES / "real-hosts/hosts.yaml", "lists hosts, which `moefabric run"),
    (load_fabric, SWEEP, f"{A_SWEEP}; a fabric is needed"),
    (load_fabric, RESULT, f"{A_RESULT}; a fabric is needed"),
    (Sweep.load, EXPERIMENT, f"{AN_EXPERIMENT}; a sweep is needed"),
    (Sweep.load, FABRIC, "describes a fabric, which `moefabric up` takes; a sweep is needed"),
    (Result.load, EXPERIMENT, f"{AN_EXPERIMENT}; the result of a run is needed"),
    (Result.load, SWEEP, f"{A_SWEEP}; the result of a run is needed"),
    (hosts_of_file, EXPERIMENT, f"{AN_EXPERIMENT}; a list of hosts is needed"),
    (lambda path: load_model(str(path)), EXPERIMENT, f"{AN_EXPERIMENT}; a model is needed"),
    (lambda path: load_model(str(path)), RESULT, f"{A_RESULT}; a model is needed"),
    (read_demand, EXPERIMENT, f"{AN_EXPERIMENT}; a demand is needed"),
    (trace_reader, EXPERIMENT, f"{AN_EXPERIMENT}; a trace is needed"),
    (read_demand, RESULT, f"{A_RESULT}; a demand is needed"),
]


@pytest.mark.parametrize(
    ("read", "path", "message"),
    MISTAKES,
    ids=[f"{i}-{p.stem}" for i, (_, p, _) in enumerate(MISTAKES)],
)
def test_another_kind_of_file_names_its_command(
    read: Callable[[Path], object], path: Path, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("read", [Result.load, read_demand, trace_reader])
def test_an_empty_file_is_called_empty(read: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / "empty.json"
    file.touch()
    with pytest.raises(SpecError, match=r"empty\.json: is empty; .* is needed$"):
        read(file)


@pytest.mark.parametrize(
    ("read", "needed"), [(Result.load, "the result of a run"), (Sweep.load, "a sweep")]
)
def test_the_result_of_a_sweep_is_called_so(
    read: Callable[[Path], object], needed: str, tmp_path: Path
) -> None:
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({"sweep": "settle", "spec": {}, "runs": {}, "points": []}))
    with pytest.raises(SpecError) as error:
        read(file)
    shown = "is the result of a sweep (report.html beside it shows it, runs/ has its runs)"
    assert str(error.value) == f"{file}: {shown}, which no command takes; {needed} is needed"


REPLAYED = ReplayResult(
    "moe", "lab", 4, 4, "eps", (1.0,), 1.0, 1.0, (), 0.0, 1.0, 0.0, 0, 1.0, 1.0, ()
)  # fmt: skip
MEASURED = PerfResult("alltoall", "direct", "lab", 4, 4, "eps", 1, 0, ())


@pytest.mark.parametrize("read", [Result.load, load_fabric, load_experiment])
@pytest.mark.parametrize(
    ("result", "what"), [(REPLAYED, "a replay"), (MEASURED, "`moefabric perf`")]
)
def test_the_result_of_a_replay_or_of_perf_is_called_so(
    read: Callable[[Path], object], result: ReplayResult | PerfResult, what: str, tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result.to_json(), indent=1))
    with pytest.raises(SpecError, match=rf"is the result of {what}, which no command takes; "):
        read(file)


def test_a_prediction_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "predicted.json"
    file.write_text(json.dumps({"experiment": "x", "inputs": [], "fabrics": []}))
    with pytest.raises(SpecError, match="is a prediction, which no command takes"):
        Result.load(file)
