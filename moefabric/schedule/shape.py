"""The shape of a job: its pipeline stages and data-parallel replicas, each of which is an EP group of its own, and a region."""

from collections.abc import Sequence
from dataclasses import dataclass

from moefabric.model import Model, Training
from moefabric.topology import Region

_BYTES_BF16 = 2


@dataclass(frozen=True)
class Shape:
    """`pp` pipeline stages, `dp` replicas of them, and micro-batches an iteration."""

    pp: int = 1
    dp: int = 1
    micro_batches: int = 1

    @property
    def regions(self) -> int:
        """Regions of a job: one EP group a stage and replica."""
        return self.pp * self.dp

    @property
    def plain(self) -> bool:
        """Whether a job is one EP group and one micro-batch."""
        return self == Shape()


@dataclass(frozen=True)
class Job:
    """One job on its regions, replica after replica, and in each stage after stage. Jobs side by side have nothing to do with each other."""

    number: int
    shape: Shape
    regions: tuple[Region, ...]

    def at(self, replica: int, stage: int) -> Region:
        """The region of one stage of one replica."""
        return self.regions[replica * self.shape.pp + stage]


def jobs(shape: Shape, regions: Sequence[Region]) -> tuple[Job, ...]:
    """All jobs that fill these regions. ValueError where some regions are left."""
    if len(regions) % shape.regions:
        raise ValueError(f"{len(regions)} regions don't make whole jobs of {shape.regions}")
    blocks = [regions[at : at + shape.regions] for at in range(0, len(regions), shape.regions)]
    return tuple(Job(number, shape, tuple(block)) for number, block in enumerate(blocks))


def activation_bytes(model: Model, training: Training, servers: int) -> float:
    """Bytes that a server hands to the next pipeline stage for one micro-batch: its ranks' activations. Their gradients come back, as many."""
    return training.ep / servers * training.rank_tokens * model.token_bytes


def gradient_bytes(model: Model, servers: int, dp: int) -> float:
    """Bytes that a server sends for one MoE layer in the all-reduce of an iteration: hierarchical, a ring of servers (paper section 5.3).

    Its experts are shared with the `dp` replicas, attention with every one of the `servers` of each of them.
    """
    expert = 3 * model.hidden * model.ffn * model.experts / servers
    attention = 2 * model.hidden * (model.hidden + model.kv_hidden)
    return _BYTES_BF16 * (expert * _ring(dp) + attention * _ring(dp * servers))


def _ring(members: int) -> float:
    """How many times its own bytes each member of a ring all-reduce sends."""
    return 2 * (members - 1) / members
