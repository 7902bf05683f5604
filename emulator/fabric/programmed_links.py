"""Links of a fabric with a behaviour of their own: two veth pairs and a relay between them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from moefabric.emulator.fabric.links import QueueCounts
from moefabric.emulator.fabric.plan import FabricPlan, Link
from moefabric.emulator.link.messages import RelayPort
from moefabric.emulator.link.relay_process import RelayProcess, disable_offloads, relay_argv
from moefabric.emulator.linux import namespaces, netlink
from moefabric.emulator.linux.command import BatchLine, ip_batch
from moefabric.emulator.linux.processes import ChildProcesses, module_environment

PROCESS: Final = "links"
"""Name of the relay's process, and of its log."""


class ProgrammedLinks:
    """The relay of a fabric's links; both ends of each are in the fabric's namespace.

    Args:
        processes: Processes of the fabric, which the relay joins.
    """

    def __init__(self, plan: FabricPlan, processes: ChildProcesses) -> None:
        """Make nothing yet."""
        self._links, self._processes = plan.programmed, processes
        self._relay: RelayProcess | None = None

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the links with the relay. Call it in the fabric's own namespace.

        Raises:
            FabricError: Names the link that failed.
        """
        if not self._links:
            yield
            return
        with namespaces.held_new() as namespace:
            ends = list(enumerate(self._links))
            ip_batch(line for end in ends for line in _pairs(*end, namespace))
            for link in self._links:
                for end in link.ends:
                    disable_offloads(end.name)
            namespaces.run_in(namespace, _switch_on)
            program = self._processes.start(
                PROCESS, relay_argv(namespace), module_environment(), piped=True
            )
            ports = [port for number, link in ends for port in _ports(number, link)]
            self._relay = RelayProcess(program.popen, ports)
            yield

    def queues(self) -> QueueCounts:
        """Return the counters of all queues by port."""
        if self._relay is None:
            return {}
        counters, counts = self._relay.counters(), QueueCounts()
        for number, link in enumerate(self._links):
            for name, far in zip(link.port_names, reversed(_relay_ends(number)), strict=True):
                port = counters.ports[far]
                drops = {"drops": port.dropped, "marks": port.marked}
                counts[name] = {"packets": port.packets, "bytes": port.bytes} | drops
        return counts

    def lateness(self) -> dict[str, Any]:
        """Return the lateness of the relay since the last call."""
        if self._relay is None:
            return {}
        counters = self._relay.take_lateness()
        return {**vars(counters.lateness), "overflows": counters.overflows}


def _relay_ends(number: int) -> tuple[str, str]:
    """Return the relay's interfaces of a link, next to its first and second end."""
    return f"link{number}a", f"link{number}b"


def _pairs(number: int, link: Link, namespace: str) -> Iterator[BatchLine]:
    """Yield the commands that make both veth pairs of a link."""
    for end, relay_end in zip(link.ends, _relay_ends(number), strict=True):
        near = f"name {end.name} mtu {link.mtu}" + (f" address {end.mac}" if end.mac else "")
        peer = f"name {relay_end} mtu {link.mtu} netns {namespace}"
        yield link.name, f"link add {near} type veth peer {peer}"


def _switch_on() -> None:
    """Switch all interfaces of the relay's namespace on, without IPv6."""
    namespaces.disable_ipv6()
    netlink.execute([netlink.link_up(name, index) for index, name in socket.if_nameindex()])


def _ports(number: int, link: Link) -> Iterator[RelayPort]:
    """Yield the relay's two ports of a link; frames of one leave by the other."""
    assert link.behaviour is not None
    first, second = _relay_ends(number)
    yield RelayPort(first, link.behaviour, link.mtu, peer=2 * number + 1)
    yield RelayPort(second, link.behaviour, link.mtu, peer=2 * number)
