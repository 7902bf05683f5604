"""Bench for optical switches: hosts in namespaces of their own, wired to a crossbar."""

import itertools
import os
import socket
import subprocess
from contextlib import AbstractContextManager, ExitStack, closing
from types import TracebackType
from typing import NamedTuple, Self

from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar, Layout
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.bpf_syscalls import Memory

_serial = itertools.count()


def _ip(*batch: str, netns: str | None = None) -> None:
    """Run several `ip` commands in one process."""
    where = ["ip", "-n", netns] if netns else ["ip"]
    done = subprocess.run(
        [*where, "-batch", "-"],
        input="\n".join(batch),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class HostNetwork(AbstractContextManager["HostNetwork"]):
    """Hosts 1..N, each with a NIC of address 10.9.0.i.

    Neighbour entries are static, so no traffic flows except that of the test.
    """

    def __init__(self, hosts: int) -> None:
        self.hosts = range(1, hosts + 1)
        self._name = f"mft{os.getpid()}x{next(_serial)}"
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        for host in self.hosts:
            self.namespace(self.host(host))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._resources.close()

    def host(self, number: int) -> str:
        """Return the name of a host's namespace."""
        return f"{self._name}h{number}"

    @property
    def ocs(self) -> str:
        """Name of the OCS's namespace."""
        return f"{self._name}ocs"

    @staticmethod
    def path(netns: str) -> str:
        """Return the path of a namespace."""
        return f"/run/netns/{netns}"

    def namespace(self, netns: str) -> None:
        """Make a namespace without IPv6 traffic, which ends with this bench."""
        _ip(f"netns add {netns}")
        self._resources.callback(_ip, f"netns delete {netns}")
        _ip("link set lo up", netns=netns)
        command = [
            "ip",
            "netns",
            "exec",
            netns,
            "sh",
            "-c",
            "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6",
        ]
        subprocess.run(command, check=True, timeout=10)

    def pair(self, a: int, b: int) -> None:
        """Wire two hosts by a bare veth pair."""
        _ip(f"link add nic type veth peer name nic netns {self.host(b)}", netns=self.host(a))
        self._address(a)
        self._address(b)

    def plug_in(self) -> dict[int, str]:
        """Wire host i to port i of the OCS, and return the OCS's interfaces by port."""
        self.namespace(self.ocs)
        for host in self.hosts:
            _ip(
                f"link add p{host} type veth peer name nic netns {self.host(host)}",
                f"link set p{host} up",
                netns=self.ocs,
            )
            self._address(host)
        return {host: f"p{host}" for host in self.hosts}

    def crossbar(self) -> BpfCrossbar:
        """Return a dark crossbar; host i is on port i."""
        interfaces = self.plug_in()
        crossbar = BpfCrossbar.create(Ports(len(self.hosts)))
        self._resources.callback(crossbar.close)
        crossbar.attach(interfaces, self.path(self.ocs))
        return crossbar

    def _address(self, host: int) -> None:
        neighbours = (
            f"neigh add 10.9.0.{other} lladdr {_mac(other)} dev nic nud permanent"
            for other in self.hosts
        )
        _ip(
            f"link set nic address {_mac(host)} up",
            f"addr add 10.9.0.{host}/24 dev nic",
            *neighbours,
            netns=self.host(host),
        )

    def udp(self, host: int) -> socket.socket:
        """Return a UDP socket on a host, bound to port 9, with a timeout of 2 s."""
        there = self.path(self.host(host))
        sock = namespaces.run_in(there, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._resources.callback(sock.close)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind((f"10.9.0.{host}", 9))
        sock.settimeout(2)
        return sock

    def argv(self, host: int, *command: str) -> list[str]:
        """Return a command that runs on a host."""
        return ["ip", "netns", "exec", self.host(host), *command]


def address(host: int) -> tuple[str, int]:
    """Return the address of a host's UDP socket."""
    return (f"10.9.0.{host}", 9)


def _mac(host: int) -> str:
    return f"02:00:00:00:00:{host:02x}"


def received_datagrams(sock: socket.socket) -> list[bytes]:
    """Return all datagrams that wait on a socket.

    None is in flight: a veth delivers before `send` returns.
    """
    sock.setblocking(False)
    datagrams = []
    try:
        while True:
            datagrams.append(sock.recv(2048))
    except BlockingIOError:
        return datagrams
    finally:
        sock.settimeout(2)


class InputCounters(NamedTuple):
    """Counters of an input port."""

    forwarded_frames: int
    forwarded_bytes: int
    dropped_unlit: int
    dropped_dark: int


class OutputCounters(NamedTuple):
    """Counters of an output port."""

    frames: int
    bytes: int


def input_counters(crossbar: BpfCrossbar) -> dict[int, InputCounters]:
    """Return the counters by input port, since the crossbar was created."""
    layout = Layout(crossbar.ports)
    with closing(Memory(os.dup(crossbar.fd), layout.length)) as memory:
        return {
            port: InputCounters(*Layout.COUNTERS.unpack_from(memory.view, layout.counters(port)))
            for port in crossbar.ports.input_numbers
        }


def output_counters(crossbar: BpfCrossbar) -> dict[int, OutputCounters]:
    """Return the counters by output port, since the crossbar was created."""
    layout, unpack_from = Layout(crossbar.ports), Layout.OUTPUT_COUNTERS.unpack_from
    with closing(Memory(os.dup(crossbar.fd), layout.length)) as memory:
        return {
            port: OutputCounters(*unpack_from(memory.view, layout.output_counters(port)))
            for port in crossbar.ports.output_numbers
        }
