"""Processes of a fabric that end by SIGKILL: they return, or everybody can see their end."""

import json
import os
import signal
from typing import Any

import pytest

from moefabric.emulator.fabric.daemon_protocol import NODES
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


def test_end_of_the_process_that_holds_the_nodes_is_named_and_mended_by_up(home: Home) -> None:
    file = home.write("fabric.yaml", FABRIC.format(name="cli"))
    home.must("up", file)
    nodes = json.loads((home.folder / "run/cli" / NODES).read_text())
    os.kill(nodes["s0"], signal.SIGKILL)
    lost = "s0 to ocs0: the process that holds their namespaces has ended"
    Deadline.after(10).wait_for(lambda: lost in inspected(home)["faults"], "its end")
    assert ("lost", "process", ["namespaces"]) in process_events(home)
    assert "process namespaces  ended (signal 9)" in home.must("inspect")
    assert "cli: namespaces ended (signal 9)" in home.must("list").splitlines()
    assert home.must("up", file).startswith(f"cli: replaced, because {lost}")
    home.must("exec", "s0", "true")
    home.must("down", "cli")


def process_events(home: Home) -> list[tuple[str, str, list[str]]]:
    """Return kind, failure and components of the events about processes and controllers."""
    events = map(json.loads, home.must("events", "--json").splitlines())
    about = {"process", "controller"}
    return [(e["kind"], e["failure"], e["what"]) for e in events if e.get("failure") in about]


def test_process_that_forks_controllers_returns_with_the_circuits(home: Home) -> None:
    home.must("up", home.write("fabric.yaml", FABRIC.format(name="cli")))
    home.must("light", "s0/o0~s1/o0")
    kill(home, "controllers")
    cleared = ("clear", "process", ["controllers"])
    Deadline.after(60).wait_for(lambda: cleared in process_events(home), "the controllers")
    events = process_events(home)
    assert (events[0], events[-1]) == (("lost", "process", ["controllers"]), cleared)
    phases = [
        (phase, "controller", [name])
        for phase in ("detected", "recovered")
        for name in ("r0", "eps")
    ]
    assert sorted(events[1:-1]) == sorted(phases)
    shown = inspected(home)
    assert shown["ocs"][0]["circuits"] == [["s0/o0", "s1/o0"]]
    assert (shown["ended"], shown["faults"]) == ([], [])
    assert "signal" not in home.must("list")
    home.must("light", "s0/o1~s1/o1")
    home.must("down", "cli")


def test_ends_of_shared_processes_are_seen_everywhere(home: Home) -> None:
    home.must("up", home.write("fabric.yaml", FABRIC.format(name="cli")))
    for name in ("switches", "agents-0"):
        kill(home, name)
        assert ("lost", "process", [name]) in process_events(home)
        assert f"process {name}  ended (signal 9)" in home.must("inspect")
        assert f"cli: {name} ended (signal 9)" in home.must("list").splitlines()
    refused = home.call("light", "s0/o0~s1/o0").stderr
    assert "cli: switches ended (signal 9), agents-0 ended (signal 9); `moefabric up`" in refused
    home.must("down", "cli")
