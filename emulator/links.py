"""Wires: the veth pairs of a plan, all made by one `ip` process, and the addresses of their ends by one more per node."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from emulator import namespaces
from emulator.command import Line, batch
from emulator.plan import BRIDGE, FABRIC, HOST_INTERFACE, Interface, Link, Plan
from emulator.shaping import Shape, shape, verify

_QUIET: Final = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
"""Nothing is on a wire that no one sent: IPv6 would look for neighbours and routers by itself."""
_STEADY: Final = {
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_min_tso_segs": "8",
    "net.ipv4.tcp_rmem": "4096 4194304 33554432",
}
"""A connection that waited for its GPUs goes on where it stopped, as an RDMA NIC's does; none learns from another's path, and none
waits for its receiver's buffer to grow. At scaled rates the kernel would cut frames of two segments: eight cost a switch in user
space a fraction of that, and last 2 ms at 50 Mb/s."""
_ACQUAINTED: Final = {f"net.ipv4.neigh.{HOST_INTERFACE}.base_reachable_time_ms": "3600000"}
"""Who has been asked for by ARP once is known for as long as an experiment lasts, and nobody waits for a busy controller."""
_CUBIC: Final = {"net.ipv4.tcp_congestion_control": "cubic"}
"""Programs that don't choose are the same everywhere; a machine's own default may be bbr."""


def quiet() -> None:
    """See that interfaces of the calling thread's namespace say nothing by themselves."""
    namespaces.set_sysctls(_QUIET)


def _settle_in() -> None:
    namespaces.set_sysctls(_QUIET | _STEADY)
    with suppress(OSError):  # a machine may keep cubic to itself (net.ipv4.tcp_allowed_congestion_control)
        namespaces.set_sysctls(_CUBIC)


def make(plan: Plan, pids: Mapping[str, int]) -> None:
    """Make every link of the plan and give its ends their addresses. `pids`: a process in each node's namespace.

    The calling thread is in the fabric's own namespace. FabricError names the link.
    """
    for pid in pids.values():
        namespaces.within(namespaces.of(pid), _settle_in)
    batch(["ip"], [Line(link.name, _pair(link, pids)) for link in plan.links])
    batch(["ip"], [line for link in plan.links for line in _ends_up(link, FABRIC)])
    for node, pid in pids.items():
        lines = [
            Line(node, "link set lo up"),
            *(line for link in plan.links for line in _ends_up(link, node)),
        ]
        namespaces.within(namespaces.of(pid), partial(_begin, lines))


def _begin(lines: list[Line]) -> None:
    batch(["ip"], lines)
    namespaces.set_sysctls(_ACQUAINTED)


def _pair(link: Link, pids: Mapping[str, int]) -> str:
    return f"link add {_end(link.a, link, pids)} type veth peer {_end(link.b, link, pids)}"


def _end(end: Interface, link: Link, pids: Mapping[str, int]) -> str:
    where = f" netns {pids[end.node]}" if end.node != FABRIC else ""
    mac = f" address {end.mac}" if end.mac else ""
    return f"name {end.name}{where} mtu {link.mtu}{mac}"


def _ends_up(link: Link, node: str) -> list[Line]:
    """What gives the ends of a link in `node` their addresses and switches them on; management's ends join its bridge."""
    lines = []
    for end in link.ends:
        if end.node == node:
            bridged = f" master {BRIDGE}" if node == FABRIC and not end.port else ""
            lines += [f"address add {address} dev {end.name}" for address in end.addresses]
            lines.append(f"link set dev {end.name}{bridged} up")
    return [Line(link.name, words) for words in lines]


def shapes(plan: Plan) -> dict[str, list[Shape]]:
    """What is shaped in each namespace: both ends of every link that has a rate."""
    found: dict[str, list[Shape]] = {}
    for link in plan.links:
        if link.rate_bps is not None:
            for end in link.ends:
                found.setdefault(end.node, []).append(Shape(link.name, end.name, link.rate_bps, link.mtu))
    return found


def shape_all(plan: Plan, pids: Mapping[str, int]) -> None:
    """Shape both ends of every link that has a rate. FabricError names the link that isn't shaped after that."""
    for node, wanted in shapes(plan).items():
        if node == FABRIC:
            shape(wanted)
        else:
            namespaces.within(namespaces.of(pids[node]), partial(shape, wanted))


def verify_all(plan: Plan, pids: Mapping[str, int]) -> None:
    """FabricError that names every link which isn't shaped to its rate."""
    for node, wanted in shapes(plan).items():
        if node == FABRIC:
            verify(wanted)
        else:
            namespaces.within(namespaces.of(pids[node]), partial(verify, wanted))
