"""Parts of a fabric's plan, one for each machine that carries a part of the fabric.

A link whose ends are on two machines becomes a tunnel: each machine has one end of it under its
planned name. The management bridges of all machines are joined in a star around the head's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.core.machines import Machine, MachinePlacement
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric.plan import (
    BRIDGE,
    FABRIC,
    SERVER_BRIDGE,
    FabricPlan,
    Interface,
    Link,
    Tunnel,
    plan_fabric,
)
from moefabric.emulator.linux.processes import OUTER, ProcessSpec
from moefabric.runtime.run_directory import FabricWiring

_BLOCK: Final = 1 << 13
"""Network identifiers of a fabric."""
_BLOCKS: Final = (1 << 24) // _BLOCK
"""Ranges of network identifiers; the identity of a fabric decides which one it has."""
_IDENTITY_DIGITS: Final = 7
_MANAGEMENT_MTU: Final = 1500


def plans_of(wiring: FabricWiring, machine: str) -> tuple[FabricPlan, FabricPlan]:
    """Return the plan of a whole fabric, and the plan of one machine's part.

    Args:
        wiring: the fabric with its placement.
        machine: name of the machine; a fabric without placement is on one.
    """
    fabric, placement = wiring.fabric, wiring.placement
    plan = plan_fabric(fabric, wiring.management)
    if placement is None:
        return plan, plan
    whole = tunnelled(plan, fabric, placement, wiring.identity)
    return whole, part_of(whole, wiring, placement.machine(machine))


def processes_on(
    specs: Iterable[ProcessSpec], wiring: FabricWiring, machine: str
) -> tuple[ProcessSpec, ...]:
    """Return the processes of a fabric that run on one machine.

    Args:
        specs: the processes of the whole fabric; those outside of all nodes run on the head.
        machine: name of the machine; a fabric without placement is on one.

    Raises:
        FabricError: lists the processes on nodes that the fabric doesn't have.
    """
    listed, placement = tuple(specs), wiring.placement
    nodes = {OUTER: "", **dict.fromkeys(plan_fabric(wiring.fabric, wiring.management).nodes, "")}
    if misplaced := [spec.name for spec in listed if spec.node not in nodes]:
        raise FabricError(f"{', '.join(misplaced)}: processes run on {', '.join(nodes)}")
    if placement is None:
        return listed
    nodes |= placement.components(wiring.fabric) | {OUTER: placement.head.name}
    return tuple(spec for spec in listed if nodes[spec.node] == machine)


def tunnelled(
    plan: FabricPlan, fabric: Fabric, placement: MachinePlacement, identity: str
) -> FabricPlan:
    """Return the plan of a whole fabric with its tunnels, each seen from its first end.

    Args:
        plan: the plan of the fabric on one machine.
        placement: which machine has each part.
        identity: the fabric's identity, by which its tunnels differ from those of other fabrics.

    Raises:
        FabricError: names the links that can't lead to another machine.
    """
    components = placement.components(fabric)
    first = int(identity[:_IDENTITY_DIGITS] or "0", 16) % _BLOCKS * _BLOCK
    vnis = count(first + 1)
    mtu = min(_MANAGEMENT_MTU, fabric.mtu)

    def placed(link: Link) -> Link:
        near, far = (placement.machine(components[component_of(end)]) for end in (link.a, link.b))
        if near != far:
            return replace(link, tunnel=Tunnel(next(vnis), near.address, far.address, link.a))
        # Frames of management pass tunnels from bridge to bridge.
        is_management = link.rate_bps is None and not link.is_host_link
        return replace(link, mtu=mtu) if is_management else link

    links = [placed(link) for link in plan.links]
    if faults := [link.name for link in links if link.tunnel and link.behaviour]:
        raise FabricError(
            f"{', '.join(faults)}: a link with delay, loss or marks can't lead to another machine; "
            "place its switches and servers on one"
        )
    links += _management_tunnels(placement, vnis, mtu)
    if next(vnis) - first > _BLOCK:
        raise FabricError(
            f"{fabric.name}: more than {_BLOCK} links between machines; place leaves beside regions"
        )
    return replace(plan, links=tuple(links))


def component_of(end: Interface) -> str:
    """Return the server, OCS or switch that an end belongs to."""
    return end.node or end.name.rpartition("-")[0]


def _management_tunnels(
    placement: MachinePlacement, vnis: Iterator[int], mtu: int
) -> Iterator[Link]:
    """Yield the tunnels that join the bridges of each machine with those of the head."""
    head = placement.head
    for number, machine in enumerate(placement.others, start=1):
        for bridge in (BRIDGE, SERVER_BRIDGE):
            name = f"{bridge[:6]}-m{number}"
            near, far = (Interface(FABRIC, f"{name}{end}", bridge=bridge) for end in "ab")
            tunnel = Tunnel(next(vnis), head.address, machine.address, near)
            yield Link(f"{bridge} of {machine.name}", near, far, mtu, tunnel=tunnel)


def part_of(whole: FabricPlan, wiring: FabricWiring, machine: Machine) -> FabricPlan:
    """Return a machine's part of a plan.

    Args:
        whole: the plan with its tunnels.
        wiring: the fabric, with its placement.
    """
    fabric, placement = wiring.fabric, wiring.placement
    assert placement is not None
    address = wiring.switch_addresses[placement.machines.index(machine)]
    components = placement.components(fabric)

    def is_here(name: str) -> bool:
        return components[name] == machine.name

    local = list[Link]()
    for link in whole.links:
        tunnel = link.tunnel
        if tunnel is not None and tunnel.remote == machine.address:
            back = Tunnel(tunnel.vni, tunnel.remote, tunnel.local, link.b)
            local.append(replace(link, tunnel=back))
        elif tunnel.local == machine.address if tunnel else is_here(component_of(link.a)):
            local.append(link)
    return replace(
        whole,
        servers=tuple(server for server in whole.servers if is_here(server)),
        switches=tuple(switch for switch in whole.switches if is_here(switch.name)),
        ocses=tuple(ocs for ocs in whole.ocses if is_here(ocs.name)),
        links=tuple(local),
        bridge_address=wiring.management.interface_address(address),
    )
