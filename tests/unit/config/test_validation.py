"""Wrong input is reported as in tests/golden/errors: all faults at once, with their places."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moefabric.config import fabric
from moefabric.config.demand_file import read_demand
from moefabric.config.experiment import ExperimentSpec
from moefabric.config.input_file import not_modelled
from moefabric.config.loader import load_experiment, load_fabric
from moefabric.config.model import load_model
from moefabric.core.errors import SpecError
from moefabric.core.machine_speed import MachineSpeed
from moefabric.core.units import Scale
from moefabric.prediction.workload_loader import workload
from tests.support.paths import EXAMPLES, GOLDEN

ERRORS = GOLDEN / "errors"
SET = "# --set "
SERVERS = ("s0", "s1", "s2", "s3")


def read(path: Path) -> None:
    """Read a file as the command line does.

    The first word of the file's name is its kind. Comments in the file give the settings.
    """
    settings = [
        line.removeprefix(SET)
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith(SET)
    ]
    match path.stem.split("-")[0]:
        case "fabric":
            load_fabric(path, settings)
        case "experiment":
            load_experiment(path, settings)
        case "gating":
            workload(load_experiment(path, settings), [SERVERS], path.parent)
        case "model":
            load_model(str(path))
        case "demand":
            read_demand(path)
        case kind:
            pytest.fail(f"{path.name}: {kind} is no kind of file")


def error_text(path: Path) -> str:
    """Return the error message for a file, with the file's name instead of its path."""
    with pytest.raises(SpecError) as error:
        read(path)
    return str(error.value).replace(f"{path.parent}/", "") + "\n"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem)
        for path in sorted([*ERRORS.glob("*.yaml"), *ERRORS.glob("*.json")])
    ],
)
def test_wrong_input_is_reported_word_for_word(path: Path) -> None:
    assert error_text(path) == path.with_suffix(".log").read_text()


def test_every_golden_message_has_its_input() -> None:
    inputs = {path.stem for path in ERRORS.iterdir() if path.suffix in {".yaml", ".json"}}
    assert {path.stem for path in ERRORS.glob("*.log")} == inputs


def test_load_fabric_names_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"fabric\.yaml: No such file or directory$"):
        load_fabric(tmp_path / "fabric.yaml")


def test_read_demand_refuses_directory(tmp_path: Path) -> None:
    folder = tmp_path / "demand.json"
    folder.mkdir()
    with pytest.raises(SpecError, match=r"demand\.json: is a folder; name a file$"):
        read_demand(folder)


def test_read_demand_refuses_other_number_of_servers(tmp_path: Path) -> None:
    file = tmp_path / "demand.json"
    file.write_text("[[0, 1], [2, 0]]")
    with pytest.raises(SpecError, match=r"demand\.json: 4 servers need 4 rows, 2 given"):
        read_demand(file, servers=4)


@pytest.mark.parametrize(
    ("setting", "is_changed"),
    [
        pytest.param(
            "training.iterations=7", lambda spec: spec.training.iterations == 7, id="a-number"
        ),
        pytest.param(
            "fabrics[1].optical=2", lambda spec: spec.fabrics[1].optical == 2, id="in-a-list"
        ),
        pytest.param(
            "wiring.regions[0].ocs.settle=5ms",
            lambda spec: spec.wiring.regions[0].ocs.settle == 5_000_000,
            id="deep",
        ),
        pytest.param(
            "scale.bytes=1e3", lambda spec: spec.scale.bytes == 1000, id="in-place-of-a-word"
        ),
        pytest.param(
            "scale={bytes: 2000, dilation: 2}",
            lambda spec: spec.scale.dilation == 2,
            id="a-mapping",
        ),
        pytest.param(
            "wiring.nic_rate=50Gb/s", lambda spec: spec.wiring.nic_rate == 50e9, id="a-rate"
        ),
        pytest.param(
            "wiring.switch=ovs",
            lambda spec: spec.wiring.switch == "ovs",
            id="a-key-not-in-the-file",
        ),
    ],
)
def test_setting_changes_one_key(
    setting: str, is_changed: Callable[[ExperimentSpec], bool]
) -> None:
    example = EXAMPLES / "prototype.yaml"
    experiment = load_experiment(example, [setting])
    assert experiment != load_experiment(example)
    assert is_changed(experiment)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"wiring.nic_rate": 400}, "wiring.nic_rate: 400: a rate needs a unit: 400Gb/s"),
        ({"wiring.nic_rate": "400"}, "wiring.nic_rate: 400: a rate needs a unit: 400Gb/s"),
        ({"training.nvlink_rate": 9e11}, "nvlink_rate: 9e+11: a rate needs a unit: 900Gb/s"),
        (
            {"wiring.regions[0].ocs.settle": 10},
            "wiring.regions[0].ocs.settle: 10: a time needs a unit: 10ms or 10s",
        ),
        ({"control_time": 0.025}, "control_time: 0.025: a time needs a unit: 25ms"),
    ],
)
def test_bare_rates_and_times_are_refused_with_the_remedy(
    change: dict[str, object], fault: str
) -> None:
    example = EXAMPLES / "prototype.yaml"
    with pytest.raises(SpecError) as by_text:
        load_experiment(example, [f"{key}={value}" for key, value in change.items()])
    with pytest.raises(SpecError) as by_value:
        load_experiment(example, [], change)
    assert fault in str(by_text.value)
    assert fault in str(by_value.value)


def test_no_time_at_all_needs_no_unit() -> None:
    spec = load_experiment(EXAMPLES / "prototype.yaml", ["control_time=0"])
    assert spec.control_s == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.iters=1", "training.iters: is not a key here; did you mean iterations?"),
        ("trainig.iterations=1", "trainig: is not a key here; did you mean training or train?"),
        ("wiring.nic_rates=1Gb/s", "wiring.nic_rates: is not a key here; did you mean nic_rate?"),
        (
            "wiring.regions[0].colour=red",
            "wiring.regions[0].colour: is not a key here; keys are: count, ocs, servers",
        ),
        ("inference=true", f"inference: is not a key here{not_modelled('inference')}"),
    ],
)
def test_unknown_key_of_a_setting_names_keys_that_resemble_it(setting: str, message: str) -> None:
    path = EXAMPLES / "prototype.yaml"
    with pytest.raises(SpecError) as error:
        load_experiment(path, [setting])
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("cores", "servers", "factor"), [(2, 4, 100), (64, 4, 5), (2, 64, 5000), (64, 64, 100)]
)
def test_fabric_without_scale_gets_one_that_the_machine_carries(
    cores: int, servers: int, factor: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fabric, "usable_cores", lambda: cores)
    monkeypatch.setenv("MOEFABRIC_MACHINE", str(tmp_path / "unmeasured"))
    file = tmp_path / "fabric.yaml"
    lines = (EXAMPLES / "fabric.yaml").read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith("scale")))
    built = load_fabric(file, [f"regions[0].servers={servers}"]).build()
    assert built.scale == Scale(factor)
    assert (
        built.scale
        == load_fabric(file, ["scale=auto", f"regions[0].servers={servers}"]).build().scale
    )
    carried_bps = MachineSpeed().full_nic_bps(4 * servers, cores)
    assert carried_bps / 2.5 < built.scale.rate_bps(built.nic_rate_bps) <= carried_bps


def test_speed_of_a_gpu_is_not_in_flops() -> None:
    with pytest.raises(
        SpecError, match=r"training\.gpu_tflops: must be at most 100000, 9\.89e\+14"
    ):
        load_experiment(EXAMPLES / "prototype.yaml", ["training.gpu_tflops=989e12"])
