"""The lock of all Python packages."""

import re
import subprocess
from collections.abc import Sequence

import pytest

from tests.support.paths import REPOSITORY

PACKAGING = REPOSITORY / "packaging"
LOCK = (PACKAGING / "requirements.lock").read_text()
SECTIONS = ("run", "training", "cluster", "test", "all", "build")
APART = ("torch", "audit", "oracle", "mutation")
"""PyTorch's build for CPUs, and environments of other tools."""


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _section(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes of the packages of a section, by name."""
    (text,) = re.findall(rf"(?ms)^# {name}\n(.*?)(?=^# |\Z)", LOCK)
    packages = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        name, version = entry.split()[0].split("==")
        packages[_key(name)] = version, re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
    return packages


def test_every_package_has_hashes() -> None:
    for section in (*SECTIONS, *APART):
        packages = _section(section)
        assert packages
        assert all(hashes for _, hashes in packages.values()), section


def test_versions_are_those_that_the_tests_pass_with() -> None:
    listed = re.findall(r"(?m)^([\w.-]+)==(\S+)$", (PACKAGING / "constraints.txt").read_text())
    versions = {_key(name): version for name, version in listed}
    for section in SECTIONS[:-1]:
        locked = {n: v for n, (v, _) in _section(section).items() if n in versions}
        assert locked
        assert locked.items() <= versions.items(), "run `make lock`"


@pytest.mark.parametrize(
    ("file", "sections"),
    [
        ("packaging/requirements", ["run"]),
        ("packaging/requirements-fabric", ["run"]),
        ("packaging/requirements-watch", ["run"]),
        ("studies/requirements-systems", ["run"]),
        ("packaging/requirements-cluster", ["run", "cluster"]),
        ("packaging/requirements-test", ["run", "test"]),
        ("packaging/requirements-all", SECTIONS[:-1]),
        ("packaging/requirements-parquet", SECTIONS[:-1]),
        ("packaging/requirements-torch", ["torch"]),
        *((f"packaging/{name}-requirements", [name]) for name in APART[1:]),
    ],
)
def test_every_requirement_is_locked(file: str, sections: Sequence[str]) -> None:
    lines = (REPOSITORY / f"{file}.txt").read_text().splitlines()
    wanted = {_key(re.split(r"[\[<>=]", line)[0]) for line in lines if line and line[0] != "#"}
    locked = {name for section in sections for name in _section(section)}
    assert wanted - locked <= {"os-ken"}, "run `make lock`"


def test_entry_for_windows_is_locked_for_linux_where_a_section_needs_it() -> None:
    """mkdocs-material imports colorama everywhere, click and pytest on Windows only."""
    (section,) = re.findall(r"(?ms)^# all\n(.*?)(?=^# |\Z)", LOCK)
    assert re.search(r"(?m)^mkdocs-material==", section)
    assert re.search(r"(?m)^colorama==\S+ \\$", section)


def test_pytorch_is_that_of_its_requirements() -> None:
    (wanted,) = re.findall(
        r"(?m)^torch==(\S+)$", (PACKAGING / "requirements-torch.txt").read_text()
    )
    assert _section("torch")["torch"][0] == f"{wanted}+cpu", "run `packaging/lock torch`"


def test_nothing_is_installed_without_a_hash() -> None:
    """Only PyTorch for a Python that the lock doesn't know is, and setup says so."""
    for script in ("setup", "audit", "oracle"):
        lines = re.sub(r"\\\n\s*", "", (PACKAGING / script).read_text()).splitlines()
        installs = [one for one in lines if re.search(r'/pip" (--python \S+ )?install', one)]
        assert installs, script
        for line in installs:
            hashed = "--require-hashes" in line or "${wanted[@]}" in line
            assert hashed or "wheels/ryu-" in line or "-e " in line, f"{script}: {line}"


def test_sections_are_printed_once() -> None:
    printed = subprocess.run(
        [PACKAGING / "locked", "run", "cluster", "torch"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = re.findall(r"(?m)^([\w.-]+)==\S+", printed)
    assert "torch" in names
    assert "ray" in names
    assert len(names) == len(set(re.findall(r"(?m)^[\w.-]+==.*$", printed)))
