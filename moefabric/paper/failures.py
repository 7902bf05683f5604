"""Failures: how much longer an iteration of MixNet takes while something is broken (paper sections 5.4 and 7.5)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, Protocol, Self

import numpy as np

from moefabric.paper.iteration import of
from moefabric.paper.job import GPUS, Job
from moefabric.paper.network import (
    AllToAll,
    both_ways,
    byte_rate,
    greedy,
    joint_circuits,
    light_first_s,
    lit_rates,
    spill_s,
)

Plan = Literal["mixnet", "spill", "joint"]
"""Who plans circuits and split, before the failure and after."""
_OPTICAL, _ELECTRICAL = 6, 2
_PASSES = 4
"""All-reduces of a tensor-parallel layer: after attention and experts, forward and backward."""


def slow_down(job: Job, rate_bps: float, failed: str, plan: Plan = "mixnet") -> float:
    """How much longer an iteration takes with one `nic`, `gpu` or `server` failed, as a part of the whole one's time."""
    rate = byte_rate(rate_bps)
    whole = of(job, _sent(job, rate, _Nics(job.servers), plan), _ELECTRICAL * rate).seconds
    return FAILED[failed](job, rate, plan) / whole - 1


def _nic(job: Job, rate: float, plan: Plan) -> float:
    """The worse of an electrical and an optical NIC, at whichever server it hurts most; the circuits are planned anew."""
    seconds = []
    for server in range(job.servers):
        for lost in (_Nics(job.servers).but(server, optical=1), _Nics(job.servers).but(server, electrical=1)):
            sent = _sent(job, rate, lost, plan)
            seconds.append(of(job, sent, float(lost.electrical.min()) * rate).seconds)
    return max(seconds)


def _gpu(job: Job, rate: float, plan: Plan) -> float:
    """One GPU's work goes to a backup on another server, reached over the EPS.

    Its tensor-parallel group is then of two servers: partial sums are reduced inside, exchanged with the backup and handed round inside
    (hierarchical, paper section 5.3), `_PASSES` times a layer. A rank of one GPU has no such group; its tokens go to another server.
    """
    sent = _sent(job, rate, _Nics(job.servers), plan)
    crossing = (
        job.training.rank_tokens * job.model.token_bytes / (_ELECTRICAL * rate)
        if job.training.tp > 1
        else 0.0
    )
    made = of(job, sent, _ELECTRICAL * rate)
    passes = job.micro_batches + job.pp - 1
    return made.seconds + passes * job.stage_layers * _PASSES * crossing


def _server(job: Job, rate: float, plan: Plan) -> float:
    """A replacement that all of its NICs join to the EPS; the others' light is planned without it."""
    replaced = (
        _Nics(job.servers).but(server, optical=_OPTICAL, electrical=_ELECTRICAL - GPUS)
        for server in range(job.servers)
    )
    return max(of(job, _sent(job, rate, nics, plan), _ELECTRICAL * rate).seconds for nics in replaced)


class _Failure(Protocol):
    """Seconds of an iteration with something failed; `rate` in bytes a second of a NIC."""

    def __call__(self, job: Job, rate: float, plan: Plan) -> float:
        """With everything planned anew."""


FAILED: Final[Mapping[str, _Failure]] = MappingProxyType({"nic": _nic, "gpu": _gpu, "server": _server})
"""What may fail, and the seconds of an iteration when it has."""


class _Nics:
    """How many NICs of each kind every server has."""

    def __init__(self, servers: int) -> None:
        self.optical = np.full(servers, _OPTICAL)
        self.electrical = np.full(servers, float(_ELECTRICAL))

    def but(self, server: int, optical: int = 0, electrical: int = 0) -> Self:
        """So many less at one server."""
        self.optical[server] -= optical
        self.electrical[server] -= electrical
        return self


def _sent(job: Job, rate: float, nics: _Nics, plan: Plan) -> AllToAll:
    """The all-to-alls where servers have these NICs."""
    budgets = nics.electrical * rate
    lit = (
        joint_circuits(job.owed, nics.optical, rate, budgets)
        if plan == "joint"
        else greedy(job.owed, nics.optical)
    )
    ends = light_first_s if plan == "mixnet" else spill_s
    return both_ways(lambda owed: ends(owed, lit_rates(lit, rate), budgets), job.owed, lit)
