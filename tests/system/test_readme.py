"""Runs the commands of the README and of the guides."""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.namespaces import own_machine

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ *```bash\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SET_UP = ("git clone", "cd ")
PYTHON_FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_ABOVE = re.compile(r"the file above as `(\w+\.py)`")
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
    program, verb = Path(words[0]).name, " ".join(words[1:2])
    argv, why = ["bash", "-c", command], ""
    if command.startswith(("python3 -m venv ~", "~/moefabric/")):
        argv, why = ["true"], "test_installed_package installs into an environment"
    elif program == "make":
        argv, why = ["make", "--dry-run", *words[1:]], "tests do not run tests or the demo"
    elif (program, verb) == ("docker", "compose") and "examples/containers" not in command:
        argv = ["docker", "compose", "--dry-run", "config", "--quiet"]
        why = "test_containers runs the services"
    elif (program, verb) == ("pip", "install"):
        argv = [*words, "--no-build-isolation", "--target", "site"]
        why = "tests leave the environment as it is"
    elif program == "torchrun":
        argv = [words[0], "--nproc-per-node", "2", *words[3:-1], "2"]
        why = "test_training_program trains for longer"
    elif program == "moefabric" and verb in {"compare", "report"}:
        argv, why = [words[0], verb, "--help"], "unit tests compare results of runs"
    elif program == "moefabric" and verb in {"run", "train"}:
        argv, why = [words[0], "predict", words[2]], "the kernel tests run experiments"
    return Substitute(argv, why)


def files_of(text: str) -> dict[str, str]:
    """Return the Python files that a page has the reader write: name and content."""
    files = {}
    for match in FILE_ABOVE.finditer(text):
        files[match[1]] = PYTHON_FENCE.findall(text[: match.start()])[-1]
    return files


def working_copy(folder: Path) -> Path:
    """Return a folder like the repository in which commands may write files."""
    folder.mkdir()
    for entry in ROOT.iterdir():
        if entry.name == "examples":
            shutil.copytree(entry, folder / entry.name)
        elif entry.name not in {"out", "build"}:
            (folder / entry.name).symlink_to(entry)
    return folder


def test_file_of_a_page_is_the_last_one_above_its_name() -> None:
    text = "```python\na\n```\n```python\nb\n```\nWith the file above as `x.py`:\n"
    assert files_of(text) == {"x.py": "b\n"}


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


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_succeeds(page: str, tmp_path: Path, base: str) -> None:
    """Commands run in order, since `inspect` needs the `up` above it.

    Each page has a network namespace of its own, so that two pages may name their fabrics alike.
    """
    text, work = (ROOT / page).read_text(), working_copy(tmp_path / "work")
    for name, content in files_of(text).items():
        (work / name).write_text(content)
    with own_machine():
        environment = {
            **os.environ,
            "HOME": str(tmp_path),
            "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(work / "site"),
        }
        try:
            failures = [
                failure
                for command in commands(text)
                if (failure := _failure(command, environment, work))
            ]
        finally:
            moefabric = ROOT / ".venv" / "bin" / "moefabric"
            subprocess.run([moefabric, "down"], env=environment, cwd=ROOT, timeout=60, check=False)
    assert failures == []


def _failure(command: str, environment: dict[str, str], work: Path) -> str:
    """Run a command; return a message if it fails, else nothing."""
    completed = subprocess.run(
        substitute(command).argv,
        env=environment,
        cwd=work,
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
