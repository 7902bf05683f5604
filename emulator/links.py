"""Wires: the veth pairs of a plan, all made by one `ip` process, and the addresses of their ends by one thread that goes to every node."""

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from emulator import namespaces, netlink
from emulator.command import Line, batch
from emulator.plan import BRIDGE, FABRIC, HOST_INTERFACE, Interface, Link, Plan
from emulator.shaping import Shape, tell, verify

_QUIET: Final = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
"""Nothing is on a wire that no one sent: IPv6 would look for neighbours and routers by itself."""
_STEADY: Final = {
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_tso_rtt_log": "0",
    "net.ipv4.tcp_rmem": "4096 4194304 33554432",
}
"""A connection that waited for its GPUs goes on where it stopped, as an RDMA NIC's does; none learns from another's path, none
waits for its receiver's buffer to grow, and none sends 64 KB at once because its round trip is short: 0.2 s at 3 Mb/s."""
_FRAME_S: Final = 0.01
"""So long a frame lasts that a host hands to its NIC, at least: at scaled rates the kernel would cut frames of two segments, each acknowledged."""
_FEWEST_SEGMENTS, _MOST_SEGMENTS = 8, 44
_ACQUAINTED: Final = {f"net.ipv4.neigh.{HOST_INTERFACE}.base_reachable_time_ms": "3600000"}
"""Who has been asked for by ARP once is known for as long as an experiment lasts, and nobody waits for a busy controller."""
_CUBIC: Final = {"net.ipv4.tcp_congestion_control": "cubic"}
"""Programs that don't choose are the same everywhere; a machine's own default may be bbr."""


def quiet() -> None:
    """See that interfaces of the calling thread's namespace say nothing by themselves."""
    namespaces.set_sysctls(_QUIET)


def segments(plan: Plan) -> int:
    """How many segments a frame has at least: eight cost a switch a fraction of two, 64 KB are the most that there can be."""
    slowest_bps = min((link.rate_bps for link in plan.links if link.rate_bps is not None), default=0.0)
    mtu = min((link.mtu for link in plan.links if link.rate_bps is not None), default=1500)
    wanted = int(slowest_bps * _FRAME_S / 8 / mtu)
    return max(_FEWEST_SEGMENTS, min(wanted, _MOST_SEGMENTS * 1500 // mtu))


def _settle_in(fewest: int) -> None:
    namespaces.set_sysctls(_QUIET | _STEADY | {"net.ipv4.tcp_min_tso_segs": str(fewest)})
    with suppress(OSError):  # a machine may keep cubic to itself (net.ipv4.tcp_allowed_congestion_control)
        namespaces.set_sysctls(_CUBIC)


def make(plan: Plan, pids: Mapping[str, int]) -> None:
    """Make every link of the plan, give its ends their addresses and switch them on. `pids`: a process in each node's namespace.

    The calling thread is in the fabric's own namespace. FabricError names the link.
    """
    fewest = segments(plan)
    namespaces.visit((namespaces.of(pid), partial(_settle_in, fewest)) for pid in pids.values())
    batch(["ip"], [Line(link.name, _pair(link, pids)) for link in plan.links])
    held: dict[str, list[tuple[Link, Interface]]] = {}
    for link in plan.links:
        for end in link.ends:
            held.setdefault(end.node, []).append((link, end))
    _begin(FABRIC, held.get(FABRIC, []))
    namespaces.visit(
        (namespaces.of(pid), partial(_settle_down, node, held.get(node, []))) for node, pid in pids.items()
    )


def _settle_down(node: str, ends: list[tuple[Link, Interface]]) -> None:
    _begin(node, ends)
    namespaces.set_sysctls(_ACQUAINTED)


def _begin(node: str, ends: list[tuple[Link, Interface]]) -> None:
    """Give the interfaces of a node their addresses and switch them on, in its namespace."""
    index_of = {name: index for index, name in socket.if_nameindex()}
    requests = [netlink.up(node, index_of["lo"])]
    for link, end in ends:
        index = index_of[end.name]
        requests += [netlink.address(link.name, index, address) for address in end.addresses]
        requests.append(netlink.up(link.name, index))
        requests += [netlink.neighbour(link.name, index, *known) for known in end.neighbours]
    netlink.ask(requests)


def _pair(link: Link, pids: Mapping[str, int]) -> str:
    """Words that make a link: first the end in the fabric's namespace if there is one, which alone can join a bridge there."""
    first, second = link.ends if link.a.node == FABRIC else reversed(link.ends)
    bridged = f" master {BRIDGE}" if first.node == FABRIC and not first.port else ""
    made, peer = _end(first, link, pids), _end(second, link, pids)
    return f"link add {made}{bridged} type veth peer {peer}"


def _end(end: Interface, link: Link, pids: Mapping[str, int]) -> str:
    where = f" netns {pids[end.node]}" if end.node != FABRIC else ""
    mac = f" address {end.mac}" if end.mac else ""
    return f"name {end.name}{where} mtu {link.mtu}{mac}"


def shapes(plan: Plan) -> dict[str, list[Shape]]:
    """What is shaped in each namespace: both ends of every link that has a rate."""
    found: dict[str, list[Shape]] = {}
    for link in plan.links:
        if link.rate_bps is not None:
            for end in link.ends:
                found.setdefault(end.node, []).append(Shape(link.name, end.name, link.rate_bps, link.mtu))
    return found


def shape_all(plan: Plan, pids: Mapping[str, int]) -> None:
    """Shape both ends of every link that has a rate; `verify_all` reads back that they are. FabricError names a link that can't be."""
    _everywhere(plan, pids, tell)


def verify_all(plan: Plan, pids: Mapping[str, int]) -> None:
    """FabricError that names every link which isn't shaped to its rate."""
    _everywhere(plan, pids, verify)


def _everywhere(plan: Plan, pids: Mapping[str, int], do: Callable[[list[Shape]], None]) -> None:
    """Do something to all shapes of each namespace, in it."""
    wanted = shapes(plan)
    do(wanted.pop(FABRIC, []))
    namespaces.visit((namespaces.of(pids[node]), partial(do, some)) for node, some in wanted.items())
