"""What commands import before they work, which is most of their time on the console."""

import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest

from moefabric.ui.cli.main import main
from tests.support.paths import EXAMPLES, REPOSITORY

EXPERIMENT = str(EXAMPLES / "ci/experiment.yaml")
HEAVY = {"jinja2", "numpy", "pydantic", "rich", "scipy", "yaml"}
PROGRAM = """
import os, sys
from moefabric.ui.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
    print(len(os.listdir("/proc/self/task")), "OPENBLAS_NUM_THREADS" in os.environ, file=sys.stderr)
"""


HELPS = """
import sys
from click.testing import CliRunner
from moefabric.ui.cli.main import main
heavy = set(sys.argv[1].split())
for command in sys.argv[2:]:
    result = CliRunner().invoke(main, [command, "--help"])
    print(command, result.exit_code, *sorted(heavy & set(sys.modules)))
"""

INTERRUPTED = """
import sys

class Interruption:
    def find_spec(self, name, *_):
        if name == sys.argv[2]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interruption())
module, _, function = sys.argv[1].partition(":")
getattr(__import__(module, fromlist=[function]), function)()
"""


@cache
def started(*words: str, **variables: str) -> tuple[set[str], list[str]]:
    """Run a command; return the modules that it imports, its threads and whether they are set."""
    inherited = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    argv = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(argv, env=inherited | variables, check=True, capture_output=True)
    modules, threads = done.stderr.decode().splitlines()
    return set(modules.split()), threads.split()


def test_help_imports_no_command() -> None:
    modules, _ = started("--help")
    ours = {name for name in modules if name.startswith("moefabric.ui.cli.")}
    assert ours == {"moefabric.ui.cli.main"}
    assert not modules & HEAVY


def test_help_of_a_command_imports_nothing_heavy() -> None:
    commands = ["run", "predict", "up", "doctor", "down", "exec", "logs"]
    argv = [sys.executable, "-c", HELPS, " ".join(HEAVY), *commands]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{command} 0" for command in commands]


@pytest.mark.parametrize("imported", ["moefabric.ui.cli.main", "click", "moefabric.core.errors"])
def test_interrupted_import_ends_without_a_traceback(imported: str) -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    argv = [sys.executable, "-c", INTERRUPTED, scripts["moefabric"], imported]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "moefabric: interrupted\n")


@pytest.mark.parametrize("missing", ["click", "moefabric"])
def test_checkout_that_is_not_installed_names_the_remedy(missing: str, tmp_path: Path) -> None:
    if missing == "moefabric":  # its metadata
        (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    argv = [sys.executable, "-S", "-m", "moefabric", "--version"]
    environment = {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    fault = f"moefabric: {missing} isn't installed in {sys.executable}: run packaging/setup, "
    assert (done.returncode, done.stderr.startswith(fault)) == (1, True), done.stderr


def test_prediction_imports_no_pages_and_no_solvers() -> None:
    modules, _ = started("predict", EXPERIMENT)
    assert not modules & {"jinja2", "scipy", "moefabric.report.pictures"}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")
def test_numpy_has_one_thread_unless_the_user_says_otherwise() -> None:
    assert started("predict", EXPERIMENT)[1] == ["1", "False"]
    assert started("predict", EXPERIMENT, OPENBLAS_NUM_THREADS="2")[1] == ["2", "True"]
    assert started("predict", EXPERIMENT, OMP_NUM_THREADS="2")[1] == ["2", "False"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completes_commands_with_their_summaries(shell: str) -> None:
    variables = {
        "_MOEFABRIC_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "moefabric pre",
        "COMP_CWORD": "pre" if shell == "fish" else "1",
    }
    argv = [str(Path(sys.executable).with_name("moefabric"))]
    done = subprocess.run(argv, env=os.environ | variables, check=True, capture_output=True)
    summary = "" if shell == "bash" else "Predict the results of an experiment."
    assert "predict" in done.stdout.decode()
    assert summary in done.stdout.decode()
    assert "sweep" not in done.stdout.decode()


def test_listed_commands_are_those_of_the_modules() -> None:
    context = main.make_context("moefabric", ["doctor"])
    names = main.list_commands(context)
    commands = [main.get_command(context, name) for name in names]
    assert [command and command.name for command in commands] == names != []
