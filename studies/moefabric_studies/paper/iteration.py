"""Composition of an iteration: 1F1B pipeline, all-to-alls of its layers, and all-reduce."""

from dataclasses import astuple, dataclass, replace
from typing import Final

import numpy as np

from moefabric.api.networks import waterfill
from moefabric_studies.paper.job import FloatArray, PaperJob
from moefabric_studies.paper.network import AllToAll, nic_bytes_s

_ALL_TO_ALL: Final = "all-to-all"
_ATTENTION: Final = "attention"
_TRANSFER: Final = "transfer"


@dataclass(frozen=True)
class Iteration:
    """Parts of an iteration in model seconds. They add up to `seconds`.

    `compute_s` is that of an average rank, and `straggler_s` the time in which an average rank
    waits for the experts of the busiest one (`moefabric_studies.paper.shares`).
    Pipeline transfers overlap with other micro-batches, except while the pipeline fills and drains;
    the all-reduce overlaps with the last backward pass. If transfers overlap with all-to-alls and
    attention (`stage_transfer`), `pipeline_s` is the time that they add to these,
    negative if they save time.
    """

    compute_s: float
    straggler_s: float
    all_to_all_s: float
    blocked_s: float
    pipeline_s: float
    all_reduce_s: float

    @property
    def seconds(self) -> float:
        """Duration of the iteration."""
        return float(sum(astuple(self)))

    @property
    def all_to_all_share(self) -> float:
        """Part of the iteration in which bytes of all-to-alls move."""
        return self.all_to_all_s / self.seconds

    @property
    def all_to_all_call_share(self) -> float:
        """Part of the iteration that ranks spend in calls of all-to-alls, as a profiler sees it."""
        return (self.all_to_all_s + self.straggler_s) / self.seconds


def compose_iteration(
    job: PaperJob, all_to_all: AllToAll, eps_bytes_s: float, blocked_s: float = 0.0
) -> Iteration:
    """Return the iteration of a job with these all-to-alls.

    A micro-batch fills and drains all stages; the slowest stage determines the time of each further
    one (`pipeline_s` of `iterations.job`). The gradients of a layer are reduced while the layers
    below it compute their last backward pass, when the EPS has nothing else to carry.

    Args:
        all_to_all: all-to-alls of a layer.
        eps_bytes_s: a server's bytes per second for all-reduce and pipeline transfers.
        blocked_s: time that each forward dispatch of each micro-batch waits for its circuits.
    """
    times = job.layer_times(all_to_all.layer_s)
    layer_s = times.seconds + blocked_s
    stages = [(stage.moe_layers, job.other_compute_s(stage)) for stage in job.stages]
    slowest = max(stages, key=lambda stage: stage[0] * layer_s + stage[1])
    passes, other_s = (
        sum(parts) + (job.micro_batches - 1) * slow
        for parts, slow in zip(zip(*stages, strict=True), slowest, strict=True)
    )
    reduce_s = job.gradient_bytes / eps_bytes_s
    hidden_s = (job.stage_layers - 1) * job.layer_times(directions=("backward",)).seconds
    return Iteration(
        compute_s=passes * (times.attention_s + times.expert_s) + other_s,
        straggler_s=passes * times.straggler_s,
        all_to_all_s=passes * all_to_all.layer_s,
        blocked_s=passes * blocked_s,
        pipeline_s=2 * (job.pp - 1) * job.stage_transfer_bytes / eps_bytes_s,
        all_reduce_s=max(reduce_s / job.stage_layers, reduce_s - hidden_s),
    )


@dataclass(frozen=True)
class StageTransfer:
    """All-to-all and transfer of one micro-batch to the next stage, sequence by sequence.

    A sequence goes on to the next stage as soon as its own tokens are back from the experts, while
    tokens of other sequences still arrive: the EPS carries the transfer, and circuits carry more of
    the all-to-all. In the forward pass the transfer follows the last layer's combine. In the
    backward pass it follows the first layer's last all-to-all (the same matrix, paper section 5.1)
    and its attention, in which sequences are independent. Experts still compute for the whole
    micro-batch.

    All sequences have equal demand. Servers of the next stage are idle and have the same budgets.

    Attributes:
        demand: bytes [server, server] of the all-to-all.
        light: bytes per second [server, server] of the circuits.
        budgets: bytes per second of each server to the EPS, each way.
        transfer_bytes: bytes that each server sends to the next stage.
        sequences: sequences of the micro-batch.
        attention_s: compute between all-to-all and transfer.
    """

    demand: FloatArray
    light: FloatArray
    budgets: FloatArray
    transfer_bytes: float
    sequences: int
    attention_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Time from the all-to-all's first to the transfer's last byte, in the faster schedule."""
        return min(self.sequential_s, self.overlapped_s)

    @property
    def sequential_s(self) -> float:
        """Time if the micro-batch's all-to-all, attention and transfer follow each other."""
        return sum(
            self.sequences * self._step_s({part}) for part in (_ALL_TO_ALL, _ATTENTION, _TRANSFER)
        )

    @property
    def overlapped_s(self) -> float:
        """Time if parts of successive sequences overlap.

        A step has the all-to-all of a sequence, the attention of the sequence before, and the
        transfer of the sequence before that.
        """
        parts = [_ALL_TO_ALL, *([_ATTENTION] if self.attention_s else []), _TRANSFER]
        return sum(
            self._step_s(
                {part for lag, part in enumerate(parts) if 0 <= step - lag < self.sequences}
            )
            for step in range(self.sequences + len(parts) - 1)
        )

    def _step_s(self, parts: set[str]) -> float:
        """Return the duration of parts of different sequences at once."""
        n = len(self.demand)
        demand = self.demand / self.sequences if _ALL_TO_ALL in parts else np.zeros((n, n))
        sent = np.full(n, self.transfer_bytes / self.sequences if _TRANSFER in parts else 0.0)
        transfer = np.concatenate([sent, np.zeros(n)])  # it arrives in another region
        attention_s = self.attention_s / self.sequences if _ATTENTION in parts else 0.0
        links = waterfill.EpsLinks.one_leaf(self.budgets)
        return max(attention_s, waterfill.completion_s(demand, self.light, links, transfer))


def overlapped_iteration(
    job: PaperJob, all_to_all: AllToAll, electrical: float, rate_bps: float
) -> Iteration:
    """Return an iteration whose pipeline transfers overlap while the pipeline fills and drains.

    Args:
        all_to_all: all-to-alls of a layer, in which each pair uses circuits and EPS.
        electrical: electrical NICs of a server.
        rate_bps: rate of a NIC.
    """
    rate, circuits, n = nic_bytes_s(rate_bps), all_to_all.circuits, job.servers
    forward = StageTransfer(
        demand=job.combine_bytes,
        light=np.multiply(circuits, rate) if circuits.size else np.zeros((n, n)),
        budgets=np.full(n, electrical * rate),
        transfer_bytes=job.stage_transfer_bytes,
        sequences=job.training.micro_batch,
    )
    attention_s = job.training.attention_s(job.model, "backward")
    backward = replace(forward, attention_s=attention_s)
    added_s = forward.seconds + backward.seconds - 2 * all_to_all.combine_s - attention_s
    iteration = compose_iteration(job, all_to_all, electrical * rate)
    return replace(iteration, pipeline_s=(job.pp - 1) * added_s)
