"""Flows between servers, splits of a demand over OCS and EPS, and records of transfers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from moefabric.core import forwarding
from moefabric.core.circuits import CircuitSet
from moefabric.core.paths import eps_paths, gpu_nic, is_optical, nic_paths, relay_path
from moefabric.core.topology import Fabric

_ROUNDING: Final = 1e-9
"""Remaining bytes, relative to the load of the fullest NIC, that count as a rounding error."""


@dataclass(frozen=True, order=True)
class Flow:
    """Bytes that one server sends another over one path (`o1`, `e0`, `e0.2`, `r3`)."""

    src: str
    dst: str
    path: str
    bytes: float

    @property
    def is_optical(self) -> bool:
        """True if the flow leaves by an optical NIC."""
        return is_optical(self.path)


@dataclass(frozen=True, order=True)
class Share:
    """The bytes that one server owes another, split over OCS and EPS.

    Attributes:
        src: The sending server.
        dst: The receiving server.
        light_bytes: Bytes over the pair's own circuits.
        eps_bytes: Bytes over the EPS.
        forwarded: Bytes that other servers forward: the root of a relay tree
            (`moefabric.core.forwarding`) and the bytes that take it.
        forwarded_by_lane: Bytes by each lane of these trees, in their order; if empty, the first
            lanes carry all.
    """

    src: str
    dst: str
    light_bytes: float
    eps_bytes: float
    forwarded: tuple[tuple[str, float], ...] = ()
    forwarded_by_lane: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def over(
        cls, src: str, dst: str, light: float, eps: float, lanes: Mapping[tuple[str, int], float]
    ) -> Self:
        """Return a share whose bytes over the EPS are spread evenly.

        Args:
            light: Bytes over the pair's own circuits.
            eps: Bytes over the EPS.
            lanes: Forwarded bytes, by the root and the lane of a relay tree.
        """
        trees: dict[str, list[float]] = {}
        for (root, lane), size in lanes.items():
            parts = trees.setdefault(root, [])
            parts += [0.0] * (lane + 1 - len(parts))
            parts[lane] += size
        forwarded = tuple((root, sum(parts)) for root, parts in trees.items())
        by_lane = tuple(map(tuple, trees.values())) if any(lane for _, lane in lanes) else ()
        return cls(src, dst, light, eps, forwarded=forwarded, forwarded_by_lane=by_lane)

    @property
    def forwarded_lanes(self) -> Iterator[tuple[str, int, float]]:
        """Root, number and bytes of each lane of a relay tree that carries bytes."""
        for number, (root, size) in enumerate(self.forwarded):
            parts = self.forwarded_by_lane[number] if self.forwarded_by_lane else (size,)
            yield from ((root, lane, part) for lane, part in enumerate(parts) if part)

    @property
    def bytes(self) -> float:
        """All bytes of the pair."""
        return self.light_bytes + self.eps_bytes + self.forwarded_bytes

    @property
    def forwarded_bytes(self) -> float:
        """Bytes that other servers forward."""
        return sum(size for _, size in self.forwarded)

    @classmethod
    def joined(cls, shares: Sequence["Share"]) -> "Share":
        """Return the sum of a pair's shares, of which each NIC of the EPS carries equally much."""
        lanes = defaultdict[tuple[str, int], float](float)
        for share in shares:
            for root, lane, size in share.forwarded_lanes:
                lanes[root, lane] += size
        light, eps = sum(s.light_bytes for s in shares), sum(s.eps_bytes for s in shares)
        return cls.over(shares[0].src, shares[0].dst, light, eps, lanes)

    def of_size(self, size: float) -> "Share":
        """Return a share of `size` bytes that takes the paths in the same proportions."""
        factor = size / self.bytes
        return replace(
            self,
            light_bytes=self.light_bytes * factor,
            eps_bytes=self.eps_bytes * factor,
            forwarded=tuple((root, part * factor) for root, part in self.forwarded),
            forwarded_by_lane=tuple(
                tuple(part * factor for part in parts) for parts in self.forwarded_by_lane
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the share as `moefabric plan --json` and controllers write it."""
        document: dict[str, Any] = {"from": self.src, "to": self.dst}
        document |= {"light_bytes": self.light_bytes, "eps_bytes": self.eps_bytes}
        if self.forwarded:
            document["forwarded"] = dict(self.forwarded)
        if self.forwarded_by_lane:
            roots = (root for root, _ in self.forwarded)
            lanes = map(list, self.forwarded_by_lane)
            document["forwarded_by_lane"] = dict(zip(roots, lanes, strict=True))
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Share":
        """Return the share that `to_json` wrote."""
        return cls(
            document["from"],
            document["to"],
            document["light_bytes"],
            document["eps_bytes"],
            tuple(document.get("forwarded", {}).items()),
            tuple(map(tuple, document.get("forwarded_by_lane", {}).values())),
        )


@dataclass(frozen=True)
class Split:
    """A demand, split over OCS and EPS pair by pair.

    Example:
        >>> split = Split((Share("s0", "s1", 3e9, 1e9), Share("s0", "s2", 0.0, 2e9)))
        >>> split.light_bytes, split.eps_bytes
        (3000000000.0, 3000000000.0)
    """

    shares: tuple[Share, ...]

    def __iter__(self) -> Iterator[Share]:
        return iter(self.shares)

    @property
    def light_bytes(self) -> float:
        """All bytes over the circuits of their own pair."""
        return sum(share.light_bytes for share in self.shares)

    @property
    def forwarded_bytes(self) -> float:
        """All bytes that other servers forward."""
        return sum(share.forwarded_bytes for share in self.shares)

    @property
    def eps_bytes(self) -> float:
        """All bytes over the EPS."""
        return sum(share.eps_bytes for share in self.shares)


@dataclass(frozen=True)
class PacedFlow:
    """A transfer that an agent has to send.

    Attributes:
        src: The sending server.
        dst: The receiving server.
        path: The sender's NIC (`o1`, `e0`), and the spine if it isn't the NIC's (`e0.2`), or a
            relay tree (`r3`).
        bytes: Bytes really sent.
        rate_bps: Rate at which the bytes are paced; None means no pacing.
        offset: Position of the flow's first byte among all bytes that the sender owes the receiver
            in an exchange of ranks.
    """

    src: str
    dst: str
    path: str
    bytes: int
    rate_bps: float | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """The measurement of one transfer.

    Times are CLOCK_MONOTONIC nanoseconds on the experiment's clock; bytes are those really sent.

    Attributes:
        collective: Number of the collective.
        src: The sending server.
        dst: The receiving server.
        path: As in `PacedFlow`.
        bytes: Bytes that the sender sent.
        received_bytes: Bytes that the receiver read.
        rate_bps: Rate at which the bytes were paced; None means no pacing.
        first_sent_ns: Instant at which the first byte was sent.
        last_sent_ns: Instant at which the last byte was sent.
        first_received_ns: When the first byte was received.
        last_received_ns: When the last byte was received.
        retransmits: TCP segments sent again.
        ok: Whether every byte arrived once, in order and unchanged.
        why: Reason of a failed transfer; empty if it succeeded.
        corrupt: Whether all bytes arrived, but some have wrong values.
        acknowledged_ns: When the sender learnt that the receiver has all bytes; 0 for unknown.
    """

    collective: int
    src: str
    dst: str
    path: str
    bytes: int
    received_bytes: int
    rate_bps: float | None
    first_sent_ns: int
    last_sent_ns: int
    first_received_ns: int
    last_received_ns: int
    retransmits: int
    ok: bool
    why: str = ""
    corrupt: bool = False
    acknowledged_ns: int = 0


def loss_text(lost: Sequence[FlowRecord]) -> str:
    """Return the first of the lost flows, and how many more there are."""
    first = lost[0]
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return f"{first.src} to {first.dst} by {first.path}: {first.why}{more}"


def flows(
    fabric: Fabric,
    circuits: CircuitSet,
    split: Iterable[Share],
    rank_parts: Mapping[tuple[str, str], NDArray[np.float64]] = MappingProxyType({}),
) -> tuple[Flow, ...]:
    """Return the flows of a split: each pair's bytes spread over NICs.

    Bytes over circuits are spread evenly over the pair's circuits. Bytes over the EPS are spread
    evenly over the sender's electrical NICs, and over the spines between the two servers; those of
    `rank_parts` take the NICs of the GPUs instead. Without an EPS, other servers forward the bytes
    of a pair without a circuit, which are spread evenly over the sender's NICs that lead to the
    destination. Forwarded bytes take the lanes of relay trees that the share names.

    Example:
        >>> from moefabric import Eps, Fabric, Ocs, Region
        >>> region = Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", ports=3))
        >>> fabric = Fabric("lab", (region,), 8, 1, 1, 100e9, Eps(servers_per_leaf=4))
        >>> lit = CircuitSet.of(["s0/o0~s1/o0"])
        >>> for flow in flows(fabric, lit, [Share("s0", "s1", 3e9, 1e9)]):
        ...     print(flow.src, flow.dst, flow.path, flow.bytes)
        s0 s1 o0 3000000000.0
        s0 s1 e0 1000000000.0

    Args:
        split: Shares of the pairs.
        rank_parts: If each GPU has its own NIC, the part of a pair's bytes [rank on the sender,
            rank on the receiver]. The GPUs of a rank have equal parts, which go to the GPUs of the
            same number of the other rank.

    Returns:
        The flows, share by share.

    Raises:
        ValueError: If a share has bytes over circuits but its pair has no circuit, or other bytes
            but its sender has neither an electrical NIC nor a server that forwards.
    """
    result: list[Flow] = []
    for share in split:
        if share.light_bytes:
            result += _flows_by_light(circuits, share)
        if share.eps_bytes:
            parts = rank_parts.get((share.src, share.dst))
            result += (
                _flows_without_circuit(fabric, circuits, share)
                if parts is None
                else _flows_of_gpus(fabric, share, parts)
            )
        for root, lane, size in share.forwarded_lanes:
            result.append(Flow(share.src, share.dst, relay_path(fabric, root, lane), size))
    return tuple(result)


def _flows_by_light(circuits: CircuitSet, share: Share) -> Iterator[Flow]:
    ends = [circuit.end_at(share.src) for circuit in circuits.between(share.src, share.dst)]
    if not ends:
        size = f"{share.light_bytes:g} bytes by light"
        raise ValueError(f"{share.src} has no circuit to {share.dst} for {size}")
    for nic in ends:
        yield Flow(share.src, share.dst, nic.path, share.light_bytes / len(ends))


def _flows_of_gpus(fabric: Fabric, share: Share, parts: NDArray[np.float64]) -> Iterator[Flow]:
    sizes, gpus = defaultdict[str, float](float), fabric.gpus // len(parts)
    for (sender, receiver), part in np.ndenumerate(parts):
        for gpu in range(gpus if part else 0):
            near, far = (gpu_nic(fabric, rank * gpus + gpu) for rank in (sender, receiver))
            names = nic_paths(fabric, share.src, share.dst, near, far)
            for name in names:
                sizes[name] += share.eps_bytes * part / gpus / len(names)
    yield from (Flow(share.src, share.dst, name, size) for name, size in sizes.items())


def _flows_without_circuit(fabric: Fabric, circuits: CircuitSet, share: Share) -> Iterator[Flow]:
    paths: dict[str, float]
    if fabric.has_circuits_only:
        nics = forwarding.next_hops(circuits).get((share.src, share.dst), ())
        paths = {nic.path: share.eps_bytes / len(nics) for nic in nics}
    else:
        pair = eps_paths(fabric, share.src, share.dst)
        paths = {path.name: path.share * share.eps_bytes for path in pair}
    if not paths:
        lacks = "way over circuits" if fabric.has_circuits_only else "electrical NIC"
        raise ValueError(f"{share.src} has no {lacks} for {share.eps_bytes:g} bytes to {share.dst}")
    for path, size in paths.items():
        if size:
            yield Flow(share.src, share.dst, path, size)


def consolidated_flows(fabric: Fabric, planned: Sequence[Flow]) -> tuple[Flow, ...]:
    """Send the same bytes between the same servers in fewer flows.

    Every flow costs CPU on both of its servers. A pair uses one NIC if one has room, and several
    otherwise. No NIC carries more than the fullest NIC did before. Pairs of the busiest server
    choose first. With eight servers of eight NICs, 448 flows become 63.

    Flows over circuits stay as they are. All flows do if their servers are on several leaves, or
    on rails in several pods: a few large flows that share an uplink and then a NIC end 3 % late,
    many small ones don't. All flows also stay if a pair finds no NIC with room.

    Args:
        planned: Flows of one collective.

    Returns:
        The flows over circuits, then the flows over the EPS.
    """
    eps_flows = [flow for flow in planned if not flow.is_optical]
    ends = {server for flow in eps_flows for server in (flow.src, flow.dst)}
    if not eps_flows or len({fabric.eps_wiring.leaf_of(server) for server in ends}) > 1:
        return tuple(planned)
    owed: defaultdict[tuple[str, str], float] = defaultdict(float)
    for flow in eps_flows:
        owed[flow.src, flow.dst] += flow.bytes
    chosen = _chosen_flows(owed, fabric.electrical)
    if chosen is None or len(chosen) >= len(eps_flows):
        return tuple(planned)
    return (*(flow for flow in planned if flow.is_optical), *chosen)


def _chosen_flows(owed: dict[tuple[str, str], float], nics: int) -> list[Flow] | None:
    """Choose the NICs of each pair; None if some bytes find no NIC with room at both ends."""
    sent, received = defaultdict[str, float](float), defaultdict[str, float](float)
    for (src, dst), size in owed.items():
        sent[src] += size
        received[dst] += size
    most = max(*sent.values(), *received.values()) / nics
    sending = {src: [most] * nics for src in sent}
    receiving = {dst: [most] * nics for dst in received}

    def priority(pair: tuple[str, str]) -> tuple[float, float, tuple[str, str]]:
        return -max(sent[pair[0]], received[pair[1]]), -owed[pair], pair

    chosen: list[Flow] = []
    for src, dst in sorted(owed, key=priority):
        rest, out, into = owed[src, dst], sending[src], receiving[dst]
        while rest > _ROUNDING * most:
            nic = _best_nic(out, into, rest * (1 - _ROUNDING))
            size = min(rest, out[nic], into[nic])
            if size <= _ROUNDING * most:
                return None
            out[nic], into[nic], rest = out[nic] - size, into[nic] - size, rest - size
            chosen.append(Flow(src, dst, f"e{nic}", size))
    return chosen


def _best_nic(out: Sequence[float], into: Sequence[float], size: float) -> int:
    """Return the NIC with the least room that suffices for a size, or else with the most room."""
    room = [min(pair) for pair in zip(out, into, strict=True)]
    fitting = [nic for nic, free in enumerate(room) if free >= size]
    if fitting:
        return min(fitting, key=lambda nic: out[nic] + into[nic])
    return max(range(len(room)), key=room.__getitem__)
