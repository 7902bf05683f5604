"""The shape of a job: pipeline stages and data-parallel replicas, each an EP group and a region."""

from collections.abc import Sequence
from dataclasses import dataclass

from moefabric.core.topology import Region
from moefabric.workload.models.model import BYTES_BF16, Model, Training
from moefabric.workload.models.payload import PLAIN, Payloads


@dataclass(frozen=True)
class JobShape:
    """The parallelism of a job above its EP groups.

    Attributes:
        pp: Pipeline stages.
        dp: Data-parallel replicas of them.
        micro_batches: Micro-batches of an iteration.
    """

    pp: int = 1
    dp: int = 1
    micro_batches: int = 1

    @property
    def regions(self) -> int:
        """Regions of a job: one EP group for each stage of each replica."""
        return self.pp * self.dp

    @property
    def is_single_group(self) -> bool:
        """True if a job is one EP group and one micro-batch."""
        return self == JobShape()


@dataclass(frozen=True)
class Job:
    """A job and its regions: replica after replica, and stage after stage within a replica.

    Jobs side by side are independent of each other.
    """

    number: int
    shape: JobShape
    regions: tuple[Region, ...]

    def at(self, replica: int, stage: int) -> Region:
        """Return the region of one stage of one replica."""
        return self.regions[replica * self.shape.pp + stage]


def jobs(shape: JobShape, regions: Sequence[Region]) -> tuple[Job, ...]:
    """Return the jobs that fill these regions.

    Raises:
        ValueError: If the regions aren't a multiple of a job's regions.
    """
    if len(regions) % shape.regions:
        raise ValueError(f"{len(regions)} regions don't make whole jobs of {shape.regions}")
    starts = range(0, len(regions), shape.regions)
    blocks = [tuple(regions[start : start + shape.regions]) for start in starts]
    return tuple(Job(number, shape, block) for number, block in enumerate(blocks))


def stage_layers(layers: int, stages: int) -> tuple[range, ...]:
    """Return the numbers of each pipeline stage's layers.

    A stage has whole layers. If they can't be shared evenly, the first stages have one more than
    the last ones, since the last stage has the head too.

    Raises:
        ValueError: If a stage has no layer.
    """
    if layers < stages:
        raise ValueError(f"{layers} layers don't fill {stages} pipeline stages")
    depth, deeper = divmod(layers, stages)
    starts = [stage * depth + min(stage, deeper) for stage in range(stages + 1)]
    return tuple(map(range, starts, starts[1:]))


@dataclass(frozen=True)
class StageContents:
    """Layers of a pipeline stage: MoE layers, layers without experts, and maybe the head."""

    moe_layers: int
    dense_layers: int
    head: bool


def stage_contents(model: Model, stages: int) -> tuple[StageContents, ...]:
    """Return the contents of each pipeline stage: layers in order, and the head at the end."""
    numbers = stage_layers(model.dense_layers + model.layers, stages)
    dense = [sum(number < model.dense_layers for number in stage) for stage in numbers]
    moe = [len(layers) - count for layers, count in zip(numbers, dense, strict=True)]
    heads = [stage == stages - 1 for stage in range(stages)]
    return tuple(map(StageContents, moe, dense, heads))


def activation_bytes(model: Model, training: Training, servers: int) -> float:
    """Return the bytes that a server sends the next pipeline stage for one micro-batch.

    These are the activations of its ranks. The backward pass returns as many bytes of gradients.

    Args:
        training: How the model is trained.
        servers: Servers of an EP group.
    """
    return training.ep / servers * training.rank_tokens * model.token_bytes


def gradient_bytes(model: Model, servers: int, dp: int, payloads: Payloads = PLAIN) -> float:
    """Return the bytes that a server sends for one MoE layer in an iteration's all-reduce.

    The all-reduce is hierarchical: a ring of servers (paper section 5.3). Gradients of experts are
    reduced over the replicas, gradients of attention, router and shared expert over all servers of
    all replicas.

    Args:
        servers: Servers of an EP group.
        dp: Data-parallel replicas.
        payloads: The form of tokens, which may have matrices of its own on every rank.
    """
    expert = model.expert_weights * model.experts / servers
    replicated = model.replicated_weights + payloads.source_weights(model.hidden)
    return BYTES_BF16 * (expert * _ring_share(dp) + replicated * _ring_share(dp * servers))


def outer_gradient_bytes(model: Model, servers: int, dp: int) -> dict[int, float]:
    """Return the bytes that a server sends in the all-reduce of weights outside of MoE layers.

    Those of the head are summed with the last MoE layer, those of the embeddings and of layers
    without experts with the first one.

    Args:
        model: The model.
        servers: Servers of an EP group.
        dp: Data-parallel replicas.

    Returns:
        The bytes by the number of that layer.
    """
    sizes, last = dict.fromkeys((0, model.layers - 1), 0.0), model.layers - 1
    for layer, weights in zip((0, last), model.outer_weights, strict=True):
        sizes[layer] += BYTES_BF16 * weights * _ring_share(dp * servers)
    return sizes


def _ring_share(members: int) -> float:
    """Return the bytes that each member of a ring all-reduce sends, relative to its own bytes."""
    return 2 * (members - 1) / members
