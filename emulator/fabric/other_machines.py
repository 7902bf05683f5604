"""The parts of a fabric on other machines, as the head's processes reach them.

One process of the fabric (`moefabric.testbed.cluster.head`) holds the parts. It passes each request
on to all of them, by a Unix socket in the head's run directory.
"""

import itertools
import json
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.core.machines import Machine, MachinePlacement
from moefabric.core.topology import Fabric
from moefabric.emulator.linux.line_requests import ask_socket
from moefabric.emulator.ocs.fd_handoff import control_path
from moefabric.runtime.run_directory import RunDirectory

HEAD_PROCESS: Final = "machines"
"""Name of the process that holds the parts, and of its log."""
_COMMAND: Final = "moefabric.testbed.cluster.command"
_REPLY_S: Final = 20.0
_SUMMED: Final = frozenset({"frames", "overflows"})

Reply = dict[str, Any]


@dataclass(frozen=True)
class Replies:
    """Replies of the other machines' parts to one request.

    Attributes:
        parts: the reply of each machine that has one.
        lost: reason of each missing reply, by machine.
    """

    parts: Mapping[str, Reply]
    lost: Mapping[str, str]

    @property
    def faults(self) -> list[str]:
        """The faults of all parts, with the machines' names."""
        named = [
            f"{machine}: {fault}"
            for machine, reply in self.parts.items()
            for fault in [*reply.get("faults", ()), *filter(None, [reply.get("error")])]
        ]
        return [*(f"machine {name}: {reason}" for name, reason in self.lost.items()), *named]


def ask_parts(run_dir: RunDirectory, message: Mapping[str, Any]) -> Replies:
    """Send a request to all parts on other machines.

    Args:
        run_dir: the head's run directory of the fabric.
        message: as the fabric process takes it (module `daemon`), or `counts`, `clocks`.

    Raises:
        FabricError: if the process that holds the parts doesn't answer.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_REPLY_S)
            link.connect(str(run_dir.machines_socket))
            reply = ask_socket(link, message)
        return Replies(reply["parts"], reply["lost"])
    except (OSError, ValueError) as error:
        raise FabricError(f"{run_dir.name}: its other machines don't answer: {error}") from error


@dataclass(frozen=True)
class OtherMachine:
    """Machine with a part of a fabric, as processes of the head reach it.

    Attributes:
        machine: its address, with the secret.
        nodes: its servers and OCSes.
        sockets: Unix sockets of its run directory that the head's run directory has too.
    """

    machine: Machine
    nodes: tuple[str, ...]
    sockets: tuple[str, ...]


def write_machines(run_dir: RunDirectory, fabric: Fabric, placement: MachinePlacement) -> None:
    """Write the other machines' addresses and secrets to a file that only root can read."""
    run_dir.machines_file.touch(0o600)
    listed = [asdict(_other(run_dir, fabric, placement, machine)) for machine in placement.others]
    run_dir.machines_file.write_text(json.dumps(listed))


def _other(
    run_dir: RunDirectory, fabric: Fabric, placement: MachinePlacement, machine: Machine
) -> OtherMachine:
    regions = [r for r in fabric.regions if placement.regions[r.name] == machine.name]
    servers = [server for region in regions for server in region.servers]
    ocses = {r.ocs.name: run_dir.ocs_socket(r) for r in regions if r.ocs is not None}
    paths = [*map(run_dir.agent_socket, servers), *map(control_path, ocses.values())]
    sockets = tuple(str(path.relative_to(run_dir.path)) for path in paths)
    return OtherMachine(machine, (*servers, *ocses), sockets)


def read_machines(run_dir: RunDirectory) -> list[OtherMachine]:
    """Return the other machines of a fabric, from its run directory on the head."""
    if not run_dir.machines_file.exists():
        return []
    return [
        OtherMachine(Machine(**entry["machine"]), tuple(entry["nodes"]), tuple(entry["sockets"]))
        for entry in json.loads(run_dir.machines_file.read_text())
    ]


def machine_of_node(run_dir: RunDirectory, node: str) -> str:
    """Return the other machine that has a server or OCS; empty if the head has it."""
    machines = read_machines(run_dir)
    return next((other.machine.name for other in machines if node in other.nodes), "")


def remote_argv(
    run_dir: RunDirectory,
    machine: str,
    node: str,
    command: Sequence[str],
    *,
    kind: str = "exec",
    file: Path | None = None,
) -> list[str]:
    """Return the argv that runs a command on a node of another machine, with its streams here.

    Args:
        run_dir: the head's run directory of the fabric.
        node: server or OCS; empty for the fabric's own namespace.
        kind: `exec`, `network` (`node_commands.exec_argv`, `network_argv`), or `capture`.
        file: where a capture goes at its end.
    """
    argv = [sys.executable, "-m", _COMMAND, "--run-dir", str(run_dir.path), "--machine", machine]
    argv += ["--node", node, "--kind", kind]
    return [*argv, *(["--file", str(file.absolute())] if file else ()), "--", *command]


class OtherParts:
    """The parts of a fabric on other machines, as a fabric process uses them.

    Attributes:
        is_head: Whether this machine has the controllers.
        exist: Whether this machine is the head, and there are other parts.
    """

    def __init__(
        self, run_dir: RunDirectory, placement: MachinePlacement | None, machine: str
    ) -> None:
        """Take the run directory, and the name of this machine."""
        self._run_dir = run_dir
        self.is_head = placement is None or placement.head.name == machine
        self.exist = self.is_head and placement is not None and bool(placement.others)

    def ask(self, message: Mapping[str, Any]) -> Replies:
        """Send a request to all parts on other machines, if any."""
        return ask_parts(self._run_dir, message) if self.exist else Replies({}, {})

    def stop(self) -> None:
        """Have other machines remove their parts.

        A machine that misses the request removes its part when its lease ends.
        """
        with suppress(FabricError):
            self.ask({"do": "stop"})

    def faults(self) -> list[str]:
        """Describe processes that have ended but should run."""
        return self.ask({"do": "ping"}).faults if self._run_dir.machines_socket.exists() else []

    def with_descriptions(self, head: Reply, servers: Sequence[str]) -> Reply:
        """Return the description of the whole fabric, from that of the head's part.

        Its `lost_machines` says why machines are lost, if there are any.
        """
        replies = self.ask({"do": "inspect"})
        whole = merged_description(head, replies.parts, servers) if replies.parts else head
        return whole | ({"lost_machines": replies.lost} if replies.lost else {})


def merged_description(
    head: Mapping[str, Any], parts: Mapping[str, Reply], order: Iterable[str]
) -> Reply:
    """Return the description of a whole fabric from those of its parts.

    Args:
        head: that of the head's part.
        parts: those of the other parts, by machine.
        order: the servers of the fabric.
    """
    merged = dict(head)
    for machine, part in parts.items():
        for kind in ("servers", "ocs", "switches", "links", "remarks"):
            merged[kind] = [*merged[kind], *part.get(kind, ())]
        for kind in ("processes", "ended"):
            placed = [process | {"machine": machine} for process in part.get(kind, ())]
            merged[kind] = [*merged.get(kind, ()), *placed]
    place = {server: number for number, server in enumerate(order)}
    merged["servers"] = sorted(merged["servers"], key=lambda server: place[server["name"]])
    merged["remarks"] = list(dict.fromkeys(merged["remarks"]))
    return merged


def merged_lateness(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the lateness of the relays of all machines: the worst of each quantile."""
    merged: dict[str, Any] = {}
    for name, value in itertools.chain.from_iterable(report.items() for report in reports):
        before = merged.get(name, 0)
        merged[name] = before + value if name in _SUMMED else max(before, value)
    return merged
