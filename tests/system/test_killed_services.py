"""Killed services of a Compose project, beside another one: no run hangs, the next one works."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.system.conftest import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

INVALID = 3
WAIT_FOR_FABRIC = "until ls /run/moefabric/*/control.sock >/dev/null 2>&1; do sleep 0.2; done"
KILLED = 128 + 9


@pytest.fixture
def other(project: Project) -> Iterator[Project]:
    """Return a second project of the same folder, with containers and volumes of its own."""
    second = replace(project, name=f"{project.name}-killed")
    yield second
    removed = second.compose("down", "--volumes", "--timeout", "5", timeout_s=120)
    assert removed.status == 0, removed.text


@pytest.mark.timeout(900)
def test_killed_service_ends_the_run_and_the_next_run_works(
    image: str, project: Project, other: Project
) -> None:
    kept = project.compose("up", "--detach", "testbed", timeout_s=120)
    assert kept.status == 0, kept.text
    for victim in ("controller", "ocs", "testbed"):
        started = other.compose("up", "--detach", "testbed", timeout_s=120)
        assert started.status == 0, started.text
        up = other.compose("exec", "-T", "testbed", "sh", "-c", WAIT_FOR_FABRIC, timeout_s=60)
        assert up.status == 0, (victim, up.text)
        killed = other.compose("kill", "--signal", "KILL", victim, timeout_s=30)
        assert killed.status == 0, killed.text
        ended = other.compose("wait", "testbed", timeout_s=180)
        assert ended.status == (KILLED if victim == "testbed" else 1), (victim, ended.text)
    again = other.compose("up", "--exit-code-from", "testbed", "testbed", timeout_s=300)
    assert again.status in {0, INVALID}, again.text
    undisturbed = project.compose("wait", "testbed", timeout_s=180)
    assert undisturbed.status in {0, INVALID}, undisturbed.text
    left = other.compose("run", "--rm", "-T", "ocs", "ls", "/sys/class/net", timeout_s=60)
    assert left.text.split()[-1:] == ["lo"], left.text
    results = json.loads((project.folder / "out" / "prototype.json").read_text())["results"]
    assert all(result["integrity"]["lost_transfers"] == 0 for result in results)
