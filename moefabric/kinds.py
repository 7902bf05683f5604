"""Kinds: what a fabric is, in words, as a table or a report names it."""

from moefabric.topology import Fabric


def in_words(fabric: Fabric) -> str:
    """What joins a fabric's servers: `leaf-spine of 4 leaves and 2 spines, 3:1 oversubscribed`."""
    if fabric.panel:
        return f"flat patch panel of {len(fabric.servers) * fabric.optical} ports, servers forward"
    parts = []
    if fabric.optical:
        ports = sum(region.ocs.ports for region in fabric.regions if region.ocs)
        switches = sum(region.ocs is not None for region in fabric.regions)
        parts.append(f"{'OCS' if switches == 1 else f'{switches} OCSes'} of {ports} ports")
    if fabric.leaves:
        parts.append(_eps(fabric))
    return " + ".join(parts)


def _eps(fabric: Fabric) -> str:
    assert fabric.eps is not None
    leaves, spines = len(fabric.leaves), len(fabric.spines)
    said = "one leaf" if leaves == 1 else f"leaf-spine of {leaves} leaves"
    if fabric.rails:
        said = f"rail-optimised, {leaves} {'leaf' if leaves == 1 else 'leaves'}"
    if spines:
        said += f" and {spines} {'spine' if spines == 1 else 'spines'}"
    ratio = fabric.eps.oversubscription if spines else 1.0
    return said + (", non-blocking" if ratio == 1 else f", {ratio:g}:1 oversubscribed")
