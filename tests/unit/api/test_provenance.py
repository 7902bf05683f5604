"""Provenance of a run: commit, command, and digests of its inputs."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from moefabric.api.experiment import Experiment
from moefabric.api.provenance import MEASURED, command_options, commit_of, provenance
from moefabric.results.model import Provenance
from tests.support.paths import EXAMPLES, REPOSITORY


def source(file: Path, *settings: str) -> Provenance:
    experiment = Experiment.load(file, settings)
    return provenance(experiment.spec, file, settings)


def test_provenance_has_commit_command_and_digests_of_experiment_trace_and_model() -> None:
    found = source(EXAMPLES / "forwarding.yaml", "wiring.nic_rate=400Gb/s")
    head = ["git", "rev-parse", "HEAD"]
    assert found.commit == subprocess.check_output(head, cwd=REPOSITORY, text=True).strip()
    assert found.command == ("moefabric run examples/forwarding.yaml --set wiring.nic_rate=400Gb/s")
    trace = "examples/data/training-1200-steps.npz"
    assert found.inputs[trace] == hashlib.sha256((REPOSITORY / trace).read_bytes()).hexdigest()
    assert {*found.inputs} == {"examples/forwarding.yaml", trace, "model mixtral-8x22b"}


def test_digests_change_with_the_trace_and_with_the_sizes_of_the_model(tmp_path: Path) -> None:
    text = (EXAMPLES / "prototype.yaml").read_text().replace("data/", "")
    file, matrix = tmp_path / "prototype.yaml", tmp_path / "gating-8x8.json"
    file.write_text(text)
    matrix.write_text((EXAMPLES / "data/gating-8x8.json").read_text())
    before = source(file)
    matrix.write_text(matrix.read_text() + "\n")
    after, smaller = source(file), source(file, "model.layers=3")
    changed = {name for name in before.inputs if before.inputs[name] != after.inputs[name]}
    assert changed == {"gating-8x8.json"}
    changed = {name for name in after.inputs if after.inputs[name] != smaller.inputs[name]}
    assert changed == {"model mixtral-8x7b"}


def test_provenance_names_no_folder_outside_of_the_source(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text((EXAMPLES / "prototype.yaml").read_text().replace("data/", f"{EXAMPLES}/data/"))
    assert str(tmp_path) not in source(file).model_dump_json()
    assert source(file).command == "moefabric run mine.yaml"


@pytest.mark.parametrize("by_file", [True, False])
def test_provenance_has_the_code_of_a_policy_and_the_option_that_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"sourced_{by_file}".lower()
    module, file, policy = tmp_path / f"{name}.py", tmp_path / "mine.yaml", f"{name}:STATIC"
    module.write_text("from moefabric.planner.static import STATIC\n")
    text = (EXAMPLES / "prototype.yaml").read_text().replace("data/", f"{EXAMPLES}/data/")
    file.write_text(text.replace("policy: static", f"policy: {policy}") if by_file else text)
    found = source(file, *([] if by_file else [f"fabrics[3].policy={policy}"]))
    digest = hashlib.sha256(module.read_bytes()).hexdigest()
    assert found.inputs[f"code {name}: {name}.py"] == digest
    option = "--plugins any" if by_file else f"--set 'fabrics[3].policy={policy}'"
    assert found.command == f"moefabric run mine.yaml {option}"


def test_command_keeps_the_options_that_change_a_result_but_no_address() -> None:
    assert command_options() == []
    everything = command_options(
        Path("/lab/hosts.yaml"), {"ocs", "controller"}, "10.0.0.1:6379", "spread", flows=True
    )
    assert " ".join(everything) == (
        "--flows --hosts hosts.yaml --external controller,ocs --cluster auto --spread spread"
    )


def test_packages_that_are_measured_exist() -> None:
    assert all((REPOSITORY / folder).is_dir() for folder in MEASURED)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.check_output(command, text=True).strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with measured folders, a page, and an installed package below."""
    for name in (*MEASURED, "docs", "venv/site-packages"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "file").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Write all")
    return tmp_path


def test_commit_is_that_of_the_checkout_and_none_of_an_installed_package(checkout: Path) -> None:
    assert commit_of(checkout) == (git(checkout, "rev-parse", "HEAD"), False)
    assert commit_of(checkout / "venv/site-packages") == (None, False)


def test_source_is_modified_if_a_measured_folder_is(checkout: Path) -> None:
    (checkout / "docs/file").write_text("2")
    assert not commit_of(checkout)[1]
    (checkout / MEASURED[-1] / "file").write_text("2")
    assert commit_of(checkout)[1]


def test_commit_is_known_in_a_checkout_of_another_user(checkout: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it gives a folder to another user")
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, 12345, 12345)
    assert commit_of(checkout)[0]
