"""HybridEP: experts move inside domains of workers, and tokens between domains.

Workers have a location with one digit for each level of the network, outermost level first. A level
is divided into domains. Inside a domain, workers gather each other's experts; tokens go to other
domains only, to the worker at the same place. Source: HybridEP, arXiv 2510.19470, section 4 and
algorithm 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

Relation = Literal["experts", "tokens"]
"""What two workers exchange at a level."""


@dataclass(frozen=True)
class Level:
    """A level of the network.

    Attributes:
        workers: Workers, or groups of workers of the next level, that the level joins.
        bytes_per_s: Payload rate of one worker at this level while all workers send.
    """

    workers: int
    bytes_per_s: float


@dataclass(frozen=True)
class MoeLayer:
    """Bytes and FLOPs of a worker in the forward pass of an MoE layer.

    Attributes:
        token_bytes: Bytes of the tokens of a worker, each counted once for every chosen expert.
        expert_bytes: Bytes of the experts of a worker on the wire.
        pre_expert_s: Seconds of computation before the dispatch.
    """

    token_bytes: float
    expert_bytes: float
    pre_expert_s: float


def location(worker: int, levels: Sequence[int]) -> tuple[int, ...]:
    """Return the digits of a worker's location, outermost level first."""
    digits = []
    for size in reversed(levels):
        worker, digit = divmod(worker, size)
        digits.append(digit)
    return tuple(reversed(digits))


def relation(
    a: tuple[int, ...], b: tuple[int, ...], level: int, domains: Sequence[int]
) -> Relation | None:
    """Return the exchange of two locations at a level; None for no exchange (algorithm 1).

    Args:
        a: A location.
        b: Another location.
        level: Number of the level, 0 for the outermost one.
        domains: Size of a domain at each level.
    """
    if a[level] == b[level] or a[:level] + a[level + 1 :] != b[:level] + b[level + 1 :]:
        return None
    size = domains[level]
    if a[level] // size == b[level] // size:
        return "experts"
    return "tokens" if a[level] % size == b[level] % size else None


def groups(
    levels: Sequence[int], domains: Sequence[int], level: int, kind: Relation
) -> tuple[tuple[int, ...], ...]:
    """Return the workers that exchange experts or tokens with each other at a level.

    Args:
        levels: Workers of each level.
        domains: Size of a domain at each level.
        level: Number of the level.
        kind: What they exchange.
    """
    places = [location(worker, levels) for worker in range(prod(levels))]
    found: dict[tuple[int, ...], None] = {}
    for worker, place in enumerate(places):
        peers = (n for n, o in enumerate(places) if relation(place, o, level, domains) == kind)
        if members := tuple(sorted(peers)):
            found[tuple(sorted((worker, *members)))] = None
    return tuple(found)


def candidates(levels: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all divisions of the levels into domains of equal size."""
    return product(*([d for d in range(1, n + 1) if n % d == 0] for n in levels))


def expert_gather_s(layer: MoeLayer, levels: Sequence[Level], domains: Sequence[int]) -> float:
    """Return Lat_AG: the seconds in which experts are gathered, level after level.

    A worker passes on at an inner level what it has gathered at the outer levels, so that each
    expert crosses an outer link once.
    """
    seconds, held = 0.0, layer.expert_bytes
    for level, size in zip(levels, domains, strict=True):
        seconds += held * (size - 1) / level.bytes_per_s
        held *= size
    return seconds


def all_to_all_s(layer: MoeLayer, levels: Sequence[Level], domains: Sequence[int]) -> float:
    """Return Lat_A2A: the seconds of one all-to-all, level after level."""
    return sum(
        layer.token_bytes * (1 - size / level.workers) / level.bytes_per_s
        for level, size in zip(levels, domains, strict=True)
    )


def layer_s(
    layer: MoeLayer,
    levels: Sequence[Level],
    domains: Sequence[int],
    *,
    prefetch: bool = True,
    all_to_alls: int = 2,
) -> float:
    """Return the seconds of a layer: Lat_PE + Lat_comm - Lat_ovlp.

    Args:
        layer: The MoE layer. Its expert computation overlaps the all-to-alls.
        levels: The network.
        domains: Size of a domain at each level.
        prefetch: Whether experts are gathered during the computation before the dispatch.
        all_to_alls: 2 for a forward pass as in the paper, 4 with the backward pass.
    """
    gather_s = expert_gather_s(layer, levels, domains)
    before = max(layer.pre_expert_s, gather_s) if prefetch else layer.pre_expert_s + gather_s
    return before + all_to_alls * all_to_all_s(layer, levels, domains)


def best_domains(
    layer: MoeLayer, levels: Sequence[Level], *, prefetch: bool = True, all_to_alls: int = 2
) -> tuple[int, ...]:
    """Return the domains with which a layer takes the least time; of equal ones the smallest."""
    sizes = [level.workers for level in levels]
    return min(
        candidates(sizes),
        key=lambda domains: layer_s(
            layer, levels, domains, prefetch=prefetch, all_to_alls=all_to_alls
        ),
    )


def token_share(workers: int, domain: int) -> float:
    """Return p, the share of chunks that one level still sends as tokens: 1 is plain EP."""
    return (workers - domain) / (workers - 1)


def worker_bytes(layer: MoeLayer, workers: int, domain: int) -> float:
    """Return the bytes that a worker of one level sends in a forward pass."""
    tokens = 2 * layer.token_bytes * (1 - domain / workers)
    return tokens + layer.expert_bytes * (domain - 1)
