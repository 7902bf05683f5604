"""A bench for optical switches: namespaces of this test alone, joined to a crossbar or to each other by veth pairs."""

import itertools
import os
import socket
import subprocess
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from emulator import namespaces
from emulator.crossbar import BpfCrossbar, interface_indices
from emulator.light import Ports
from emulator.mirred import MirredCrossbar

_serial = itertools.count()


def _ip(*batch: str, netns: str | None = None) -> None:
    """Several `ip` commands by one process."""
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


class Wires(AbstractContextManager["Wires"]):
    """Hosts 1..N, each with a NIC of address 10.9.0.i; all know each other's MAC, so nothing but the test's own traffic flows."""

    def __init__(self, hosts: int) -> None:
        self.hosts = range(1, hosts + 1)
        self._name = f"mft{os.getpid()}x{next(_serial)}"
        self._made = ExitStack()

    def __enter__(self) -> Self:
        for host in self.hosts:
            self.namespace(self.host(host))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._made.close()

    def host(self, number: int) -> str:
        return f"{self._name}h{number}"

    @property
    def ocs(self) -> str:
        return f"{self._name}ocs"

    @staticmethod
    def path(netns: str) -> str:
        return f"/run/netns/{netns}"

    def namespace(self, netns: str) -> None:
        """A namespace without IPv6's own chatter, gone with this bench."""
        _ip(f"netns add {netns}")
        self._made.callback(_ip, f"netns delete {netns}")
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
        """Join two hosts by a bare veth pair."""
        _ip(f"link add nic type veth peer name nic netns {self.host(b)}", netns=self.host(a))
        self._address(a)
        self._address(b)

    def plug_in(self) -> dict[int, str]:
        """Host i at the OCS's port i; the interfaces there by port."""
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
        """A crossbar without light: host i is on port i."""
        interfaces = self.plug_in()
        crossbar = BpfCrossbar.create(Ports(len(self.hosts), len(self.hosts)))
        self._made.callback(crossbar.close)
        crossbar.attach(interfaces, self.path(self.ocs))
        return crossbar

    def mirred_crossbar(self) -> MirredCrossbar:
        """The same of tc filters."""
        self.plug_in()
        return self.mirred_again()

    def mirred_again(self) -> MirredCrossbar:
        """Another holder of the same filters."""
        ports = Ports(len(self.hosts), len(self.hosts))
        crossbar = MirredCrossbar(ports, self.indices(), self.path(self.ocs))
        self._made.callback(crossbar.close)
        return crossbar

    def indices(self) -> dict[int, int]:
        """The OCS's interfaces by port."""
        plugged = {host: f"p{host}" for host in self.hosts}
        return namespaces.within(self.path(self.ocs), partial(interface_indices, plugged))

    def _address(self, host: int) -> None:
        known = (
            f"neigh add 10.9.0.{other} lladdr {_mac(other)} dev nic nud permanent" for other in self.hosts
        )
        _ip(
            f"link set nic address {_mac(host)} up",
            f"addr add 10.9.0.{host}/24 dev nic",
            *known,
            netns=self.host(host),
        )

    def udp(self, host: int) -> socket.socket:
        """A UDP socket on a host, bound to port 9; it waits for a datagram no longer than 2 s."""
        there = self.path(self.host(host))
        sock = namespaces.within(there, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._made.callback(sock.close)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind((f"10.9.0.{host}", 9))
        sock.settimeout(2)
        return sock

    def argv(self, host: int, *command: str) -> list[str]:
        """A command to run on a host."""
        return ["ip", "netns", "exec", self.host(host), *command]


def address(host: int) -> tuple[str, int]:
    """Where a host's UDP socket listens."""
    return (f"10.9.0.{host}", 9)


def _mac(host: int) -> str:
    return f"02:00:00:00:00:{host:02x}"


def heard(sock: socket.socket) -> list[bytes]:
    """All datagrams that wait on a socket now. A veth delivers before send() returns, so none is still under way."""
    sock.setblocking(False)
    found = []
    try:
        while True:
            found.append(sock.recv(2048))
    except BlockingIOError:
        return found
    finally:
        sock.settimeout(2)


def missing_for_kernel_tests() -> str | None:
    """What this machine lacks for namespaces, or None."""
    if os.geteuid() != 0:
        return "needs root"
    return None if Path("/usr/sbin/ip").exists() or Path("/sbin/ip").exists() else "needs iproute2"
