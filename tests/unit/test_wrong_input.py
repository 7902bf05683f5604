"""What is wrong with the user's input is told word for word as in tests/golden/errors: every fault at once, each with its place."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moefabric.demand_file import read_demand
from moefabric.errors import SpecError
from moefabric.experiment.workload import workload
from moefabric.spec import load
from moefabric.spec.experiment import ExperimentSpec

GOLDEN = Path(__file__).parents[1] / "golden/errors"
SET = "# --set "
SERVERS = ("s0", "s1", "s2", "s3")


def take(path: Path) -> None:
    """Read a file as the command line does, by the first word of its name, with the settings that its comments give."""
    settings = [
        line.removeprefix(SET)
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith(SET)
    ]
    match path.stem.split("-")[0]:
        case "fabric":
            load.fabric(path, settings)
        case "experiment":
            load.experiment(path, settings)
        case "gating":
            workload(load.experiment(path, settings), [SERVERS], path.parent)
        case "demand":
            read_demand(path)
        case kind:
            pytest.fail(f"{path.name}: nothing reads {kind}")


def told(path: Path) -> str:
    """What the user is told, with the file by its name alone."""
    with pytest.raises(SpecError) as said:
        take(path)
    return str(said.value).replace(f"{path.parent}/", "") + "\n"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem) for path in sorted([*GOLDEN.glob("*.yaml"), *GOLDEN.glob("*.json")])],
)
def test_wrong_input_is_told_word_for_word(path: Path) -> None:
    assert told(path) == path.with_suffix(".log").read_text()


def test_every_word_that_is_expected_has_its_input() -> None:
    inputs = {path.stem for path in GOLDEN.iterdir() if path.suffix in {".yaml", ".json"}}
    assert {path.stem for path in GOLDEN.glob("*.log")} == inputs


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"fabric\.yaml: No such file or directory$"):
        load.fabric(tmp_path / "fabric.yaml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "demand.json"
    folder.mkdir()
    with pytest.raises(SpecError, match="Is a directory"):
        read_demand(folder)


def test_a_demand_for_another_number_of_servers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "demand.json"
    file.write_text("[[0, 1], [2, 0]]")
    with pytest.raises(SpecError, match=r"demand\.json: 4 servers need 4 rows, 2 given"):
        read_demand(file, servers=4)


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        pytest.param("training.iterations=7", lambda spec: spec.training.iterations == 7, id="a-number"),
        pytest.param("fabrics[1].optical=2", lambda spec: spec.fabrics[1].optical == 2, id="in-a-list"),
        pytest.param(
            "wiring.regions[0].ocs.settle=5ms",
            lambda spec: spec.wiring.regions[0].ocs.settle == 5_000_000,
            id="deep",
        ),
        pytest.param("scale.bytes=1e3", lambda spec: spec.scale.bytes == 1000, id="in-place-of-a-word"),
        pytest.param(
            "scale={bytes: 2000, dilation: 2}", lambda spec: spec.scale.dilation == 2, id="a-mapping"
        ),
        pytest.param("wiring.nic_rate=50e9", lambda spec: spec.wiring.nic_rate == 50e9, id="a-bare-rate"),
        pytest.param(
            "wiring.switch=ovs", lambda spec: spec.wiring.switch == "ovs", id="a-key-not-in-the-file"
        ),
    ],
)
def test_a_setting_changes_one_key_of_the_file(
    setting: str, changed: Callable[[ExperimentSpec], bool]
) -> None:
    example = Path(__file__).parents[2] / "examples/prototype.yaml"
    after = load.experiment(example, [setting])
    assert after != load.experiment(example)
    assert changed(after)
