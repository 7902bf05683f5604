"""A real run of one small experiment, in which something goes wrong on purpose.

The fault begins when the first collective has ended, on the emulated hardware or in the agents'
processes: neither the controllers nor the run know of it.
"""

import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import lifecycle, node_commands
from moefabric.emulator.fabric.lifecycle import up
from moefabric.emulator.fabric.plan import FABRIC, FabricPlan, plan_fabric
from moefabric.emulator.linux import namespaces, netlink
from moefabric.emulator.linux.processes import ProcessSpec, nsenter_argv, prefork_argv
from moefabric.execution.run import run
from moefabric.results.model import FabricResult
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed import testbed
from moefabric.testbed.fabric_processes import fabric_processes
from tests.kernel.fabric_lab import Machine
from tests.sabotage import bad_agent, bad_controller
from tests.support.openflow_lab import Peer

EXPERIMENT = Path(__file__).with_name("experiment.yaml")
SCPI_PORT: Final = 5025
TIMEOUT_S: Final = 5.0
RUN_S: Final = 200.0
"""Timeout of a run; lost bytes alone take up to 40 s to be given up."""


@dataclass
class RunningFabric:
    """The fabric under a run, with what a saboteur needs.

    Attributes:
        undo: Takes functions that end the fault after the run.
    """

    name: str
    undo: ExitStack

    @property
    def run_dir(self) -> RunDirectory:
        """Its run directory."""
        return RunDirectory.of_fabric(self.name)

    @property
    def wiring(self) -> FabricWiring:
        """Its wiring."""
        return FabricWiring.from_json(self.run_dir.wiring_file.read_bytes())

    @property
    def fabric(self) -> Fabric:
        """Its specification."""
        return self.wiring.fabric

    @property
    def plan(self) -> FabricPlan:
        """Its interfaces."""
        return plan_fabric(self.fabric, self.wiring.management)

    def daemon(self) -> int:
        """Return the pid of the fabric process."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(self.run_dir.control_socket))
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int(struct.unpack("3i", credentials)[0])

    def process(self, name: str) -> int:
        """Return the pid of a process of the fabric."""
        processes = lifecycle.inspect(self.name)["processes"]
        return int(next(entry["pid"] for entry in processes if entry["name"] == name))

    def scpi(self, line: str) -> str:
        """Send a line to the OCS as one more operator, and return its reply."""
        address = self.wiring.management.ocs_address(self.fabric.regions[0])
        with socket.create_connection((address, SCPI_PORT), TIMEOUT_S) as sock:
            sock.sendall(f"{line}\n".encode())
            return sock.makefile().readline().strip() if "?" in line else ""

    def argv(self, node: str, *argv: str) -> list[str]:
        """Return the argv that runs a command in a node's namespace."""
        if node == FABRIC:
            return nsenter_argv(self.daemon(), argv)
        return node_commands.exec_argv(self.name, node, argv)

    def command(self, node: str, *argv: str) -> str:
        """Run a command in a node's namespace and return its output."""
        words = self.argv(node, *argv)
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=20).stdout

    def ends(self, nic: str) -> list[tuple[str, str]]:
        """Return node and interface of the shaped ends of a NIC's link."""
        shaped = self.plan.shaped_ends
        return [(end.node, end.name) for link, end, _ in shaped if link.name == nic]

    def set_rate(self, nic: str, ratio: float) -> None:
        """Shape a NIC's link to a part of its rate."""
        fabric = self.fabric
        rate = round(ratio * fabric.scale.rate_bps(fabric.nic_rate_bps))
        for node, interface in self.ends(nic):
            words = f"tc class change dev {interface} parent 1: classid 1:1 htb rate {rate}bit"
            self.command(node, *f"{words} ceil {rate}bit".split())

    @contextmanager
    def switch(self, name: str) -> Iterator[Peer]:
        """Connect to a switch as one more OpenFlow controller."""
        bridge = next(switch.bridge for switch in self.plan.switches if switch.name == name)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(self.run_dir.switches / f"{bridge}.mgmt"))
            peer = Peer(sock)
            peer.greet()
            yield peer


@dataclass(frozen=True)
class Sabotage:
    """A deliberate fault.

    Attributes:
        name: Short name.
        fault: What goes wrong, for the table.
        culprit: Regular expression that a reason of the verdict must match.
        begin: Starts the fault when the first collective has ended.
        repeat: Whether to start it again after every collective.
        agent: Behaviour of one server's agent (`tests.sabotage.bad_agent`).
        agents: Behaviour of all agents; instead of `agent`.
        controller: Behaviour of the controllers (`tests.sabotage.bad_controller`).
        settle_ratio: Dark time of the OCS relative to the specified one.
        settings: Changes of the experiment, as the command line takes them.
    """

    name: str
    fault: str
    culprit: str
    begin: Callable[[RunningFabric], object] = lambda _: None
    repeat: bool = False
    agent: str = ""
    agents: str = ""
    controller: str = ""
    settle_ratio: float = 1.0
    settings: tuple[str, ...] = ()


class Saboteur:
    """Progress reporter of a run that starts a fault."""

    def __init__(self, sabotage: Sabotage, undo: ExitStack) -> None:
        self._sabotage, self._undo = sabotage, undo
        self._running: RunningFabric | None = None
        self.messages: list[str] = []

    def show_message(self, text: str) -> None:
        """Keep a message."""
        self.messages.append(text)

    def advance(self, text: str) -> None:
        """Begin the fault, or go on with it."""
        if self._running is None:
            (name,) = lifecycle.running_fabrics()
            self._running = RunningFabric(name, self._undo)
            self._sabotage.begin(self._running)
        elif self._sabotage.repeat:
            self._sabotage.begin(self._running)


def sabotaged_run(
    machine: Machine, sabotage: Sabotage | None, *settings: str
) -> list[FabricResult]:
    """Run the experiment with a fault on its first fabric, and return all results.

    Args:
        machine: Namespace in which the fabrics run.
        sabotage: The fault; None for none.
        settings: Further changes of the experiment.
    """
    sabotage = sabotage or Sabotage("none", "nothing", "")
    spec = load_experiment(EXPERIMENT, [*sabotage.settings, *settings])
    with ExitStack() as undo, pytest.MonkeyPatch.context() as patch:
        if sabotage.agent or sabotage.agents or sabotage.controller:
            patch.setattr(testbed, "fabric_processes", partial(_with_bad_processes, sabotage))
        if sabotage.settle_ratio != 1:
            patch.setattr(lifecycle, "up", partial(_up_with_slow_ocs, sabotage.settle_ratio, up))
        machine.run(lambda: netlink.execute([netlink.link_up("lo", socket.if_nametoindex("lo"))]))
        saboteur = Saboteur(sabotage, undo)
        place = namespaces.path_of(machine.outer)
        result = namespaces.run_in(place, partial(run, spec, EXPERIMENT.parent, saboteur), RUN_S)
    return result.results


def _up_with_slow_ocs(
    ratio: float,
    up: Callable[..., FabricWiring],
    wanted: FabricWiring,
    *arguments: Any,
    **options: Any,
) -> FabricWiring:
    """Start a fabric whose OCS takes another time to settle than specified."""
    regions = []
    for region in wanted.fabric.regions:
        assert region.ocs is not None
        ocs = replace(region.ocs, settle_ns=round(ratio * region.ocs.settle_ns))
        regions.append(replace(region, ocs=ocs))
    slow = replace(wanted.fabric, regions=tuple(regions))
    return up(replace(wanted, fabric=slow), *arguments, **options)


def _with_bad_processes(
    sabotage: Sabotage, wiring: FabricWiring, run_dir: RunDirectory
) -> list[ProcessSpec]:
    """Return the processes of a fabric of which some misbehave."""
    return [_perhaps_bad(sabotage, process) for process in fabric_processes(wiring, run_dir)]


def _perhaps_bad(sabotage: Sabotage, process: ProcessSpec) -> ProcessSpec:
    behaviour = sabotage.agents or (sabotage.agent if process.name == "agent-s1" else "")
    if process.name.startswith("agent-") and behaviour:
        return replace(
            process,
            prefork=prefork_argv("tests.sabotage.bad_agent", bare=True),
            env={bad_agent.VARIABLE: behaviour},
            host="",
        )
    if process.name == "controllers" and sabotage.controller:
        python, module, _, *options = process.argv
        return replace(
            process,
            argv=(python, module, bad_controller.__name__, *options),
            env={**process.env, bad_controller.VARIABLE: sabotage.controller},
        )
    return process
