"""One iteration of a job on a network: 1F1B pipeline of micro-batches, the all-to-alls of its layers, all-reduce at its end."""

from dataclasses import dataclass

from moefabric.model import BACKWARD
from moefabric.paper.job import Job
from moefabric.paper.network import AllToAll, Network, byte_rate


@dataclass(frozen=True)
class Iteration:
    """Model seconds; the parts sum up to `seconds`.

    Pipeline transfers are hidden behind other micro-batches but for filling and draining, all-reduce behind the last backward pass. Where transfers go
    beside all-to-alls and attention (`moefabric.paper.handover`), `pipeline_s` is what they add to these, and below 0 where they hide more than they add.
    """

    compute_s: float
    all_to_all_s: float
    blocked_s: float
    pipeline_s: float
    all_reduce_s: float

    @property
    def seconds(self) -> float:
        """The whole iteration."""
        return self.compute_s + self.all_to_all_s + self.blocked_s + self.pipeline_s + self.all_reduce_s

    @property
    def all_to_all_share(self) -> float:
        """The part of the iteration in which servers wait for an all-to-all."""
        return self.all_to_all_s / self.seconds


def iteration(job: Job, network: Network, rate_bps: float, blocked_s: float = 0.0) -> Iteration:
    """An iteration; each forward dispatch of each micro-batch waits `blocked_s` for light."""
    return of(job, network.all_to_all(job, rate_bps), network.electrical * byte_rate(rate_bps), blocked_s)


def of(job: Job, sent: AllToAll, eps_bytes_s: float, blocked_s: float = 0.0) -> Iteration:
    """An iteration with these all-to-alls, and an EPS of so many bytes a second and server for all-reduce and pipeline.

    1F1B: the slowest stage works `micro_batches` times, and the pipeline fills and drains once: `pp - 1` more (all stages are alike). Gradients of a
    layer are reduced while the layers below it compute their last backward pass, when the EPS has nothing else to carry.
    """
    passes = job.micro_batches + job.pp - 1
    layers = passes * job.stage_layers
    reduced = job.gradient_bytes / eps_bytes_s
    hidden = (job.stage_layers - 1) * job.layer_compute_s * BACKWARD / (1 + BACKWARD)
    return Iteration(
        compute_s=layers * job.layer_compute_s,
        all_to_all_s=layers * sent.layer_s,
        blocked_s=layers * blocked_s,
        pipeline_s=2 * (job.pp - 1) * job.stage_bytes / eps_bytes_s,
        all_reduce_s=max(reduced / job.stage_layers, reduced - hidden),
    )
