"""Every command of the README and of the guides is valid here: programs, options and files."""

import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import click
import pytest
import yaml

from tests.support.command_syntax import check_moefabric
from tests.support.pages import PAGES, commands, files_of, working_copy
from tests.support.paths import REPOSITORY

TARGETS = set(re.findall(r"(?m)^([\w-]+(?: [\w-]+)*):(?!=)", (REPOSITORY / "Makefile").read_text()))
OTHERS = {"pip", "python3", "sed", "torchrun", "transfer"}
"""Programs whose commands run by `make test-all` only."""


def check(command: str) -> None:
    """Raise an error if a command can't work in the current folder."""
    words = shlex.split(command)
    program, arguments = Path(words[0]).name, words[1:]
    if program == "moefabric":
        check_moefabric(arguments)
    elif program == "make":
        known = {name for line in TARGETS for name in line.split()}
        assert {word for word in arguments if "=" not in word} <= known
    elif (program, arguments[0]) == ("docker", "compose"):
        files = [file for option, file in pairwise(arguments) if option in {"-f", "--file"}]
        services = yaml.safe_load(Path(*files or ["docker-compose.yml"]).read_text())["services"]
        assert files or arguments[-1] in services
    elif program == "cp":
        shutil.copytree(arguments[-2], arguments[-1])
    else:
        assert program in OTHERS


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_are_valid(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(working_copy(tmp_path / "work"))
    Path("out").mkdir()
    Path("out/before.json").touch()  # a result of an earlier version of the user's
    text = (REPOSITORY / page).read_text()
    for name, content in files_of(text).items():
        Path(name).write_text(content)
    for command in commands(text):
        check(command)


@pytest.mark.parametrize(
    "command",
    [
        "moefabric run examples/nowhere.yaml",
        "moefabric run examples/prototype.yaml --jsn out.json",
        "moefabric trace generat",
        "make tests",
        "docker compose up nowhere",
        "mooefabric run examples/prototype.yaml",
    ],
)
def test_faults_of_commands_are_found(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(working_copy(tmp_path / "work"))
    with pytest.raises((AssertionError, click.UsageError)):
        check(command)


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
    text = (REPOSITORY / "README.md").read_text()
    assert {"make demo", "make test", "docker compose up testbed"} <= set(commands(text))
