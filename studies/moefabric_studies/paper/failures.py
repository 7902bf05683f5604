"""Slow-down of a MixNet iteration by a failure (paper sections 5.4 and 7.5)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

import numpy as np

from moefabric_studies.paper import network
from moefabric_studies.paper.iteration import compose_iteration
from moefabric_studies.paper.job import GPUS_PER_SERVER, Counts, FloatArray, PaperJob

_ALL_REDUCES: Final = 4
"""Tensor-parallel all-reduces of a layer: after attention and experts, forward and backward."""


@dataclass(frozen=True)
class _Case:
    """A job on servers with these numbers of working NICs; `rate` is a NIC's bytes per second."""

    job: PaperJob
    rate: float
    policy: network.PlanningPolicy
    optical: Counts
    electrical: FloatArray
    backup_nics: int
    all_reduces: int
    take: Callable[[list[float]], float]

    def without_nics(self, server: int, optical: int = 0, electrical: int = 0) -> Self:
        at_server = np.arange(self.job.servers) == server
        return replace(
            self,
            optical=self.optical - optical * at_server,
            electrical=self.electrical - electrical * at_server,
        )

    def iteration_s(self, eps_nics: float = network.ELECTRICAL_NICS) -> float:
        budgets = self.electrical * self.rate
        all_to_all = network.optical_all_to_all(
            self.job, self.policy, self.optical, self.rate, budgets
        )
        return compose_iteration(self.job, all_to_all, eps_nics * self.rate).seconds


def slow_down(
    job: PaperJob,
    rate_bps: float,
    failed: str,
    policy: network.PlanningPolicy = "mixnet",
    backup_nics: int = GPUS_PER_SERVER,
    all_reduces: int = _ALL_REDUCES,
    take: Callable[[list[float]], float] = max,
) -> float:
    """Return the relative increase of the iteration time with one failure.

    Args:
        rate_bps: rate of a NIC.
        failed: `nic`, `gpu` or `server`.
        policy: policy that plans circuits and split, before the failure and after it.
        backup_nics: electrical NICs of a backup server.
        all_reduces: tensor-parallel all-reduces of a layer that nothing hides.
        take: the iteration of a failure, given those of each server's and NIC's.
    """
    optical = np.full(job.servers, network.OPTICAL_NICS)
    electrical = np.full(job.servers, float(network.ELECTRICAL_NICS))
    rate, assumed = network.nic_bytes_s(rate_bps), (backup_nics, all_reduces, take)
    case = _Case(job, rate, policy, optical, electrical, *assumed)
    return _FAILED_ITERATION_S[failed](case) / case.iteration_s() - 1


def _without_nic_s(case: _Case) -> float:
    """Return the iteration time without an electrical or an optical NIC, the worst by default."""
    cases = [
        case.without_nics(server, **{kind: 1})
        for server in range(case.job.servers)
        for kind in ("optical", "electrical")
    ]
    return case.take([lost.iteration_s(float(lost.electrical.min())) for lost in cases])


def _without_gpu_s(case: _Case) -> float:
    """Return the iteration time with a backup GPU on another server, reached over the EPS.

    The tensor-parallel group then spans two servers. Partial sums are reduced within the server,
    exchanged with the backup GPU, and distributed within the server (hierarchical, paper section
    5.3), for each exposed all-reduce of a layer. A rank of one GPU has no such group; its tokens go
    to the other server.
    """
    job = case.job
    exchanged = job.training.rank_tokens * job.model.token_bytes if job.training.tp > 1 else 0.0
    exchange_s = exchanged / (network.ELECTRICAL_NICS * case.rate)
    return case.iteration_s() + job.layer_passes * case.all_reduces * exchange_s


def _without_server_s(case: _Case) -> float:
    """Return the iteration time with a backup server on the EPS alone, the worst by default."""
    lost = partial(
        case.without_nics,
        optical=network.OPTICAL_NICS,
        electrical=network.ELECTRICAL_NICS - case.backup_nics,
    )
    return case.take([lost(server).iteration_s() for server in range(case.job.servers)])


_FAILED_ITERATION_S: Final[dict[str, Callable[[_Case], float]]] = {
    "nic": _without_nic_s,
    "gpu": _without_gpu_s,
    "server": _without_server_s,
}
