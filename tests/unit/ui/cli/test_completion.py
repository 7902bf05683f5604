"""`moefabric completion`: scripts for shells, and the values that they offer."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from moefabric.ui.cli.main import main


def offered(*words: str) -> list[str]:
    """Return the values for the last word."""
    shell = ShellComplete(main, {}, "moefabric", "_MOEFABRIC_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_names_the_program_and_its_variable(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_MOEFABRIC_COMPLETE={shell}_complete" in result.output


def test_bash_accepts_its_script(tmp_path: Path) -> None:
    script = tmp_path / "moefabric.bash"
    script.write_text(CliRunner().invoke(main, ["completion", "bash"]).output)
    ask = f"source {script} && complete -p moefabric"
    done = subprocess.run(["bash", "-c", ask], check=True, capture_output=True, text=True)
    assert done.stdout == "complete -o nosort -F _moefabric_completion moefabric\n"


@pytest.mark.parametrize("command", ["run", "up"])
def test_set_offers_no_key_behind_a_name_that_the_file_chooses(command: str) -> None:
    keys = offered(command, "--set", "")
    prefix = "wiring." if command == "run" else ""
    assert f"{prefix}servers=" in keys
    assert not any(key.startswith(f"{prefix}servers.") for key in keys)
    assert offered(command, "--set", "nokey") == []


def test_bash_leaves_no_space_behind_a_key(tmp_path: Path) -> None:
    """A shell that is told to press the tabulator and then to print its line."""
    script = tmp_path / "moefabric.bash"
    program = Path(sys.executable).with_name("moefabric")
    text = CliRunner().invoke(main, ["completion", "bash"]).output
    script.write_text(text.replace("=bash_complete $1", f"=bash_complete {program}"))
    typed = f"source {script}\nPS1=\nmoefabric run --set training.itera\t1 --set gating.noi\t0"
    shell = subprocess.run(
        ["bash", "--norc", "--noprofile", "-i"],
        input=f"{typed}\x01echo got: \nexit\n",
        env={"PATH": "/usr/bin:/bin", "TERM": "dumb", "HISTFILE": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "got: moefabric run --set training.iterations=1 --set gating.noise=0" in shell.stdout


@pytest.mark.usefixtures("two_running")
@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["inspect", ""], ["lab", "other"]),
        (["inspect", "--name", "o"], ["other"]),
        (["down", "l"], ["lab"]),
        (["exec", "l"], ["lab"]),
        (["exec", "lab", "s"], ["s0", "s1", "s2", "s3"]),
        (["exec", "--name", "lab", "o"], ["ocs0"]),
        (["ocs", "lab", ""], ["ocs0"]),
        (["fault", "--name", "lab", "nic", "s1/"], ["s1/o0", "s1/o1", "s1/o2", "s1/e0"]),
        (["fault", "nic", "--name", "lab", "s1/e"], ["s1/e0"]),
        (["light", "lab", "s0~"], ["s0~s1", "s0~s2", "s0~s3"]),
        (["light", "lab", "s0/o1~s3"], ["s0/o1~s3/o0", "s0/o1~s3/o1", "s0/o1~s3/o2"]),
        (["capture", "lab", "leaf"], ["leaf0"]),
        (["fault", "ocs", "partial"], ["partial-apply"]),
    ],
)
def test_values_are_those_of_the_running_fabric(words: list[str], values: list[str]) -> None:
    assert offered(*words) == values


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["light", "--policy", "mixnet-"], "mixnet-spill"),
        (["policy", "check", "jo"], "joint"),
        (["model", "show", "deepseek-v"], "deepseek-v3"),
        (["explain", "wiring.regions.ocs.se"], "wiring.regions.ocs.settle"),
        (["schema", "ocs"], "ocs-profile"),
        (["trace", "in"], "info"),
        (["run", "x.yaml", "--set", "training.it"], "training.iterations="),
        (["predict", "--set", "wiring.n"], "wiring.nic_rate="),
        (["train", "--set", "fabrics[12].po"], "fabrics[12].policy="),
        (["run", "--set", "wiring.regions[0].ocs.se"], "wiring.regions[0].ocs.settle="),
        (["run", "--set", "fabr"], "fabrics[0].policy="),
        (["up", "--set", "fabric=mine", "--set", "nic"], "nic_rate="),
        (["perf", "--set", "nic"], "nic_rate="),
        (["sweep", "--set", "re"], "repetitions="),
    ],
)
def test_values_without_a_fabric(
    words: list[str], value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))
    assert value in offered(*words)
    assert all(one.startswith(words[-1]) for one in offered(*words))


def test_nothing_is_offered_while_no_fabric_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))
    for words in (["exec", ""], ["light", "s0~"], ["fault", "nic", ""], ["inspect", ""]):
        assert offered(*words) == []
