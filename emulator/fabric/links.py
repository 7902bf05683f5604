"""Links of a fabric: veth pairs, addresses, sysctls, rates, queues."""

import socket
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.core.machine_speed import frame_segments
from moefabric.emulator.fabric.plan import FABRIC, MANAGEMENT_INTERFACE, FabricPlan, Interface, Link
from moefabric.emulator.fabric.shaping import (
    Shape,
    apply_shapes,
    read_queue_counts,
    remove_shapes,
    verify_shapes,
)
from moefabric.emulator.fabric.tunnels import make_tunnels
from moefabric.emulator.linux import namespaces, netlink
from moefabric.emulator.linux.command import ip_batch

_NO_IPV4: Final = {"net.ipv4.conf.{}.rp_filter": "1", "net.ipv4.conf.{}.arp_ignore": "8"}
"""Interfaces of bridges, switches and fibres don't belong to their namespace's own hosts.

Without an address and with strict reverse-path filtering (RFC 3704), every packet is dropped.
"""
TCP_SETTINGS: Final = {
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_tso_rtt_log": "31",
    "net.ipv4.tcp_rmem": "4096 4194304 33554432",
}
"""TCP settings that make it resemble an RDMA NIC's transport.

An idle connection keeps its window. A connection takes no metrics from earlier ones, and doesn't
wait for its receiver's buffer to grow. TCP fills frames up to the limit of the interface, whatever
the round trip and the pace.
"""
_IP_TCP_BYTES: Final = 40
_FRAME_HEADROOM: Final = 640
"""Bytes by which an interface's limit exceeds a frame's packets, since TCP leaves 321 for headers
(`sk_setup_caps`): more than these, and less than another packet."""
_REACHABLE: Final = "net.ipv4.neigh.{}.base_reachable_time_ms"
_REACHABLE_MS: Final = "3600000"
"""ARP entries live as long as an experiment, so that no flow waits for a busy controller."""
_MIN_SEGMENTS_NAME: Final = "net.ipv4.tcp_min_tso_segs"
_ECN: Final = {"net.ipv4.tcp_ecn": "1"}
"""Connections negotiate ECN (RFC 3168), which links mark."""
_CUBIC: Final = {"net.ipv4.tcp_congestion_control": "cubic"}
"""Congestion control of programs that don't choose one; the machine's default may be bbr."""


_PROMPT_FRAME_S: Final = 0.01
"""Wall time of a frame up to which queues of several frames stay below TCP's least timeout."""
_TIMEOUT_FRAMES: Final = 50
"""Frames that pass a link in TCP's timeout where frames are longer: more than wait in all queues
of a path. The first round trips of a connection, of small packets, would suggest a timeout that
expires while frames wait, and TCP would send them again."""
_PATIENT: Final = ("net.ipv4.tcp_rto_min_us", "net.ipv4.tcp_early_retrans")

QueueCounts = dict[str, dict[str, int]]
"""By port, the counters `packets`, `bytes` (with headers, of packets that left) and `drops`."""
TCP_SYSCTLS: Final = (*TCP_SETTINGS, _MIN_SEGMENTS_NAME, *_PATIENT, *_ECN, *_CUBIC)
"""Sysctls that a fabric changes in the whole network namespace of a server."""


def isolate_interfaces() -> None:
    """Keep frames that reach the namespace's future interfaces from the namespace's own programs.

    The frames are still switched. An interface that programs use needs `answer_arp`.
    """
    namespaces.set_sysctls({key.format("default"): value for key, value in _NO_IPV4.items()})


def answer_arp(interface: str) -> None:
    """Answer ARP requests for an interface's own address in an isolated namespace."""
    namespaces.set_sysctls({f"net.ipv4.conf.{interface}.arp_ignore": "1"})


def frame_segments_of(plan: FabricPlan) -> int:
    """Return the number of segments in a frame that a host sends, its last one excepted.

    A switch forwards one frame of eight segments at a fraction of the cost of four frames of two.
    The kernel's limit for a frame is 64 KB.
    """
    links = plan.links
    shaped = [(link.rate_bps, link.mtu) for link in links if link.rate_bps is not None]
    slowest_bps = min((rate_bps for rate_bps, _ in shaped), default=0.0)
    mtu = min((mtu for _, mtu in shaped), default=1500)
    return frame_segments(slowest_bps, mtu, plan.frame_s)


def tcp_sysctls(plan: FabricPlan) -> dict[str, str]:
    """Return the sysctls of a server's TCP."""
    marked = any(link.behaviour.ecn_bytes for link in plan.programmed if link.behaviour)
    values = TCP_SETTINGS | {_MIN_SEGMENTS_NAME: str(frame_segments_of(plan))}
    if plan.frame_s > _PROMPT_FRAME_S and not plan.single_packets:
        timeout_us = round(_TIMEOUT_FRAMES * plan.frame_s * 1e6)
        values |= dict(zip(_PATIENT, (str(timeout_us), "0"), strict=True))
    return values | _ECN if marked else values


def _prepare_namespace(sysctls: dict[str, str], *, is_guest: bool, is_ocs: bool) -> None:
    """Configure a node's namespace before it gets the fabric's interfaces.

    Args:
        sysctls: settings of TCP.
        is_guest: whether the namespace has other interfaces too.
        is_ocs: whether the node is an OCS; its programs see no frames of the fabric.
    """
    if not is_guest:
        sysctls = sysctls | namespaces.NO_IPV6
    namespaces.set_sysctls(sysctls)
    with suppress(OSError):  # the machine may forbid it (net.ipv4.tcp_allowed_congestion_control)
        namespaces.set_sysctls(_CUBIC)
    if is_ocs:
        isolate_interfaces()


def make_links(
    plan: FabricPlan,
    whole: FabricPlan,
    pids: Mapping[str, int],
    guests: Mapping[str, str],
    outer: str,
    *,
    shaped: bool,
) -> None:
    """Make every link of the plan, set the addresses of its ends and switch them on.

    Call it in the fabric's own namespace.

    Args:
        plan: the fabric, or a machine's part of it.
        whole: the fabric, which decides how servers send.
        pids: by node, the pid of a process in the node's namespace.
        guests: nodes whose namespaces have other interfaces too, with the alias that marks the
            fabric's interfaces there.
        outer: path of the namespace with the addresses of the machines, if there are tunnels.
        shaped: whether to shape the links as well. The kernel waits for packets under way when the
            qdisc of an interface changes that is on.

    Raises:
        FabricError: names the link that failed.
    """
    sysctls = tcp_sysctls(whole)
    ocses = {ocs.name for ocs in plan.ocses}
    namespaces.run_in_each(
        (pid, partial(_prepare_namespace, sysctls, is_guest=node in guests, is_ocs=node in ocses))
        for node, pid in pids.items()
    )
    pairs = [link for link in plan.links if link.behaviour is None and link.tunnel is None]
    segments = _most_segments(whole)
    bridges = {end.bridge for link in pairs for end in link.ends if end.bridge}
    master_of = {bridge: socket.if_nametoindex(bridge) for bridge in bridges} | {"": 0}
    netlink.execute([_pair(link, pids, master_of, segments) for link in pairs])
    make_tunnels(plan, outer)
    if shaped:
        shape_all(plan, pids)
    ends = defaultdict[str, list[tuple[Link, Interface]]](list)
    for link in plan.links:
        for end in link.ends:
            ends[end.node].append((link, end))
    _configure_interfaces(FABRIC, ends[FABRIC])
    namespaces.run_in_each(
        (pid, partial(_configure_node, node, ends[node], guests.get(node, ""), node in ocses))
        for node, pid in pids.items()
    )


def _configure_node(
    node: str,
    ends: list[tuple[Link, Interface]],
    alias: str,
    is_ocs: bool,  # noqa: FBT001
) -> None:
    """Configure a node's interfaces; with an alias, its others stay as they are."""
    if alias:
        _mark_interfaces([end.name for _, end in ends], alias)
    _configure_interfaces(node, ends)
    hosts = [end.name for link, end in ends if link.is_host_link]
    namespaces.set_sysctls({_REACHABLE.format(name): _REACHABLE_MS for name in hosts})
    if is_ocs:
        answer_arp(MANAGEMENT_INTERFACE)


def _mark_interfaces(names: list[str], alias: str) -> None:
    """Mark interfaces as the fabric's, and disable IPv6 on them alone."""
    ip_batch([(name, f'link set dev {name} alias "{alias}"') for name in names])
    namespaces.set_sysctls({f"net.ipv6.conf.{name}.disable_ipv6": "1" for name in names})


def _configure_interfaces(node: str, ends: list[tuple[Link, Interface]]) -> None:
    """Set addresses and neighbours of a node's interfaces, in its namespace; switch them on."""
    index_of = {name: index for index, name in socket.if_nameindex()}
    loopback = index_of["lo"]
    requests = [netlink.link_up(node, loopback)]
    for link, end in ends:
        index = index_of[end.name]
        requests += [netlink.address(link.name, index, address) for address in end.addresses]
        requests += [
            netlink.address(link.name, loopback, f"{address}/32")
            for address in end.further_addresses
        ]
        requests.append(netlink.link_up(link.name, index))
        requests += [netlink.neighbour(link.name, index, *entry) for entry in end.neighbours]
        if hop := end.gateway:
            requests.append(netlink.neighbour(link.name, index, hop.address, hop.mac))
            requests.append(netlink.route(link.name, index, hop.network, hop.address))
    netlink.execute(requests)


def frame_bytes(segments: int, mtu: int) -> int:
    """Return an interface's limit in bytes by which TCP fills frames with this many segments."""
    return segments * (mtu - _IP_TCP_BYTES) + _FRAME_HEADROOM


def _most_segments(plan: FabricPlan) -> int:
    """Return the most segments in a frame that a host sends; 0 for the kernel's limit.

    Hosts send frames of one packet into queues with a limit.
    """
    if plan.single_packets:
        return 1
    return frame_segments_of(plan) if plan.shaped else 0


def _pair(
    link: Link, pids: Mapping[str, int], master_of: Mapping[str, int], most_segments: int
) -> netlink.Request:
    """Return the request that makes a link; only the link's first end can join a bridge.

    Hosts can send frames of `most_segments`. The limit in bytes gives frames their size without
    TCP's least number of segments: the kernel stops a paced connection for ever if it reads 0
    there, which happens where a congestion control gives that number (seen with Linux 6.18).
    """

    def veth_end(end: Interface) -> netlink.VethEnd:
        segments = most_segments if link.is_host_link and end == link.a else 0
        most_bytes = frame_bytes(segments, link.mtu) if segments > 1 else 0
        pid, master = pids[end.node] if end.node != FABRIC else 0, master_of[end.bridge]
        return netlink.VethEnd(end.name, link.mtu, pid, end.mac, master, segments, most_bytes)

    first, second = (link.a, link.b) if link.a.node == FABRIC else (link.b, link.a)
    return netlink.veth(link.name, veth_end(first), veth_end(second))


def shape_all(plan: FabricPlan, pids: Mapping[str, int]) -> None:
    """Shape the links that have a rate; raise FabricError for a failed link."""
    _run_per_node(plan, pids, apply_shapes)


def verify_all(plan: FabricPlan, pids: Mapping[str, int]) -> None:
    """Check the rates of all links; raise FabricError, with each link that has another rate."""
    _run_per_node(plan, pids, verify_shapes)


def unshape_fabric(plan: FabricPlan) -> None:
    """Remove the shaping in the fabric's own namespace, whose interfaces are about to end."""
    with suppress(FabricError):  # what is left ends with its interface
        remove_shapes(_shapes(plan).get(FABRIC, []))


def _run_per_node(
    plan: FabricPlan, pids: Mapping[str, int], function: Callable[[list[Shape]], None]
) -> None:
    """In each namespace, call a function with the shapes of its interfaces."""
    shapes = _shapes(plan)
    function(shapes.pop(FABRIC, []))
    namespaces.run_in_each((pids[node], partial(function, shapes[node])) for node in shapes)


def _shapes(plan: FabricPlan) -> dict[str, list[Shape]]:
    """Return the shapes of a plan by node."""
    shapes = defaultdict[str, list[Shape]](list)
    for link, end, rate_bps in plan.shaped_ends:
        shapes[end.node].append(Shape(link.name, end.name, rate_bps, plan.queue))
    return shapes


def read_queues(plan: FabricPlan, pids: Mapping[str, int]) -> QueueCounts:
    """Read the packets that left all queues of the kernel and those that were dropped.

    Call it in the fabric's own namespace.

    Args:
        pids: by node, the pid of a process in the node's namespace.

    Raises:
        FabricError: if a namespace is gone.
    """
    names = {
        end.name: port
        for link, _ in plan.shaped
        for end, port in zip((link.a, link.b), link.port_names, strict=True)
    }
    counts: QueueCounts = {}

    def read(shapes: list[Shape]) -> None:
        for name, count in read_queue_counts(shapes).items():
            counts[names[name]] = count._asdict()

    _run_per_node(plan, pids, read)
    return counts
