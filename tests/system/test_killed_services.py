"""Killed services of a Compose project, beside another one: no run hangs, the next one works."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.slow_machines import finished_run
from tests.system.conftest import SHORT, Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import docker

WAIT_FOR_FABRIC = "until ls /run/moefabric/*/control.sock >/dev/null 2>&1; do sleep 0.2; done"
KILLED = 128 + 9


@pytest.fixture
def other(project: Project, tmp_path: Path) -> Iterator[Project]:
    """Return a second project in a copy of the folder, with the first two fabrics."""
    folder = tmp_path / "moefabric"
    shutil.copytree(project.folder, folder, symlinks=True)
    spec = yaml.safe_load((folder / SHORT).read_text())
    spec["fabrics"] = spec["fabrics"][:2]
    (folder / SHORT).write_text(yaml.safe_dump(spec))
    second = replace(project, folder=folder, name=f"{project.name}-killed")
    yield second
    removed = second.compose("down", "--volumes", "--timeout", "5", timeout_s=120)
    assert removed.status == 0, removed.text


def status_of_testbed(engine: docker.DockerClient, project: Project) -> int:
    """Wait until the testbed has ended, and return its exit status."""
    labels = [f"com.docker.compose.{k}" for k in (f"project={project.name}", "service=testbed")]
    (testbed,) = engine.containers.list(all=True, filters={"label": labels})
    return int(testbed.wait(timeout=400)["StatusCode"])


@pytest.mark.timeout(1800)
def test_killed_service_ends_the_run_and_the_next_run_works(
    engine: docker.DockerClient, image: str, project: Project, other: Project
) -> None:
    kept = project.compose("up", "--detach", "testbed", timeout_s=120)
    assert kept.status == 0, kept.text
    for victim, status in (("controller", 1), ("ocs", 1), ("testbed", KILLED)):
        started = other.compose("up", "--detach", "testbed", timeout_s=120)
        assert started.status == 0, started.text
        up = other.compose("exec", "-T", "testbed", "sh", "-c", WAIT_FOR_FABRIC, timeout_s=60)
        assert up.status == 0, (victim, up.text)
        killed = other.compose("kill", "--signal", "KILL", victim, timeout_s=30)
        assert killed.status == 0, killed.text
        assert status_of_testbed(engine, other) == status, victim
    again = other.compose("up", "--exit-code-from", "testbed", "testbed", timeout_s=300)
    status = status_of_testbed(engine, project)
    output = project.compose("logs", "testbed", timeout_s=60).text
    left = other.compose("run", "--rm", "-T", "ocs", "ls", "/sys/class/net", timeout_s=60)
    assert left.text.split()[-1:] == ["lo"], left.text
    for folder, ended, fabrics in (
        (project.folder, (status, output), ["eps", "mixnet", "mixnet-spill", "static"]),
        (other.folder, (again.status, again.text), ["eps", "mixnet"]),
    ):
        results = finished_run(folder / "out" / "prototype.json", *ended)["results"]
        assert [result["fabric"] for result in results] == fabrics
        assert {result["integrity"]["lost_transfers"] for result in results} == {0}
