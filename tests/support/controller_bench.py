"""The project's controllers, as processes, with switches in memory; without root."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moefabric.controller.client import ControllerClient
from moefabric.controller.southbound.openflow.flow_entries import FlowEntry
from moefabric.core.errors import FabricError
from moefabric.core.openflow.actions import CONTROLLER, Output
from moefabric.emulator.ocs.scpi.dialect import SCPI
from moefabric.emulator.openflow_switch.agent.agent import OpenFlowAgent
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Flow, Group, Port
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.runtime.structured_log import SUFFIX
from moefabric.runtime.waiting import Deadline
from tests.support.controller_lab import fabric, scpi_device
from tests.support.memory_datapath import MemoryDatapath, MemoryInterfaces
from tests.support.openflow_lab import serving
from tests.support.switch_processes import listens, start

FABRIC = fabric()
REGION = FABRIC.regions[0]


class CountingDatapath(MemoryDatapath):
    """A datapath in memory that counts its loads.

    Attributes:
        flows: How many flows it has.
        capacity: How many it has room for.
        refusals: How many loads it had no room for.
    """

    loads, flows, capacity, refusals = 0, 0, 1 << 20, 0

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        if len(flows) > self.capacity:
            self.refusals += 1
            raise FabricError(f"no room for {len(flows)} flows")
        super().load(flows, groups)
        self.loads, self.flows = self.loads + 1, len(flows)


@dataclass
class Bench:
    """The region controller's client, and the switches.

    Attributes:
        openflow: Where the region's controller listens for switches.
        reconnect: Makes a switch close its connection and open another one.
    """

    client: ControllerClient
    switches: Mapping[str, OpenFlowSwitch]
    datapaths: Mapping[str, CountingDatapath]
    controllers: "subprocess.Popen[bytes]"
    run: RunDirectory
    openflow: tuple[str, int]
    reconnect: Callable[[str], None]

    @property
    def log(self) -> str:
        """What the region's controller has logged."""
        return (self.run.log_folder / f"controller-{REGION.name}{SUFFIX}").read_text()

    @property
    def controller_pid(self) -> int:
        """Process id of the region's controller."""
        return int(self.run.controller_pid_file(REGION).read_text())

    def open_files(self) -> int:
        """Return how many files the region's controller has open."""
        return len(list(Path(f"/proc/{self.controller_pid}/fd").iterdir()))

    def entries(self, switch: str) -> set[FlowEntry]:
        """The entries of a switch except those with packets for the controller."""
        entries = set[FlowEntry]()
        for flow_entry in self.switches[switch].tables.entries.values():
            (out,) = flow_entry.instructions.apply
            assert isinstance(out, Output)
            if out.port == CONTROLLER:
                continue
            address, mask = flow_entry.match.masked.get("ipv4_dst", (0, 0))
            dscp, _ = flow_entry.match.masked.get("ip_dscp", (None, 0))
            entries.add(FlowEntry(flow_entry.priority, address, mask.bit_count(), dscp, out.port))
        return entries


_SHARED: Final = """
import sys
from pathlib import Path
from moefabric.controller.service import supervisor
from moefabric.controller.service.process import serve
from moefabric.runtime.run_directory import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
wiring = supervisor.read_wiring(run)
regions = (*wiring.fabric.regions, None)
supervisor.start_log(run, regions)
serve(run, wiring, regions)
"""
"""Runs all controllers of a run directory in one process."""


@contextmanager
def controllers_with_switches(
    folder: Path, switch: str = "bpf", tls: ControlTls | None = None, *, shared: bool = False
) -> Iterator[Bench]:
    """Yield controllers in a run directory with connected switches.

    Args:
        folder: Becomes the run directory.
        switch: Kind of the switches; only `bpf` proves its identity.
        tls: Certificates of both ends.
        shared: Whether the controllers share a process.
    """
    number = os.getpid() * 2 + (switch == "bpf")
    management = ManagementNetwork(f"127.{number % 200 + 20}.{number // 200 % 250}.0/24")
    run = RunDirectory(folder)
    run.make_token()
    wiring = FabricWiring(FABRIC, management, switch, control_tls=tls)
    run.wiring_file.write_text(wiring.to_json())
    with ExitStack() as undo:
        undo.enter_context(scpi_device(FABRIC, (management.ocs_address(REGION), SCPI.port)))
        program = ("-c", _SHARED) if shared else ("-m", "moefabric.controller", "--run-dir")
        controllers = start([sys.executable, *program, str(run.path)], undo)
        if shared:
            run.log_folder.mkdir(exist_ok=True)
            run.controller_pid_file(REGION).parent.mkdir()
            run.controller_pid_file(REGION).write_text(f"{controllers.pid}\n")
        interfaces = MemoryInterfaces()
        undo.callback(interfaces.close)
        agent, context = OpenFlowAgent(interfaces), tls.context(server_side=False) if tls else None
        datapaths, switches = dict[str, CountingDatapath](), dict[str, OpenFlowSwitch]()
        token = run.read_token() if switch == "bpf" else ""
        for name in FABRIC.switches:
            ports = [
                Port(number, f"{name}-{number}") for number in FABRIC.openflow.ports(name).values()
            ]
            datapaths[name] = CountingDatapath(ports)
            undo.callback(datapaths[name].close)
            switches[name] = OpenFlowSwitch(
                FABRIC.openflow.dpid(name), datapaths[name], interfaces, time.monotonic_ns(), token
            )
            agent.add(name, switches[name], tls=context)
        controller_of = {
            name: management.openflow_endpoint(FABRIC.region_of.get(name))
            for name in FABRIC.switches
        }
        agent.connect(controller_of)
        asked, ask = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        undo.enter_context(asked)
        undo.enter_context(ask)

        def reconnect() -> None:
            name = asked.recv(64).decode()
            agent.connect({name: controller_of[name]})

        agent.watch(asked.fileno(), reconnect)
        undo.enter_context(serving(agent))
        endpoints = [management.openflow_endpoint(region) for region in (REGION, None)]
        Deadline.after(40).wait_for(lambda: all(map(listens, endpoints)), "the controllers")
        others, client = (
            undo.enter_context(ControllerClient.of_region(wiring, region, run_dir=run))
            for region in (None, REGION)
        )
        for controller in (others, client):
            controller.wait_ready(40)
        yield Bench(
            client,
            switches,
            datapaths,
            controllers,
            run,
            endpoints[0],
            lambda name: ask.sendall(name.encode()),
        )
