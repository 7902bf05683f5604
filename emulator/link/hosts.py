"""Hosts that are joined by programmable links, without a fabric: for tests and studies. Needs root.

Two hosts and a link of 100 Mb/s, 15 ms each way, with a FIFO of one bandwidth-delay product:

    with link_between(LinkBehaviour(100e6, delay_ns=15_000_000, queue_bytes=375_000)) as net:
        a, b = net.hosts
        server = subprocess.Popen(a.argv("iperf3", "--server", "--one-off"))
        subprocess.run(b.argv("iperf3", "--client", a.address), check=True)
        sock = namespaces.run_in(a.namespace, lambda: socket.socket())  # a socket of host a
        net.counters().lateness.p99_ns      # how late the relay has been
        net.counters().ports["p1"].dropped  # frames dropped on the way to host 1

Several hosts at a switch, of which each port has its own behaviour, here eight senders and one
receiver behind a port with a shallow queue:

    sender, receiver = LinkBehaviour(), LinkBehaviour(100e6, queue_bytes=64_000)
    with star([sender] * 8 + [receiver]) as net: ...

`behaviour` is that of the way to a host: a round trip takes both hosts' delays.
All hosts know each other's MAC addresses; no ARP, no IPv6. Segmentation offload is off, so that
links carry packets of one MTU.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from moefabric.core.link import LinkBehaviour
from moefabric.emulator.link.messages import RelayCounters, RelayPort
from moefabric.emulator.link.relay_process import RelayProcess, disable_offloads
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import ip_batch
from moefabric.emulator.linux.processes import nsenter_argv

NIC: Final = "nic"
"""Name of every host's interface."""
T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """A network namespace with one interface, `nic`.

    Attributes:
        number: Number of the host; its port at the relay is `p` with this number.
        namespace: Path of its network namespace.
    """

    number: int
    namespace: str

    @property
    def address(self) -> str:
        """IPv4 address."""
        return f"10.77.0.{self.number + 1}"

    @property
    def mac(self) -> str:
        """MAC address."""
        return f"02:6d:77:00:00:{self.number + 1:02x}"

    @property
    def port(self) -> str:
        """Name of its port in the relay's counters."""
        return f"p{self.number}"

    def argv(self, *command: str) -> list[str]:
        """Return the argv that runs a command on the host."""
        return nsenter_argv(self.namespace, command)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the host, in a thread; sockets that it opens stay the host's."""
        return namespaces.run_in(self.namespace, function)


@dataclass(frozen=True)
class LinkedHosts:
    """Hosts and the relay that joins them."""

    hosts: tuple[Host, ...]
    relay: RelayProcess

    def counters(self) -> RelayCounters:
        """Return the counters of all links; `ports["p0"]` are those of the way to host 0."""
        return self.relay.counters()

    def reset(self) -> None:
        """Set the counters to zero, for example after a start-up."""
        self.relay.reset()


@contextmanager
def link_between(
    behaviour: LinkBehaviour, back: LinkBehaviour | None = None, mtu: int = 1500
) -> Iterator[LinkedHosts]:
    """Join two hosts by a link.

    Args:
        behaviour: From host 0 to host 1.
        back: From host 1 to host 0; like `behaviour` by default.
        mtu: Largest IP packet in bytes.

    Raises:
        FabricError: Without root, or if the machine refuses.
    """
    with star([back or behaviour, behaviour], mtu) as hosts:
        yield hosts


@contextmanager
def star(behaviours: Sequence[LinkBehaviour], mtu: int = 1500) -> Iterator[LinkedHosts]:
    """Join hosts by a switch.

    Args:
        behaviours: Behaviour of the switch's port to each host. Hosts send without a limit.
        mtu: Largest IP packet in bytes.

    Raises:
        FabricError: Without root, or if the machine refuses.
    """
    with ExitStack() as stack:
        relay_namespace = stack.enter_context(namespaces.held_new())
        hosts = tuple(
            Host(number, stack.enter_context(namespaces.held_new()))
            for number in range(len(behaviours))
        )
        namespaces.run_in(relay_namespace, partial(_make_pairs, hosts, mtu))
        namespaces.run_in_each((host.namespace, partial(_configure, host, hosts)) for host in hosts)
        ports = [
            RelayPort(host.port, behaviour, mtu, macs=(host.mac,))
            for host, behaviour in zip(hosts, behaviours, strict=True)
        ]
        relay = RelayProcess.start(relay_namespace, ports)
        stack.callback(relay.close)
        yield LinkedHosts(hosts, relay)


def _make_pairs(hosts: Sequence[Host], mtu: int) -> None:
    """Make a veth pair for each host, in the relay's namespace."""
    namespaces.disable_ipv6()
    lines = []
    for host in hosts:
        ends = f"{host.port} mtu {mtu} type veth peer name {NIC} mtu {mtu}"
        peer = f"address {host.mac} netns {host.namespace}"
        lines.append((host.port, f"link add {ends} {peer}"))
        lines.append((host.port, f"link set {host.port} up"))
    ip_batch(lines)


def _configure(host: Host, hosts: Sequence[Host]) -> None:
    """Configure a host's interface, in its namespace."""
    namespaces.disable_ipv6()
    disable_offloads(NIC)
    lines = [
        (host.port, "link set lo up"),
        (host.port, f"address add {host.address}/24 dev {NIC}"),
        (host.port, f"link set {NIC} up"),
    ]
    lines += [
        (host.port, f"neigh add {one.address} lladdr {one.mac} dev {NIC} nud permanent")
        for one in hosts
        if one is not host
    ]
    ip_batch(lines)
