"""The maps of the project say what the code does: architecture page, picture, CONTRIBUTING."""

import re
import subprocess

import pytest

from tests.support import project_map
from tests.support.paths import REPOSITORY

AGAIN = "run: .venv/bin/python -m tests.support.project_map"
PACKAGES = [package for row in project_map.layers() for package in row]


def test_table_of_packages_is_that_of_the_contract() -> None:
    found = project_map.TABLE.search(project_map.PAGE.read_text())
    assert found is not None
    assert found.group() == project_map.table(), AGAIN


def test_picture_of_layers_is_that_of_the_contract() -> None:
    assert project_map.PICTURE.read_text() == project_map.picture(), AGAIN


def test_every_package_is_in_the_contract() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "moefabric", "agents", "controller", "emulator"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    inits = [path.removeprefix("moefabric/") for path in tracked if path.endswith("__init__.py")]
    packages = {path.split("/")[0] for path in inits if path.count("/") == 1}
    assert packages == {package.name for package in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_package_says_what_lives_there_and_where_to_start(package: project_map.Package) -> None:
    assert len(package.sentences) >= 3
    assert "Start with" in package.docstring


def test_house_has_fewer_than_18_packages() -> None:
    assert len(PACKAGES) < 18


def test_contributing_names_existing_packages_only() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    section = text.split("## Where things go")[1].split("\n## ")[0]
    names = {package.name for package in PACKAGES}
    paths = re.findall(r"`([\w./]+)`", section)
    assert paths
    for path in paths:
        place = path.removeprefix("moefabric.").removeprefix("moefabric/").split("/")[0]
        assert place in names or (REPOSITORY / path).exists(), path
    named = {path.removeprefix("moefabric/").split("/")[0] for path in paths}
    assert names <= named, f"CONTRIBUTING doesn't say what goes to {names - named}"


def test_only_testbed_and_above_see_emulator_controller_and_agents_together() -> None:
    below = [package.name for package in PACKAGES]
    triple = {"controller", "emulator", "agents"}
    last = max(below.index(name) for name in triple)
    assert {"results", "config", "planner", "core"} <= set(below[last + 1 :])
