"""Commands on the nodes of a running fabric: programs of the user, and captures of frames."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError, some_of
from moefabric.emulator.containers.execution import execution_argv
from moefabric.emulator.fabric.daemon_protocol import NODES, process_id, request
from moefabric.emulator.fabric.other_machines import machine_of_node, remote_argv
from moefabric.emulator.fabric.placed_plan import component_of
from moefabric.emulator.fabric.plan import BRIDGE, Interface, plan_fabric
from moefabric.emulator.fabric.plugged_hosts import shell_of
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.emulator.fabric.server_containers import container_of
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.marked_processes import mark_environment
from moefabric.emulator.linux.processes import nsenter_argv
from moefabric.runtime.run_directory import FabricWiring

_FREE_PORT: Final = """
import socket
with socket.create_server(("", 0)) as server:
    print(server.getsockname()[1])
"""
_CAPTURE: Final = str(Path(__file__).parents[1] / "linux" / "packet_capture.py")


def exec_argv(name: str, node: str, command: Sequence[str]) -> list[str]:
    """Return the argv that runs a command on a server (`s0`) or OCS (`ocs0`).

    An empty node is the fabric's own namespace on this machine, with the switches.

    On a server that is a container, the command has the container's files, user and variables, and
    the container's `python3` takes the place of this Python. On a real host, it runs there.

    Raises:
        FabricError: if no fabric of that name runs, or it has no such node.
    """
    run_dir = named_run_directory(name)
    if machine := machine_of_node(run_dir, node):
        return remote_argv(run_dir, machine, node, command)
    pid = _node_pid(name, node)
    if shell := shell_of(run_dir, node):
        return [*shell, "--", *command]
    if container := container_of(run_dir, node):
        marks = _marks(name)
        there = ["python3" if word == sys.executable else word for word in command]
        return ["env", *marks, *execution_argv(container, marks, there)]
    return _marked_argv(name, pid, command)


def network_argv(name: str, node: str, command: Sequence[str]) -> list[str]:
    """Return the argv that runs a command with a node's network and this machine's files.

    Raises:
        FabricError: if no fabric of that name runs, or it has no such node.
    """
    run_dir = named_run_directory(name)
    if machine := machine_of_node(run_dir, node):
        return remote_argv(run_dir, machine, node, command, kind="network")
    return nsenter_argv(namespaces.path_of(_node_pid(name, node)), command)


def free_port(name: str, node: str) -> int:
    """Return a TCP port that no program uses on a server or OCS now.

    Raises:
        FabricError: if no fabric of that name runs, or it has no such node.
    """
    return int(run(network_argv(name, node, [sys.executable, "-S", "-I", "-c", _FREE_PORT])))


def _node_pid(name: str, node: str) -> int:
    """Return the pid of a process in a node's namespaces; an empty node is the fabric's own.

    Raises:
        FabricError: if no fabric of that name runs, or it has no such node.
    """
    run_dir = named_run_directory(name)
    if not node:
        return process_id(run_dir)
    request(run_dir, {"do": "ping"})
    pids = json.loads((run_dir.path / NODES).read_text())
    if node not in pids:
        raise FabricError(f"{node}: {name} has no such server or OCS; it has {', '.join(pids)}")
    return int(pids[node])


@dataclass(frozen=True)
class CapturePoint:
    """An interface of a fabric whose frames can be captured.

    Attributes:
        node: Node in whose namespace it is; empty for the fabric's own.
        interface: Its name there.
        name: Its name in the fabric, such as `s0/o1`.
        machine: The machine that has it; empty for the head.
    """

    node: str
    interface: str
    name: str
    machine: str = ""


def capture_points(wiring: FabricWiring, place: str) -> list[CapturePoint]:
    """Return the interfaces of a place, which are all in one namespace.

    Args:
        place: a NIC (`s0/o1`), where frames leave and enter the server; a server (`s0`), for the
            frames of its programs; a circuit (`s0/o0~s3/o0`), lit or not, for both its NICs; a link
            between switches (`leaf0~spine0`); a switch (`leaf0`), for all its ports; an OCS
            (`ocs0`), for its management; or `management`, for controllers and switches.

    Raises:
        FabricError: if the fabric has no such place.
    """
    fabric = wiring.fabric
    plan = plan_fabric(fabric, wiring.management).with_interfaces(wiring.interfaces)
    links = {link.name: link.a for link in plan.links}
    switches = {switch.name: switch.ports for switch in plan.switches}
    aliases = {server: f"{server}/host" for server in fabric.servers}
    aliases |= {ocs.name: f"{ocs.name}/management" for ocs in plan.ocses}

    def point(end: Interface, name: str) -> CapturePoint:
        return CapturePoint(end.node, end.name, name, wiring.machine_of(component_of(end)))

    if end := links.get(aliases.get(place, place)):
        return [point(end, place)]
    nics = place.split("~")
    if len(nics) == 2 and all(nic in links for nic in nics):
        return [point(links[nic], nic) for nic in nics]
    if place in switches:
        return [point(port, port.name) for port in switches[place]]
    if place == BRIDGE:
        return [CapturePoint("", BRIDGE, BRIDGE)]
    known: dict[str, list[str]] = {
        "NICs": [str(nic) for server in fabric.servers for nic in fabric.nics(server)],
        "servers": list(fabric.servers),
        "OCSes": [ocs.name for ocs in plan.ocses],
        "switches": [*fabric.leaves, *fabric.spines],
    }
    there_are = "; ".join(f"the {kind} {some_of(names)}" for kind, names in known.items() if names)
    raise FabricError(f"{place}: {fabric.name} has no such place; it has {there_are}; {BRIDGE}")


def capture_argv(
    name: str, points: Sequence[CapturePoint], file: Path, length: int, **limits: int | None
) -> list[str]:
    """Return the argv of a program that captures the frames of interfaces (`packet_capture`).

    Args:
        name: the fabric.
        points: the interfaces, all in one namespace.
        file: the pcapng file to write.
        length: bytes to keep of each frame.
        limits: `frames` and `bytes` after which the capture ends; None for no limit.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    interfaces = [[p.interface, p.name, f"{p.name} of fabric {name}"] for p in points]
    settings = {"file": str(file.absolute()), "length": length, "interfaces": interfaces, **limits}
    if machine := points[0].machine:
        place = named_run_directory(name), machine, points[0].node
        return remote_argv(*place, [json.dumps(settings)], kind="capture", file=file)
    return local_capture_argv(name, points[0].node, settings)


def local_capture_argv(name: str, node: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the argv of a program that captures frames on this machine.

    Args:
        name: the fabric.
        node: node whose interfaces they are; empty for the fabric's own namespace.
        settings: those of `packet_capture`.

    Raises:
        FabricError: if no fabric of that name runs here.
    """
    program = [sys.executable, "-S", "-I", _CAPTURE, json.dumps(settings)]
    return _marked_argv(name, _node_pid(name, node), program)


def _marked_argv(name: str, pid: int, command: Sequence[str]) -> list[str]:
    """Return the argv that runs a command in a process's namespaces, marked as the fabric's."""
    return nsenter_argv(pid, ["env", *_marks(name), *command])


def _marks(name: str) -> list[str]:
    """Return the variables, each `NAME=VALUE`, that mark a process as the fabric's."""
    return [f"{key}={value}" for key, value in mark_environment(name).items()]
