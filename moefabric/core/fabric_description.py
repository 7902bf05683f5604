"""The description of a fabric's switches in a line of text."""

from moefabric.core.topology import Fabric
from moefabric.core.units import rate_text


def fabric_description(fabric: Fabric) -> str:
    """Describe the switches that connect a fabric's servers.

    Returns:
        Text such as `leaf-spine of 4 leaves and 2 spines, 3:1 oversubscribed`.
    """
    parts = []
    if fabric.patch_panel:
        panel = f"flat patch panel of {len(fabric.servers) * fabric.optical} ports"
        if fabric.has_circuits_only:
            return f"{panel}, {_forwarders(fabric)}"
        parts.append(panel)
    elif fabric.optical:
        switches = fabric.ocses.values()
        name = "OCS" if len(switches) == 1 else f"{len(switches)} OCSes"
        ports = sorted({ocs.ports for ocs in switches})
        suffix = " each" if len(switches) > 1 else ""
        parts.append(f"{name} of {' or '.join(map(str, ports))} ports{suffix}")
    if fabric.eps and fabric.leaves:
        leaves, spines = len(fabric.leaves), len(fabric.spines)
        text = "one leaf" if leaves == 1 else f"leaf-spine of {leaves} leaves"
        if fabric.eps_wiring.rail_optimised:
            text = f"rail-optimised, {leaves} {'leaf' if leaves == 1 else 'leaves'}"
        if spines:
            text += f" and {spines} {'spine' if spines == 1 else 'spines'}"
        ratio = fabric.eps.oversubscription if spines else 1.0
        blocking = "non-blocking" if ratio == 1 else f"{ratio:g}:1 oversubscribed"
        hashed = ", flows hashed" if spines > 1 and fabric.eps.hash_seed is not None else ""
        own = ", a NIC for each GPU" if fabric.nic_per_gpu else ""
        parts.append(f"{text}, {blocking}{hashed}{own}")
    if fabric.forwarding:
        parts.append(_forwarders(fabric))
    return " + ".join(parts)


def _forwarders(fabric: Fabric) -> str:
    rate_bps = fabric.forwarding_rate_bps
    who = "hosts forward" if fabric.forwarding_by_hosts else "servers forward"
    return who if rate_bps is None else f"{who} {rate_text(rate_bps)} each"
