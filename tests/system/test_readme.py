"""Runs the commands of the README and of the guides."""

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ *```bash\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SET_UP = ("git clone", "cd ")
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/guides/*.md"))]


def commands(text: str) -> list[str]:
    """Return the commands of all bash fences, without prompts, comments and cloning."""
    fences = [fence.replace("\\\n", " ") for fence in FENCE.findall(text)]
    lines = [line.strip().removeprefix("$ ") for fence in fences for line in fence.splitlines()]
    lines = [line.split("  #")[0].strip() for line in lines]
    return [line for line in lines if line and not line.startswith(("#", *SET_UP))]


@dataclass(frozen=True)
class Substitute:
    """Command that the test runs for a command of a page.

    Attributes:
        argv: the command.
        why: why it stands for the original; empty where it is the original.
    """

    argv: list[str]
    why: str = ""


def substitute(command: str) -> Substitute:
    """Replace commands that take minutes by their dry run or their prediction."""
    words = shlex.split(command)
    if words[0] == "make":
        return Substitute(["make", "--dry-run", *words[1:]], "tests do not run tests or the demo")
    if words[:2] == ["docker", "compose"]:
        argv = ["docker", "compose", "--dry-run", "config", "--quiet"]
        return Substitute(argv, "test_containers runs the services")
    if words[0].endswith("moefabric") and words[1] == "run":
        return Substitute([words[0], "predict", words[2]], "the kernel tests run experiments")
    return Substitute(["bash", "-c", command])


def test_commands_skip_prompts_comments_and_cloning() -> None:
    text = (
        "```bash\ngit clone x\n$ make demo   # minutes\n# aside\nmoefabric plan \\\n  --degree 3\n"
        "```\n  ```bash\n  moefabric down\n  ```\n```\nno\n```\n"
    )
    assert [" ".join(line.split()) for line in commands(text)] == [
        "make demo",
        "moefabric plan --degree 3",
        "moefabric down",
    ]


def test_readme_has_the_contract_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert {"make demo", "make test", "docker compose up testbed"} <= set(commands(text))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_succeeds(page: str, tmp_path: Path) -> None:
    """Commands run in order, since `inspect` needs the `up` above it."""
    environment = {
        **os.environ,
        "MOEFABRIC_RUN_DIR": str(tmp_path),
        "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
    }
    try:
        failures = [
            failure
            for command in commands((ROOT / page).read_text())
            if (failure := _failure(command, environment))
        ]
    finally:
        moefabric = ROOT / ".venv" / "bin" / "moefabric"
        subprocess.run([moefabric, "down"], env=environment, cwd=ROOT, timeout=60, check=False)
    assert failures == []


def _failure(command: str, environment: dict[str, str]) -> str:
    """Run a command; return a message if it fails, else nothing."""
    completed = subprocess.run(
        substitute(command).argv,
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=180,
        text=True,
        check=False,
    )
    if completed.returncode == 0:
        return ""
    return f"{command}: exit status {completed.returncode}, output: {completed.stdout[-2000:]}"
