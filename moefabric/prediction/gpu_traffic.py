"""The bytes between all GPUs of a job in an iteration, from the tasks that `predict` times.

Ranks fill servers in order, and a rank's GPUs follow each other. Tensor parallelism sums in a ring
over a rank's GPUs, as `Training.tensor_all_reduce_s` charges it. All else is between GPUs of equal
number in their rank or server, each with an equal part: an all-to-all between ranks, activations
between stages, and gradients in rings of servers, whose sums inside a server aren't charged.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix
from moefabric.prediction.jobs import Jobs
from moefabric.workload.iterations.iteration import AllReduce, Collective, Compute, Transfer
from moefabric.workload.iterations.substitution import TENSOR, Substitutions
from moefabric.workload.iterations.tasks import Work

Parallelism = Literal["tensor", "expert", "pipeline", "data"]
"""What GPUs exchange bytes for."""
Array = NDArray[np.float64]
_KINDS: Final[dict[str, Parallelism]] = {
    TENSOR: "tensor",
    "dispatch": "expert",
    "combine": "expert",
    "experts": "expert",
    "pipeline": "pipeline",
    "all-reduce": "data",
}
_Block = tuple[Parallelism, str, str, Array]
"""Bytes [GPU of the sender, GPU of the receiver] between two servers, or inside one."""


def gpu_traffic(jobs: Jobs) -> dict[Parallelism, Array]:
    """Return the bytes [from GPU, to GPU] of the jobs' first iterations, by kind of parallelism.

    Args:
        jobs: The jobs. GPUs are in the order of their servers.
    """
    gpus = jobs.fabric.gpus
    servers = list(chain.from_iterable(region.servers for region in jobs.regions))
    position = {server: place * gpus for place, server in enumerate(servers)}
    size = len(servers) * gpus
    traffic: dict[Parallelism, Array] = {
        kind: np.zeros((size, size)) for kind in dict.fromkeys(_KINDS.values())
    }
    regions = {region.name: region.servers for region in jobs.regions}
    for job in jobs.all:
        for task in jobs.tasks(job, 0, Substitutions()):
            working = list(chain.from_iterable(regions[name] for name in task.regions))
            for kind, src, dst, sent in _blocks(jobs, working, task.work):
                rows, columns = position[src], position[dst]
                traffic[kind][rows : rows + gpus, columns : columns + gpus] += sent
    for matrix in traffic.values():
        np.fill_diagonal(matrix, 0.0)
    return traffic


def _blocks(jobs: Jobs, servers: list[str], work: Work) -> Iterator[_Block]:
    """Yield the bytes between pairs of servers, and inside servers, of a task."""
    gpus = jobs.fabric.gpus
    match work:
        case Compute():
            sent = _tensor_sums(jobs, work)
            if sent.any():
                yield from (("tensor", server, server, sent) for server in servers)
        case Collective(kind=kind, demand=demand):
            tp = jobs.work.training.tp
            for i, j in np.argwhere(demand.array).tolist():
                pair = demand.servers[i], demand.servers[j]
                between_ranks = demand.array[i, j] * _rank_part(demand, pair, gpus // tp)
                yield _KINDS[kind], *pair, np.kron(between_ranks, np.eye(tp) / tp)
        case Transfer(kind=kind) | AllReduce(kind=kind):
            sent = work.bytes / gpus * np.eye(gpus)
            yield from ((_KINDS[kind], src, dst, sent) for src, dst in work.pairs)


def _rank_part(demand: DemandMatrix, pair: tuple[str, str], ranks: int) -> Array:
    """Return the part of a pair's bytes [rank of the sender, rank of the receiver]."""
    return demand.rank_parts.get(pair, np.full((ranks, ranks), 1 / ranks**2))


def _tensor_sums(jobs: Jobs, work: Compute) -> Array:
    """Return the bytes [GPU, GPU] inside a server of a computation's all-reduces."""
    model, training = jobs.work.model, jobs.work.training
    dense = 2 * model.replayed_part * model.dense_layers
    sums = {"attention": 1.0, "expert": 1.0, "dense": dense}.get(work.kind, 0.0)
    sums *= 1 + (work.direction == "backward" and training.recomputation)
    ring = np.roll(np.eye(training.tp), 1, axis=1)
    ranks = np.eye(jobs.fabric.gpus // training.tp)
    sent = np.kron(ranks, sums * training.tensor_all_reduce_bytes(model) * ring)
    return np.asarray(sent, np.float64)
