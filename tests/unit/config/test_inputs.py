"""Digests of an experiment and of the files that it names."""

import hashlib
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from moefabric.config.inputs import digest_of, input_digests
from moefabric.config.loader import load_experiment
from moefabric.core.errors import SpecError
from moefabric.prediction.experiment import changed_inputs, experiment_inputs
from moefabric.prediction.workload_loader import workload
from tests.support.paths import EXAMPLES

PROTOTYPE = EXAMPLES / "prototype.yaml"
MATRIX = "data/gating-8x8.json"
DIGEST = hashlib.sha256((EXAMPLES / MATRIX).read_bytes()).hexdigest()


def digests(*settings: str, file: Path = PROTOTYPE) -> dict[str, str]:
    """Return the digests of an example with changes, by key."""
    listed = input_digests(load_experiment(file, settings), file.parent)
    return {key: value for key, _, value in listed}


def test_inputs_are_the_experiment_and_each_file_that_it_names() -> None:
    listed = input_digests(load_experiment(PROTOTYPE), EXAMPLES)
    assert [(key, file) for key, file, _ in listed] == [
        ("experiment", "prototype"),
        ("gating.matrix", "gating-8x8.json"),
    ]
    assert digests()["gating.matrix"] == DIGEST


def test_experiment_in_another_folder_has_the_same_digests(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shutil.copy(EXAMPLES / MATRIX, tmp_path / "data")
    copy = Path(shutil.copy(PROTOTYPE, tmp_path))
    assert digests(file=copy) == digests()


def test_changed_key_and_changed_file_have_digests_of_their_own(tmp_path: Path) -> None:
    other = tmp_path / "gating-8x8.json"
    other.write_text((EXAMPLES / MATRIX).read_text().replace("1", "2"))
    before, noisy, edited = (
        digests(),
        digests("gating.noise=0.2"),
        digests(f"gating.matrix={other}"),
    )
    assert noisy["experiment"] != before["experiment"]
    assert noisy["gating.matrix"] == before["gating.matrix"] != edited["gating.matrix"]
    assert edited["experiment"] == before["experiment"], "the file has the same name"
    assert digests("gating.first_step=0") == before, "a default that is written out"


def test_folder_has_the_digest_of_its_files_with_their_names(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    lines = [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in "ab"]
    before = digest_of(tmp_path, "gating.trace")
    assert before == hashlib.sha256("".join(lines).encode()).hexdigest()
    (tmp_path / "b").rename(tmp_path / "c")
    assert digest_of(tmp_path, "gating.trace") != before


def test_missing_file_is_an_error_at_its_key(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^gating\.trace: .*nothing: is no file"):
        digest_of(tmp_path / "nothing", "gating.trace")


@pytest.mark.parametrize(
    ("declared", "fault"),
    [
        (DIGEST, None),
        ("0" * 64, f"gating.sha256: gating-8x8.json is another file .*: its SHA-256 is {DIGEST}"),
        ("0" * 63, "gating.sha256: 64 digits and letters a to f are needed"),
    ],
)
def test_file_with_another_digest_than_declared_is_refused(
    declared: str, fault: str | None
) -> None:
    def load() -> object:
        spec = load_experiment(PROTOTYPE, [f"gating.sha256='{declared}'"])
        return workload(spec, [("s0", "s1", "s2", "s3")], EXAMPLES)

    if fault is None:
        assert load()
        return
    with pytest.raises(SpecError, match=fault):
        load()


def test_digest_of_generated_gating_is_refused() -> None:
    settings = ["gating={generator: mixtral}", f"gating.sha256='{DIGEST}'"]
    with pytest.raises(SpecError, match=r"gating\.sha256: there is no file"):
        load_experiment(PROTOTYPE, settings)


def test_file_that_changes_or_ends_during_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    trace = Path(shutil.copy(EXAMPLES / MATRIX, tmp_path / "data"))
    spec = load_experiment(Path(shutil.copy(PROTOTYPE, tmp_path)))
    before = experiment_inputs(spec, tmp_path)
    assert changed_inputs(spec, tmp_path, before) == []
    trace.write_text("[]")
    assert changed_inputs(spec, tmp_path, before) == [
        "gating.matrix: gating-8x8.json was changed during the run"
    ]
    trace.unlink()
    [gone] = changed_inputs(spec, tmp_path, before)
    assert gone.startswith("an input is gone: gating.matrix: ")


@pytest.mark.parametrize("name", ["olmoe", "prototype", "forwarding"])
def test_inputs_are_found_by_a_relative_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users type `examples/olmoe.yaml`, whose model is a file beside it."""
    monkeypatch.chdir(EXAMPLES.parent)
    file = Path(EXAMPLES.name) / f"{name}.yaml"
    relative = input_digests(load_experiment(file), file.parent)
    assert relative == input_digests(load_experiment(file.absolute()), EXAMPLES)


@pytest.fixture
def policy_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a policy whose module imports its neighbours, and other files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owed").mkdir()
    sources = {
        "ring_first.py": "from owed import order\nfrom moefabric.planner.policy import EpsOnly\n"
        "import numpy\n\nclass RingFirst(EpsOnly):\n    pass\n",
        "owed/__init__.py": "",
        "owed/order.py": "def order():\n    from . import shares\n",
        "owed/shares.py": "",
        "unused.py": "",
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_code_of_a_policy_is_its_file_and_the_neighbours_that_it_imports(
    policy_folder: Path,
) -> None:
    settings = ["fabrics[1].policy=ring_first:RingFirst"]
    spec = load_experiment(PROTOTYPE, settings)
    before = experiment_inputs(spec, EXAMPLES)
    code = {one.key: (one.file, one.sha256) for one in before if one.key.startswith("code ")}
    files = ["owed/__init__.py", "owed/order.py", "owed/shares.py", "ring_first.py"]
    names = ["owed", "owed.order", "owed.shares", "ring_first"]
    digests = [hashlib.sha256((policy_folder / file).read_bytes()).hexdigest() for file in files]
    assert code == {
        f"code {name}": (Path(file).name, digest)
        for name, file, digest in zip(names, files, digests, strict=True)
    }
    with (policy_folder / "owed/shares.py").open("a") as file:
        file.write("LIMIT = 2\n")
    assert changed_inputs(spec, EXAMPLES, before) == [
        "code owed.shares: shares.py was changed during the run"
    ]


def test_code_of_an_installed_package_names_its_version() -> None:
    spec = load_experiment(PROTOTYPE, ["fabrics[0].place=occult"])
    files = {one.key: one.file for one in experiment_inputs(spec, EXAMPLES)}
    assert files["code moefabric_studies.systems.occult.placement"] == (
        f"placement.py of moefabric-studies {version('moefabric-studies')}"
    )
    assert "code moefabric_studies" in files
    assert not [key for key in files if key.startswith("code moefabric.")]
