"""Processes of a fabric that end by SIGKILL: they return, or everybody can see their end."""

import json
import os
import signal
from typing import Any

import pytest

from moefabric.runtime.waiting import Deadline
from tests.support.command_home import FABRIC, NEEDS, Home

pytestmark = [*NEEDS, pytest.mark.timeout(180)]


def inspected(home: Home) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(home.must("inspect", "--json"))
    return shown


def pid_of(home: Home, name: str) -> int | None:
    processes = inspected(home)["processes"]
    return next((one["pid"] for one in processes if one["name"] == name), None)


def kill(home: Home, name: str) -> int:
    """Kill a process, wait for its end, and return its id."""
    pid = pid_of(home, name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    Deadline.after(30).wait_for(lambda: pid_of(home, name) != pid, f"the end of {name}")
    return pid


def test_up_replaces_a_fabric_that_lost_a_process_and_says_so(home: Home) -> None:
    file = home.write("fabric.yaml", FABRIC.format(name="cli"))
    home.must("up", file)
    killed = kill(home, "switches")
    lines = home.must("up", file).splitlines()
    assert lines[0].startswith("cli: replaced, because switches ended (signal 9)")
    assert lines[1].startswith("cli: up, 2 servers")
    assert pid_of(home, "switches") not in {None, killed}, "it stays after the end of `up`"
    assert home.must("up", file).startswith("cli: was up already, ")
    home.must("down", "cli")
