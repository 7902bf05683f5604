"""The model's answers to the cases: one simulation of all flows, and a null model."""

from dataclasses import dataclass
from itertools import combinations, count

import numpy as np
from numpy.typing import NDArray

from moefabric import (
    CircuitSet,
    DemandMatrix,
    Eps,
    Fabric,
    Flow,
    Ocs,
    Region,
    flows,
    plan,
    policy_named,
)
from moefabric.api.networks import goodput_share
from moefabric_studies.oracle.mixnet.cases import NICS, FloatArray, Group, JudgedCase, Network
from moefabric_studies.oracle.own_simulators import max_min_ends_s
from moefabric_studies.oracle.scenario import FlowStep, routed_flows, scenario

_MTU = 9000


@dataclass(frozen=True)
class Answer:
    """The model's answer to a case.

    Attributes:
        seconds: When the last flow ends.
        null_s: The busiest server's bytes over all its NICs: no circuits, no paths, no transport.
        group: The cases to which it belongs.
    """

    seconds: float
    null_s: float
    group: Group


def answer(case: JudgedCase, matrix: FloatArray, counts: NDArray[np.int64]) -> Answer:
    """Return the model's answer to a case.

    NICs send payload at their full rate, because the simulator's packets have no headers on a link.

    Args:
        case: The case.
        matrix: Bytes [server, server].
        counts: Circuits [server, server]; zeros on networks without circuits.
    """
    fabric = _fabric(case, len(matrix))
    demand = DemandMatrix(fabric.servers, matrix)
    lit = _circuits(fabric.servers, counts)
    policy = policy_named("mixnet" if case.optical else "eps")
    sent = flows(fabric, lit, policy.split(fabric, demand, lit))
    step = FlowStep(routed_flows(fabric, lit, sent, 1.0))
    ends = max_min_ends_s(scenario("judged", fabric, [step]))
    last = int(np.argmax(ends))
    busiest = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
    null_s = 8 * busiest / (NICS * case.rate_bps)
    return Answer(ends[last], null_s, _group(case, sent[last]))


def algorithm1_counts(case: JudgedCase, matrix: FloatArray) -> NDArray[np.int64]:
    """Return the circuits [server, server] that the policy `mixnet` gives a case."""
    fabric = _fabric(case, len(matrix))
    demand = DemandMatrix(fabric.servers, matrix)
    chosen = plan(fabric, fabric.regions[0], demand, policy_named("mixnet"), CircuitSet())
    return np.array(chosen.counts, dtype=np.int64)


def _group(case: JudgedCase, last: Flow) -> Group:
    if case.network is Network.FAT_TREE:
        return Group.FAT_TREE
    if case.network is Network.ONE_SWITCH:
        return Group.ONE_SWITCH
    return Group.CIRCUITS if last.is_optical else Group.EPS_OF_CIRCUITS


def _fabric(case: JudgedCase, servers: int) -> Fabric:
    names = tuple(f"s{number}" for number in range(servers))
    ocs = Ocs("ocs0", ports=servers * case.optical) if case.optical else None
    rate_bps = case.rate_bps / goodput_share(_MTU)
    region = Region("r0", 0, names, ocs)
    eps = Eps(servers_per_leaf=servers)
    return Fabric(
        "judged", (region,), NICS, case.optical, NICS - case.optical, rate_bps, eps, mtu=_MTU
    )


def _circuits(servers: tuple[str, ...], counts: NDArray[np.int64]) -> CircuitSet:
    """Return circuits between the next free NICs of each pair."""
    free = [count() for _ in servers]
    return CircuitSet.of(
        f"{servers[a]}/o{next(free[a])}~{servers[b]}/o{next(free[b])}"
        for a, b in combinations(range(len(servers)), 2)
        for _ in range(counts[a, b])
    )
