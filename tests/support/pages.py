"""The commands of the README and of the guides, and how a test runs them."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.support.namespaces import own_machine
from tests.support.paths import REPOSITORY
from tests.support.slow_machines import was_starved

FENCE = re.compile(r"^ *```bash\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SET_UP = ("git clone", "cd ")
PYTHON_FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_ABOVE = re.compile(r"the file above as `(\w+\.py)`")
GUIDES = sorted(str(page.relative_to(REPOSITORY)) for page in REPOSITORY.glob("docs/guides/*.md"))
PAGES = ["README.md", *GUIDES]


def commands(text: str) -> list[str]:
    """Return the commands of all bash fences, without prompts, comments and cloning."""
    fences = [fence.replace("\\\n", " ") for fence in FENCE.findall(text)]
    lines = [line.strip().removeprefix("$ ") for fence in fences for line in fence.splitlines()]
    lines = [line.split("  #")[0].strip() for line in lines]
    return [line for line in lines if line and not line.startswith(("#", *SET_UP))]


def substitute(command: str) -> list[str]:
    """Return the command, or what stands for one that takes minutes or changes the machine."""
    words = shlex.split(command)
    program, verb = Path(words[0]).name, " ".join(words[1:2])
    argv = ["bash", "-c", command]
    if command.startswith(("python3 -m venv ~", "~/moefabric/")):
        argv = ["true"]  # test_installed_package installs into an environment
    elif program == "make":
        argv = ["make", "--dry-run", *words[1:]]
    elif (program, verb) == ("docker", "compose") and "examples/containers" not in command:
        argv = ["true"]  # test_containers runs the services
    elif (program, verb) == ("pip", "install"):
        argv = [*words, "--no-build-isolation", "--target", "site"]
    elif program == "torchrun":  # test_training_program trains for longer
        argv = [words[0], "--nproc-per-node", "2", *words[3:-1], "2"]
    elif program == "moefabric" and verb in {"compare", "report"}:
        argv = [words[0], verb, "--help"]  # unit tests compare results of runs
    elif program == "moefabric" and verb in {"run", "train"}:
        argv = [words[0], "predict", words[2]]  # the kernel tests run experiments
    return argv


def files_of(text: str) -> dict[str, str]:
    """Return the Python files that a page has the reader write: name and content."""
    files = {}
    for match in FILE_ABOVE.finditer(text):
        files[match[1]] = PYTHON_FENCE.findall(text[: match.start()])[-1]
    return files


def working_copy(folder: Path) -> Path:
    """Return a folder like the repository in which commands may write files."""
    folder.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name == "examples":
            shutil.copytree(entry, folder / entry.name)
        elif entry.name not in {"out", "build"}:
            (folder / entry.name).symlink_to(entry)
    return folder


def failures_of_page(page: str, folder: Path, *, skipped: str = "") -> list[str]:
    """Run the commands of a page in order; return a message for each that fails.

    The page has a network namespace of its own, so that two pages may name their fabrics alike.

    Args:
        page: The page.
        folder: Folder of what the commands write.
        skipped: Pattern of the commands that do not run.
    """
    text, work = (REPOSITORY / page).read_text(), working_copy(folder / "work")
    for name, content in files_of(text).items():
        (work / name).write_text(content)
    with own_machine():
        environment = {
            **os.environ,
            "HOME": str(folder),
            "PATH": f"{REPOSITORY}/.venv/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(work / "site"),
        }
        try:
            failures = [
                failure
                for command in commands(text)
                if not (skipped and re.search(skipped, command))
                if (failure := _failure(command, environment, work))
            ]
        finally:
            down = [str(REPOSITORY / ".venv/bin/moefabric"), "down"]
            subprocess.run(down, env=environment, cwd=REPOSITORY, timeout=60, check=False)
    return failures


def _failure(command: str, environment: dict[str, str], work: Path) -> str:
    """Run a command; return a message if it fails, else nothing."""
    completed = subprocess.run(
        substitute(command),
        env=environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=180,
        text=True,
        check=False,
    )
    is_invalid = completed.returncode == 3 and was_starved(completed.stdout)
    if completed.returncode == 0 or is_invalid:
        return ""
    return f"{command}: exit status {completed.returncode}, output: {completed.stdout[-2000:]}"
