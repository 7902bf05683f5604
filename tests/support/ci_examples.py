"""The commands of the examples for CI."""

import shlex
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.paths import EXAMPLES

FILES: Final = (EXAMPLES / "ci/github-actions.yml", EXAMPLES / "ci/gitlab-ci.yml")


def ci_commands(file: Path) -> list[list[str]]:
    """Return the commands of the job `fabric`, in order, with the programs of `.venv` by name."""
    described: dict[str, Any] = yaml.safe_load(file.read_text())
    if "jobs" in described:
        steps = described["jobs"]["fabric"]["steps"]
        lines = [step["run"] for step in steps if "run" in step]
    else:
        job = described["fabric"]
        lines = [*job["before_script"], *job["script"]]
    return [shlex.split(line.removeprefix(".venv/bin/")) for line in lines]
