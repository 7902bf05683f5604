"""`moefabric fault`: wrong usage is refused before a fabric is needed."""

import pytest
from click.testing import CliRunner

from moefabric.ui.cli import fault as fault_commands
from tests.support.fabrics import fabric


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


def test_fault_of_ports_names_their_nics() -> None:
    wired = fabric(2, 1, regions=(2, 2))
    entry = {"number": 1, "kind": "port", "ports": [1, 5], "value": 0.0, "times": None}
    line = fault_commands.fault_line(entry, wired, wired.regions[1])
    assert line == "1: port 1,5 (s2/o0 at ocs1)"
    assert fault_commands.fault_line(entry | {"ports": []}, wired, wired.regions[1]) == "1: port"


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
