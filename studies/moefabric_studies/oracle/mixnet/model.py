"""The model's answers to the cases: one simulation of all flows, and a null model."""

from dataclasses import dataclass
from statistics import median
from typing import Final

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
from moefabric_studies.oracle.mixnet.cases import (
    HASHED_SPINES,
    NICS,
    FloatArray,
    Group,
    JudgedCase,
    Network,
)
from moefabric_studies.oracle.own_simulators import max_min_ends_s
from moefabric_studies.oracle.scenario import FlowStep, routed_flows, scenario
from moefabric_studies.paper.frontier.networks import wired_circuits

_MTU: Final = 9000
_SEEDS: Final = (13, 14, 15)


@dataclass(frozen=True)
class Answer:
    """The model's answer to a case.

    Attributes:
        seconds: When the last flow ends.
        null_s: The busiest server's bytes over all its NICs: no circuits, no paths, no transport.
        group: The cases to which it belongs.
        hashed_s: When the last flow ends if the EPS hashes flows onto spines: the median of some
            seeds; None on other networks than the fat tree.
    """

    seconds: float
    null_s: float
    group: Group
    hashed_s: float | None


def answer(case: JudgedCase, matrix: FloatArray, counts: NDArray[np.int64]) -> Answer:
    """Return the model's answer to a case.

    NICs send payload at their full rate, because the simulator's packets have no headers on a link.

    Args:
        matrix: Bytes [server, server].
        counts: Circuits [server, server]; zeros on networks without circuits.
    """
    seconds, last = _last_flow(case, matrix, counts, Eps(servers_per_leaf=len(matrix)))
    busiest = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
    hashed_s = None
    if case.network is Network.FAT_TREE:
        trees = [Eps(1, HASHED_SPINES, hash_seed=seed) for seed in _SEEDS]
        hashed_s = median(_last_flow(case, matrix, counts, tree)[0] for tree in trees)
    return Answer(seconds, 8 * busiest / (NICS * case.rate_bps), _group(case, last), hashed_s)


def _last_flow(
    case: JudgedCase, matrix: FloatArray, counts: NDArray[np.int64], eps: Eps
) -> tuple[float, Flow]:
    """Return the last flow of a case on an EPS, and when it ends."""
    fabric = _fabric(case, len(matrix), eps)
    demand = DemandMatrix(fabric.servers, matrix)
    lit = wired_circuits(counts)
    policy = policy_named("mixnet" if case.optical else "eps")
    sent = flows(fabric, lit, policy.split(fabric, demand, lit))
    ends = max_min_ends_s(
        scenario("judged", fabric, [FlowStep(routed_flows(fabric, lit, sent, 1.0))])
    )
    last = int(np.argmax(ends))
    return ends[last], sent[last]


def algorithm1_counts(case: JudgedCase, matrix: FloatArray) -> NDArray[np.int64]:
    """Return the circuits [server, server] that the policy `mixnet` gives a case."""
    fabric = _fabric(case, len(matrix), Eps(servers_per_leaf=len(matrix)))
    demand = DemandMatrix(fabric.servers, matrix)
    chosen = plan(fabric, fabric.regions[0], demand, policy_named("mixnet"), CircuitSet())
    return np.array(chosen.counts, dtype=np.int64)


def _group(case: JudgedCase, last: Flow) -> Group:
    if case.network is Network.FAT_TREE:
        return Group.FAT_TREE
    if case.network is Network.ONE_SWITCH:
        return Group.ONE_SWITCH
    return Group.CIRCUITS if last.is_optical else Group.EPS_OF_CIRCUITS


def _fabric(case: JudgedCase, servers: int, eps: Eps) -> Fabric:
    names = tuple(f"s{number}" for number in range(servers))
    ocs = Ocs("ocs0", ports=servers * case.optical) if case.optical else None
    rate_bps = case.rate_bps / goodput_share(_MTU)
    region = Region("r0", 0, names, ocs)
    return Fabric(
        "judged", (region,), NICS, case.optical, NICS - case.optical, rate_bps, eps, mtu=_MTU
    )
