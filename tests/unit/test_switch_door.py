"""Lines of JSON to the process of the switches, and what it answers."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from emulator.switch.agent import Agent
from emulator.switch.memory import MemoryDatapath
from emulator.switch.openflow_door import Door, Wanted
from emulator.switch.openflow_ports import MemoryInterfaces
from emulator.switch.seam import Port
from moefabric.errors import FabricError

S0 = {"name": "s0", "datapath_id": 1, "ports": {"1": "a", "2": "b"}}


@pytest.fixture
def door() -> Iterator[Door]:
    with ExitStack() as undo:
        interfaces = MemoryInterfaces()
        undo.callback(interfaces.close)
        agent = Agent(interfaces)
        undo.callback(agent.close)

        def made(wanted: Sequence[Wanted]) -> Iterator[MemoryDatapath]:
            for each in wanted:
                if "gone" in each.ports.values():
                    raise FabricError("gone: no such interface")
                datapath = MemoryDatapath(Port(number, name) for number, name in each.ports.items())
                undo.callback(datapath.close)
                yield datapath

        yield Door(agent, interfaces, made, lambda: 0)


def ask(door: Door, told: Any) -> dict[str, Any]:
    said = door.answer(told if isinstance(told, bytes) else json.dumps(told).encode())
    assert said.endswith(b"\n")
    answer: dict[str, Any] = json.loads(said)
    return answer


def test_switches_are_made_connected_and_shown(door: Door) -> None:
    assert ask(door, {"make": [S0]}) == {"made": 1}
    assert ask(door, {"connect": {"s0": ["127.0.0.1", 6653]}}) == {"connecting": 1}
    assert ask(door, {"show": True}) == {"switches": {"s0": {"connected": False, "rules": 0}}}


def test_each_switch_has_a_socket_where_a_folder_is_given(door: Door, tmp_path: Path) -> None:
    ask(door, {"make": [S0], "management": str(tmp_path / "new")})
    assert (tmp_path / "new" / "s0.mgmt").is_socket()
    assert ask(door, {"make": [{**S0, "name": "s1"}], "management": None}) == {"made": 1}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["s0.mgmt"]


def test_a_socket_that_is_left_over_gives_way_and_a_file_does_not(door: Door, tmp_path: Path) -> None:
    (tmp_path / "s0.mgmt").write_text("mine")
    assert "s0.mgmt: no socket" in ask(door, {"make": [S0], "management": str(tmp_path)})["error"]
    assert (tmp_path / "s0.mgmt").read_text() == "mine"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        pytest.param(
            {"make": [{**S0, "name": "s1", "ports": {"1": "gone"}}]},
            "gone: no such interface",
            id="interface",
        ),
        pytest.param({"make": [S0]}, "s0: made before", id="twice"),
        pytest.param({"connect": {"s9": ["127.0.0.1", 1]}}, "KeyError: 's9'", id="unknown"),
        pytest.param({"make": [{"name": "s1"}]}, "KeyError: 'ports'", id="lacking"),
        pytest.param({"unmake": 1}, "neither make nor connect nor show", id="unknown-word"),
        pytest.param([1], "neither make nor connect nor show", id="a-list"),
        pytest.param(b"{", "JSONDecodeError", id="no-json"),
    ],
)
def test_what_makes_no_sense_is_told(door: Door, told: Any, why: str) -> None:
    ask(door, {"make": [S0]})
    assert why in ask(door, told)["error"]
    assert list(ask(door, {"show": True})["switches"]) == ["s0"]


def test_nobody_is_connected_where_one_of_them_is_not_there(door: Door) -> None:
    ask(door, {"make": [S0]})
    ask(door, {"connect": {"s0": ["127.0.0.1", 6653], "s9": ["127.0.0.1", 6653]}})
    assert door._agent._posts["s0"].controller is None
