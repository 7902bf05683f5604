"""Training jobs of the paper: model, parallelism, and bytes that servers send each other."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from moefabric import DemandMatrix, Eps, Fabric, Model, Placement, Region, Training, moe_layer
from moefabric.api import predictions, workloads
from moefabric_studies.paper.shares import LayerTimes, layer_times

FloatArray = NDArray[np.float64]
Counts = NDArray[np.int64]

GPUS_PER_SERVER: Final = 8
"""GPUs of a server. Each has a NIC."""
_NIC_RATE_BPS: Final = 400e9
"""Rate of NICs where no time is predicted."""


def rank_shares(gating: FloatArray | Counts) -> FloatArray:
    """Return the part of each rank's tokens that goes to each rank's experts [rank, rank].

    Args:
        gating: tokens [rank, expert].
    """
    shares = gating / gating.sum(axis=1, keepdims=True)
    by_rank: FloatArray = shares.reshape(len(gating), len(gating), -1).sum(axis=2)
    return by_rank


@dataclass(frozen=True)
class PaperJob:
    """A training job.

    Attributes:
        name: name of the job.
        training: an EP group: `ep` expert-parallel ranks of `tp` GPUs each.
        pp: pipeline stages.
        dp: data-parallel replicas.
        micro_batches: micro-batches of an iteration.
        gating: tokens [rank, expert], of which only the ratios in a row matter. All layers and
            micro-batches have the same gating, as in the paper's simulator.
    """

    name: str
    model: Model
    training: Training
    pp: int
    dp: int
    micro_batches: int
    gating: Counts

    @property
    def servers(self) -> int:
        """Servers of a region: one EP group of one pipeline stage."""
        return self.training.ep * self.training.tp // GPUS_PER_SERVER

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.servers * GPUS_PER_SERVER * self.pp * self.dp

    @cached_property
    def stages(self) -> tuple[workloads.StageContents, ...]:
        """Contents of each pipeline stage."""
        return workloads.stage_contents(self.model, self.pp)

    @property
    def stage_layers(self) -> int:
        """MoE layers of a stage that has the most of them."""
        return max(stage.moe_layers for stage in self.stages)

    @property
    def layer_passes(self) -> int:
        """MoE layers that are computed one after the other in an iteration.

        In a 1F1B schedule the first micro-batch goes through all stages, and the stage with the
        most layers computes the `micro_batches - 1` further ones.
        """
        return self.model.layers + (self.micro_batches - 1) * self.stage_layers

    @cached_property
    def token_matrix(self) -> FloatArray:
        """Tokens [rank, rank] of one dispatch, from each rank to the experts of each rank."""
        return rank_shares(self.gating) * self.training.rank_tokens * self.model.top_k

    def demand(self, servers: tuple[str, ...] | None = None) -> DemandMatrix:
        """Return the bytes of one dispatch.

        Args:
            servers: names of the region's servers; None for `s0` and so on.
        """
        names = servers or tuple(f"s{number}" for number in range(self.servers))
        placement = Placement(names, self.training.ep, self.model.experts)
        return moe_layer(self.model, self.training, placement, self.gating).demand

    @cached_property
    def dispatch_bytes(self) -> FloatArray:
        """Bytes [server, server] of one dispatch without diagonal."""
        by_server = self.demand().array.copy()
        np.fill_diagonal(by_server, 0.0)
        return by_server

    @property
    def combine_bytes(self) -> FloatArray:
        """Bytes [server, server] of one combine without diagonal."""
        return self.dispatch_bytes.T * self.model.combine_ratio

    @cached_property
    def gpu_traffic(self) -> dict[predictions.Parallelism, FloatArray]:
        """The bytes [from GPU, to GPU] of an iteration, from the tasks of all stages and replicas.

        Stages of a replica follow each other, and a region is an EP group of a stage.
        """
        shape, n = workloads.JobShape(self.pp, self.dp, self.micro_batches), self.servers
        servers = [f"s{number}" for number in range(shape.regions * n)]
        groups = [tuple(servers[first : first + n]) for first in range(0, len(servers), n)]
        regions = tuple(
            Region(f"r{number}", number, one, None) for number, one in enumerate(groups)
        )
        work = predictions.Workload(
            self.model,
            self.training,
            tuple(Placement(one, self.training.ep, self.model.experts) for one in groups),
            workloads.JobGating(self.gating[None, None], self.name),
            iterations=1,
            stages=self.pp,
        )
        gpus = GPUS_PER_SERVER
        fabric = Fabric(self.name, regions, gpus, 0, gpus, _NIC_RATE_BPS, Eps(1))
        return predictions.gpu_traffic(predictions.Jobs(fabric, work, shape))

    def layer_times(
        self,
        all_to_all_s: float = 0.0,
        directions: tuple[workloads.Direction, ...] = workloads.DIRECTIONS,
    ) -> LayerTimes:
        """Return the times of a layer for one micro-batch, in both passes or one of them."""
        return layer_times(self.model, self.training, self.gating, all_to_all_s, directions)

    @cached_property
    def layer_compute_s(self) -> float:
        """Compute of both passes of a layer for one micro-batch, at the busiest expert."""
        return self.layer_times().seconds

    def other_compute_s(self, stage: workloads.StageContents) -> float:
        """Return the compute of a stage's head and layers without experts, both passes."""
        model, training = self.model, self.training
        return sum(
            stage.dense_layers * training.dense_layer_s(model, direction)
            + stage.head * training.head_s(model, direction)
            for direction in workloads.DIRECTIONS
        )

    @property
    def stage_transfer_bytes(self) -> float:
        """Bytes of activations that a server sends to the next stage for one micro-batch."""
        return workloads.activation_bytes(self.model, self.training, self.servers)

    @property
    def gradient_bytes(self) -> float:
        """Bytes that a server sends in an iteration's all-reduce.

        They are those of a stage with the most MoE layers.
        """
        return self.stage_layers * workloads.gradient_bytes(self.model, self.servers, self.dp)

    def with_micro_batch(self, sequences: int | None) -> Self:
        """Return the job with micro-batches of this many sequences, if any are given."""
        micro_batch = sequences or self.training.micro_batch
        return replace(self, training=replace(self.training, micro_batch=micro_batch))

    def with_utilisation(self, utilisation: float, gpu_flops: float | None = None) -> Self:
        """Return the job on GPUs, of this peak speed if given, that reach this part of it."""
        flops = gpu_flops or self.training.gpu_flops
        return replace(
            self, training=replace(self.training, utilisation=utilisation, gpu_flops=flops)
        )
