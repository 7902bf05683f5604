"""The package as pip installs it into an environment of its own, with os-ken instead of Ryu."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.namespaces import Island
from tests.support.paths import REPOSITORY

PACKAGING = REPOSITORY / "packaging"
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Installation:
    """An environment with nothing but the wheel and what pip took for it.

    Attributes:
        wheel: The wheel's file.
        prefix: The environment.
        folder: Folder in which commands run, outside the repository.
    """

    wheel: Path
    prefix: Path
    folder: Path

    def moefabric(self, *arguments: str, inside: tuple[str, ...] = ()) -> str:
        """Run a command of moefabric to success; return what it prints."""
        return self.run("moefabric", *arguments, inside=inside)

    def run(self, program: str, *arguments: str, inside: tuple[str, ...] = ()) -> str:
        """Run a program of the environment to success; return what it prints."""
        kept = (name for name in os.environ if not name.startswith(("PYTHON", "VIRTUAL")))
        environment = {name: os.environ[name] for name in kept}
        command = [*inside, str(self.prefix / "bin" / program), *arguments]
        run = subprocess.run(
            command, env=environment, cwd=self.folder, timeout=60,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, (arguments, run.stdout, run.stderr)
        return run.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    source, unneeded = folder / "source", shutil.ignore_patterns(".*", "out", "tests", "site")
    shutil.copytree(REPOSITORY, source, symlinks=True, ignore=unneeded)
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    prefix = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    constraints = ("-c", str(PACKAGING / "constraints.txt"))
    subprocess.run(
        [
            *pip,
            f"--python={prefix}/bin/python",
            "install",
            "--no-compile",  # most modules are never imported
            *constraints,
            f"{wheel}[fabric]",
            "pytest",
        ],
        check=True,
    )
    return Installation(wheel, prefix, folder)


@pytest.fixture
def island() -> Iterator[Island]:
    with ExitStack() as undo:
        yield Island(["home", "away"], undo)


def test_wheel_takes_one_import_name(installation: Installation) -> None:
    with zipfile.ZipFile(installation.wheel) as archive:
        folders = {Path(name).parts[0] for name in archive.namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"moefabric"}


def test_ryu_is_not_needed(installation: Installation) -> None:
    packages = (installation.prefix / "lib").glob("python3*/site-packages/*")
    names = {package.name for package in packages}
    assert "os_ken" in names
    assert "ryu" not in names
    assert "mininet" not in names


def test_plan_and_prediction(installation: Installation) -> None:
    demand = installation.folder / "demand.json"
    demand.write_text(json.dumps([[0, 9, 1, 1], [1, 0, 9, 1], [1, 1, 0, 9], [9, 1, 1, 0]]))
    plan = installation.moefabric("plan", "--demand", str(demand), "--degree", "3", "--json")
    assert json.loads(plan)["predicted_s"] > 0
    prototype = str(REPOSITORY / "examples/prototype.yaml")
    assert "mixnet-spill" in installation.moefabric("predict", prototype)


def test_fabric_goes_up_changes_light_and_goes_down(
    installation: Installation, island: Island
) -> None:
    inside = tuple(island.inside("home"))
    doctor = installation.moefabric("doctor", inside=inside)
    assert "controllers' framework: os-ken" in doctor
    name = f"inst{os.getpid()}"
    spec = installation.folder / "fabric.yaml"
    example = (REPOSITORY / "examples/fabric.yaml").read_text()
    spec.write_text(example.replace("fabric: lab", f"fabric: {name}"))
    try:
        assert f"{name}: up" in installation.moefabric("up", str(spec), inside=inside)
        on_fabric = ("--name", name)
        installation.moefabric("light", *on_fabric, "s0/o0~s1/o0", inside=inside)
        state = json.loads(installation.moefabric("inspect", *on_fabric, "--json", inside=inside))
        assert state["ocs"][0]["circuits"] == [["s0/o0", "s1/o0"]]
        ping = ("exec", *on_fabric, "s0", "--", "ping", "-c", "1", "-W", "2", "10.0.1.1")
        assert "1 received" in installation.moefabric(*ping, inside=inside)
    finally:
        assert f"{name}: down" in installation.moefabric("down", name, inside=inside)


def test_suite_of_another_project_uses_the_fixtures(
    installation: Installation, island: Island
) -> None:
    suite = shutil.copytree(REPOSITORY / "examples/pytest", installation.folder / "suite")
    options = ("--moefabric", "--moefabric-no-root=fail", "-k", "bytes_use_the_circuit")
    output = installation.run("pytest", *options, str(suite), inside=tuple(island.inside("home")))
    assert "1 passed" in output
