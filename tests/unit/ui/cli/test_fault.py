"""`moefabric fault`: wrong usage is refused before a fabric is needed."""

import pytest
from click.testing import CliRunner

from moefabric.ui.cli import fault as fault_commands


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["port"], "port PORT", id="which-port"),
        pytest.param(["loss", "1", "8"], "loss PATH", id="two-words"),
        pytest.param(["list", "me"], "takes no arguments", id="too-much"),
        pytest.param(["reject", "--clear"], "either a kind of fault or --clear", id="both"),
        pytest.param(["melt"], "'melt' is not one of", id="unknown"),
    ],
)
def test_fault_ocs_refuses_wrong_usage(words: list[str], expected: str) -> None:
    result = CliRunner().invoke(fault_commands.fault, ["ocs", *words])
    assert result.exit_code == 2
    assert expected in result.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give --kill, --stop or --continue"),
        (["--kill", "--stop"], "give one of --kill, --stop or --continue"),
    ],
)
def test_fault_controller_takes_one_action(words: list[str], expected: str) -> None:
    result = CliRunner().invoke(fault_commands.fault, ["controller", "r0", "--name", "a", *words])
    assert result.exit_code == 2
    assert expected in result.output
