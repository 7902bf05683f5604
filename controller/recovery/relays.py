"""Selects relays: peers that forward for servers whose electrical NICs have all failed."""

from collections import Counter
from collections.abc import Collection, Mapping

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.nic import Nic
from moefabric.core.topology import Fabric, Region


def select_relays(
    fabric: Fabric, region: Region, lit: CircuitSet, current: Mapping[str, Circuit]
) -> dict[str, Circuit]:
    """Return the circuit to a relay for each server without electrical NICs (paper, 5.4).

    A server keeps a relay that works. Otherwise peers with a lit circuit come first, then those
    that forward for fewer servers, have more electrical NICs, and come earlier in the region. A new
    circuit ends at NICs without a lit circuit where there are any.

    Args:
        fabric: The fabric without the NICs that have failed.
        lit: The region's lit circuits.
        current: The relays in use, by server.
    """
    isolated = [
        s for s in region.servers if fabric.electrical_nics(s) and not fabric.usable_electrical(s)
    ]
    if not isolated:
        return {}
    peers = [s for s in region.servers if fabric.usable_electrical(s) and fabric.usable_optical(s)]
    electrical_nics = {peer: len(fabric.usable_electrical(peer)) for peer in peers}
    relays = {
        server: circuit
        for server in isolated
        if (circuit := current.get(server))
        and not {circuit.a, circuit.b} & fabric.unusable_nics
        and circuit.far_end(server).server in peers
    }
    for server in isolated:
        if server in relays:
            continue
        used = {nic for circuit in relays.values() for nic in (circuit.a, circuit.b)}
        load = Counter(circuit.far_end(other).server for other, circuit in relays.items())
        candidates = [
            (circuit not in lit.circuits, load[peer], -electrical_nics[peer], order, circuit)
            for order, peer in enumerate(peers)
            if (circuit := _circuit_between(fabric, lit, used, server, peer))
        ]
        if candidates:
            relays[server] = min(candidates)[-1]
    return relays


def _circuit_between(
    fabric: Fabric, lit: CircuitSet, used: Collection[Nic], a: str, b: str
) -> Circuit | None:
    """Return a circuit between two servers on working, unused NICs; prefer a lit circuit."""
    for circuit in lit.between(a, b):
        if not {circuit.a, circuit.b} & {*used, *fabric.unusable_nics}:
            return circuit
    ends = [
        min((nic in lit.nics, -nic.index, nic) for nic in nics)[-1]
        for server in (a, b)
        if (nics := [nic for nic in fabric.usable_optical(server) if nic not in used])
    ]
    return Circuit(*ends) if len(ends) == 2 else None
