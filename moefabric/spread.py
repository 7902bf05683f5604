"""Spread: which electrical NICs carry which pair's bytes. Every flow costs both of its servers work, so that few are better than many."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from moefabric.flows import Flow
from moefabric.topology import Fabric

_NOTHING: Final = 1e-9
"""What is left of a NIC's load is nothing below this share of it: rounding."""

Pair = tuple[str, str]


def on_few_nics(fabric: Fabric, planned: Sequence[Flow]) -> tuple[Flow, ...]:
    """The same bytes between the same servers in fewer flows, where no NIC carries more than the fullest did.

    A pair sends by one NIC where that has room, and by several where it has to; those that meet at the busiest server choose first. With eight
    servers and NICs, 448 flows become 63. What goes by light stays as it is, and so does all where servers are on several leaves, or rails in several
    pods (few large flows that share an uplink and then a NIC end 3 % late, many small ones don't), or where choosing one pair after the other gets
    stuck.
    """
    wired = [flow for flow in planned if not flow.by_light]
    if not wired or len({fabric.leaf_of(server) for flow in wired for server in (flow.src, flow.dst)}) > 1:
        return tuple(planned)
    owed: defaultdict[Pair, float] = defaultdict(float)
    for flow in wired:
        owed[flow.src, flow.dst] += flow.bytes
    chosen = _chosen(owed, fabric.electrical)
    if chosen is None or len(chosen) >= len(wired):
        return tuple(planned)
    return (*(flow for flow in planned if flow.by_light), *chosen)


def _chosen(owed: dict[Pair, float], nics: int) -> list[Flow] | None:
    """A flow or more a pair; None where some bytes find no NIC with room at both ends."""
    sent, got = defaultdict[str, float](float), defaultdict[str, float](float)
    for (src, dst), size in owed.items():
        sent[src] += size
        got[dst] += size
    most = max(*sent.values(), *got.values()) / nics
    leaves = {src: [most] * nics for src in sent}
    arrives = {dst: [most] * nics for dst in got}
    made: list[Flow] = []
    for src, dst in sorted(owed, key=lambda pair: (-max(sent[pair[0]], got[pair[1]]), -owed[pair], pair)):
        left, out, into = owed[src, dst], leaves[src], arrives[dst]
        while left > _NOTHING * most:
            nic = _nic(out, into, left * (1 - _NOTHING))
            size = min(left, out[nic], into[nic])
            if size <= _NOTHING * most:
                return None
            out[nic], into[nic], left = out[nic] - size, into[nic] - size, left - size
            made.append(Flow(src, dst, f"e{nic}", size))
    return made


def _nic(out: Sequence[float], into: Sequence[float], size: float) -> int:
    """The NIC that is left with the least room by so many bytes; where none has room for all, the one that has room for most."""
    room = [min(pair) for pair in zip(out, into, strict=True)]
    fit = [nic for nic, free in enumerate(room) if free >= size]
    return (
        min(fit, key=lambda nic: out[nic] + into[nic]) if fit else max(range(len(room)), key=room.__getitem__)
    )
