"""The README's commands: every line of its bash fences, word for word where that takes seconds."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("git clone", "cd ")  # how one comes to have the project


def commands(text: str) -> list[str]:
    """Lines of bash fences, without prompts, comments and what comes before the project is there."""
    lines = [line for fence in FENCE.findall(text) for line in fence.replace("\\\n", " ").splitlines()]
    told = [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]
    return [line for line in told if line and not line.startswith(("#", *ELSEWHERE))]


@dataclass(frozen=True)
class Check:
    """What stands for a command of the README here, and why not the command itself."""

    argv: list[str]
    why: str = ""


def check(command: str) -> Check:
    """Make and Compose are asked whether they know it; a whole run is foretold instead; the rest is done."""
    words = shlex.split(command)
    if words[0] == "make":
        return Check(
            ["make", "--dry-run", *words[1:]], "tests don't run tests, and the demo is a job of its own"
        )
    if words[:2] == ["docker", "compose"]:
        return Check(["docker", "compose", "--dry-run", "config", "--quiet"], "test_containers does it")
    if words[0].endswith("moefabric") and words[1] == "run":
        return Check([words[0], "predict", words[2]], "the demo does it")
    return Check(["bash", "-c", command])


def test_the_reader_of_fences_leaves_out_prompts_comments_and_cloning() -> None:
    text = "```bash\ngit clone x\n$ make demo   # minutes\n# aside\nmoefabric plan \\\n  --degree 3\n```\n```\nno\n```\n"
    assert [" ".join(line.split()) for line in commands(text)] == ["make demo", "moefabric plan --degree 3"]


@pytest.mark.timeout(600)
def test_every_command_of_the_readme_works(tmp_path: Path) -> None:
    """In order, since `inspect` needs the `up` above it."""
    told = commands((ROOT / "README.md").read_text())
    assert {"make demo", "make test", "docker compose up testbed"} <= set(told)
    own = {**os.environ, "MOEFABRIC_RUN_DIR": str(tmp_path), "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"}
    try:
        failed = [fault for command in told if (fault := _fault(command, own))]
    finally:
        subprocess.run(
            [ROOT / ".venv" / "bin" / "moefabric", "down"], env=own, cwd=ROOT, timeout=60, check=False
        )
    assert failed == []


def _fault(command: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        check(command).argv,
        env=env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=180,
        text=True,
        check=False,
    )
    return (
        "" if done.returncode == 0 else f"{command}: exited {done.returncode}, saying: {done.stdout[-2000:]}"
    )
