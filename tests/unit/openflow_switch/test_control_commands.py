"""Commands to the switches' process, and its replies."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.openflow_switch.agent.agent import OpenFlowAgent
from moefabric.emulator.openflow_switch.agent.control_commands import ControlCommands, SwitchSpec
from moefabric.emulator.openflow_switch.datapath.interface import Port
from tests.support.memory_datapath import MemoryDatapath, MemoryInterfaces

S0 = {"name": "s0", "datapath_id": 1, "ports": {"1": "a", "2": "b"}}


@pytest.fixture
def commands() -> Iterator[ControlCommands]:
    with ExitStack() as undo:
        interfaces = MemoryInterfaces()
        undo.callback(interfaces.close)
        agent = OpenFlowAgent(interfaces)
        undo.callback(agent.close)

        def datapaths(specs: Sequence[SwitchSpec]) -> Iterator[MemoryDatapath]:
            for spec in specs:
                if "gone" in spec.ports.values():
                    raise FabricError("gone: no such interface")
                datapath = MemoryDatapath(Port(number, name) for number, name in spec.ports.items())
                undo.callback(datapath.close)
                yield datapath

        yield ControlCommands(agent, datapaths)


def ask(commands: ControlCommands, command: Any) -> dict[str, Any]:
    line = command if isinstance(command, bytes) else json.dumps(command).encode()
    reply = commands.reply(line)
    assert reply.endswith(b"\n")
    document: dict[str, Any] = json.loads(reply)
    return document


def test_make_connect_and_show_switches(commands: ControlCommands) -> None:
    assert ask(commands, {"make": [S0]}) == {"made": 1}
    assert ask(commands, {"connect": {"s0": ["127.0.0.1", 6653]}}) == {"connecting": 1}
    assert ask(commands, {"show": True}) == {"switches": {"s0": {"connected": False, "rules": 0}}}


def test_make_creates_management_sockets_in_folder(
    commands: ControlCommands, tmp_path: Path
) -> None:
    ask(commands, {"make": [S0], "management": str(tmp_path / "new")})
    assert (tmp_path / "new" / "s0.mgmt").is_socket()
    assert ask(commands, {"make": [{**S0, "name": "s1"}], "management": None}) == {"made": 1}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["s0.mgmt"]


def test_make_keeps_file_at_path_of_socket(commands: ControlCommands, tmp_path: Path) -> None:
    (tmp_path / "s0.mgmt").write_text("mine")
    assert (
        "s0.mgmt: no socket" in ask(commands, {"make": [S0], "management": str(tmp_path)})["error"]
    )
    assert (tmp_path / "s0.mgmt").read_text() == "mine"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        pytest.param(
            {"make": [{**S0, "name": "s1", "ports": {"1": "gone"}}]},
            "gone: no such interface",
            id="interface",
        ),
        pytest.param({"make": [S0]}, "s0: made before", id="twice"),
        pytest.param({"connect": {"s9": ["127.0.0.1", 1]}}, "KeyError: 's9'", id="unknown"),
        pytest.param({"make": [{"name": "s1"}]}, "KeyError: 'ports'", id="missing"),
        pytest.param({"unmake": 1}, "neither make nor connect nor show", id="unknown-word"),
        pytest.param([1], "neither make nor connect nor show", id="a-list"),
        pytest.param(b"{", "JSONDecodeError", id="no-json"),
    ],
)
def test_invalid_command_gets_error(commands: ControlCommands, command: Any, error: str) -> None:
    ask(commands, {"make": [S0]})
    assert error in ask(commands, command)["error"]
    assert list(ask(commands, {"show": True})["switches"]) == ["s0"]


def test_connect_with_unknown_switch_connects_none(commands: ControlCommands) -> None:
    ask(commands, {"make": [S0]})
    ask(commands, {"connect": {"s0": ["127.0.0.1", 6653], "s9": ["127.0.0.1", 6653]}})
    assert commands._agent.switches["s0"].controller is None
