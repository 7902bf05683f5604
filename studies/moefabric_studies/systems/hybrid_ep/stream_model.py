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

import numpy as np

Relation = Literal["experts", "tokens"]
"""Load that two workers exchange at a level."""


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


def groups(
    levels: Sequence[int], domains: Sequence[int], level: int, kind: Relation
) -> tuple[tuple[int, ...], ...]:
    """Return the workers that exchange experts or tokens with each other at a level (algorithm 1).

    They differ in the digit of the level only. Experts are exchanged in a domain, and tokens
    between the workers at the same place of each domain; a worker alone exchanges nothing.

    Args:
        levels: Workers of each level, outermost level first.
        domains: Size of a domain at each level, which divides the workers.
        level: Number of the level, 0 for the outermost one.
        kind: What they exchange.
    """
    digit = (levels[level] // domains[level], domains[level])
    workers = np.arange(prod(levels)).reshape(*levels[:level], *digit, *levels[level + 1 :])
    members = np.moveaxis(workers, level + (kind == "experts"), -1)
    if members.shape[-1] == 1:
        return ()
    return tuple(map(tuple, members.reshape(-1, members.shape[-1]).tolist()))


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
