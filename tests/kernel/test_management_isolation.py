"""What programs on a server reach on the management network: each other, and nothing else."""

import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest

from moefabric.config.plugins import ocs_dialects
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import node_commands
from moefabric.emulator.fabric.daemon_protocol import NODES, process_id
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.processes import nsenter_argv
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from tests.kernel.fabric_lab import Machine

pytestmark = pytest.mark.ovs
PORT = 7007
MARK = b"from a program on s0"
CONNECT = """
import json, socket, sys
for address, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((address, port), 0.5).close()
        print(address, port)
    except OSError:
        pass
"""
ACCEPT = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("listening", flush=True)
    server.accept()
"""
SEND_FRAMES = """
import json, socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
    for interface, frame in json.loads(sys.argv[1]):
        sock.sendto(bytes.fromhex(frame), (interface, 0))
"""


@dataclass
class Receiver:
    """Sockets in a namespace of the control plane, and its interface on the management network."""

    address: str
    mac: str
    frames: socket.socket
    packets: socket.socket

    def received(self) -> list[bytes]:
        """Return the marked frames and packets since the last call."""
        return [
            data for sock in (self.frames, self.packets) for data in _read(sock) if MARK in data
        ]


def _read(sock: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield sock.recv(2048)
        except BlockingIOError:
            return


def receiver(namespace: str, interface: str, address: str, undo: ExitStack) -> Receiver:
    def opened() -> tuple[str, socket.socket, socket.socket]:
        frames = undo.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300))
        frames.bind((interface, 0x0003))
        packets = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        packets.bind(("", PORT))
        for sock in (frames, packets):
            sock.setblocking(False)
        return frames.getsockname()[4].hex(":"), frames, packets

    return Receiver(address, *namespaces.run_in(namespace, opened))


@pytest.fixture
def wiring(small: Fabric) -> FabricWiring:
    return FabricWiring.from_json(RunDirectory.of_fabric(small.name).wiring_file.read_bytes())


@pytest.fixture
def control_plane(machine: Machine, wiring: FabricWiring) -> Iterator[list[Receiver]]:
    """The machine, where controllers listen; the OCS; the fabric's own namespace."""
    name, network = wiring.fabric.name, wiring.management
    run_dir = RunDirectory.of_fabric(name)
    outer = namespaces.path_of(machine.outer)
    uplink = next(link for link in machine.links() if link.startswith("mf"))
    ocs = namespaces.path_of(json.loads((run_dir.path / NODES).read_text())["ocs0"])
    with ExitStack() as undo:
        yield [
            receiver(outer, uplink, network.host_address, undo),
            receiver(ocs, "mgmt0", network.address(2), undo),
            receiver(
                namespaces.path_of(process_id(run_dir)), "management", network.address(254), undo
            ),
        ]


def reached(machine: Machine, fabric: str, node: str, *targets: tuple[str, int]) -> list[str]:
    words = [sys.executable, "-c", CONNECT, json.dumps(targets)]
    return machine.run_on(fabric, node, *words).stdout.splitlines()


def test_programs_on_servers_reach_no_service_of_the_control_plane(
    machine: Machine, wiring: FabricWiring
) -> None:
    fabric, network = wiring.fabric.name, wiring.management
    with machine.run(partial(socket.create_server, ("0.0.0.0", 6654))):
        host = [(network.host_address, 6654)]
        doors = [(network.address(2), dialect.port) for dialect in ocs_dialects().values()]
        assert reached(machine, fabric, "ocs0", *host) == [f"{network.host_address} 6654"]
        assert reached(machine, fabric, "s0", *host, *doors) == []
    for target in (network.host_address, network.address(2), network.address(254)):
        ping = machine.run_on(fabric, "s0", "ping", "-c", "1", "-w", "1", target)
        assert "0 received" in ping.stdout


def test_ranks_on_servers_meet_on_the_management_network(
    machine: Machine, wiring: FabricWiring
) -> None:
    address = wiring.management.server_address(wiring.fabric, "s1")
    serve = [sys.executable, "-c", ACCEPT, address, str(PORT)]
    argv = node_commands.exec_argv(wiring.fabric.name, "s1", serve)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        assert server.stdout
        assert server.stdout.readline()
        assert reached(machine, wiring.fabric.name, "s0", (address, PORT)) == [f"{address} {PORT}"]


def test_forged_frames_of_servers_do_not_arrive(
    machine: Machine, wiring: FabricWiring, control_plane: list[Receiver]
) -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import ARP, Ether

    fabric, network = wiring.fabric, wiring.management
    own = network.server_address(fabric, "s0")
    own_namespace = namespaces.path_of(process_id(RunDirectory.of_fabric(fabric.name)))
    words = nsenter_argv(own_namespace, ["ip", "-j", "link", "show"])
    links = {link["ifname"]: link["address"] for link in json.loads(subprocess.check_output(words))}
    macs = [target.mac for target in control_plane]
    macs += [links["servers"], links["s0-host"], "ff:ff:ff:ff:ff:ff"]
    addresses = [target.address for target in control_plane]

    def frames(interface: str) -> Iterator[tuple[str, str]]:
        for mac, target, source in itertools.product(macs, addresses, [own, *addresses]):
            packet = IP(src=source, dst=target) / UDP(dport=PORT) / MARK
            yield interface, bytes(Ether(dst=mac) / packet).hex()
            question = ARP(psrc=source, pdst=target, hwsrc=control_plane[1].mac)
            yield interface, bytes(Ether(dst=mac) / question / MARK).hex()

    def send(node: str, *interfaces: str) -> None:
        sent = [entry for interface in interfaces for entry in frames(interface)]
        done = machine.run_on(
            fabric.name, node, sys.executable, "-c", SEND_FRAMES, json.dumps(sent)
        )
        assert done.returncode == 0, done.stderr

    send("s0", "mgmt0", "eth0")
    assert [target.received() for target in control_plane] == [[], [], []]
    send("ocs0", "mgmt0")
    host, _, switches = (target.received() for target in control_plane)
    assert all((host, switches)), "the receivers see frames of the OCS"
