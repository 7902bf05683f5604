"""Composition of an iteration: 1F1B pipeline, all-to-alls of its layers, and all-reduce."""

from dataclasses import astuple, dataclass

from moefabric_studies.paper.job import PaperJob
from moefabric_studies.paper.network import AllToAll


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
