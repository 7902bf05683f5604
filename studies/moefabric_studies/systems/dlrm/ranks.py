"""A DLRM whose tables are spread over the ranks of a job, and the commands of all ranks."""

from collections.abc import Callable, Mapping
from itertools import zip_longest
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from moefabric_studies.codecs.block_codecs import HYBRID, HYBRID_STREAMS, block_codec
from moefabric_studies.codecs.error_bounded import Floats, error_bounds
from moefabric_studies.systems.dlrm.accuracy import click_loss
from moefabric_studies.systems.dlrm.clicks import ClickBatch, Clicks, table_bounds
from moefabric_studies.systems.dlrm.exchange import EmbeddingExchange, owned_tables
from moefabric_studies.systems.dlrm.lesson import Lesson
from moefabric_studies.systems.dlrm.model import Perceptrons, Tables, mapped, optimizer_of

_BATCHES = 4
"""Different batches, which are drawn before anything is timed."""


class RankModel:
    """This rank's tables and its replica of the perceptrons."""

    def __init__(self, lesson: Lesson) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        clicks = Clicks(lesson.most, seed=0)
        self.owned = owned_tables(rank, ranks, len(clicks.sizes))
        self.tables = Tables(clicks.sizes, lesson.dimension, 0, self.owned)
        self.perceptrons = Perceptrons(len(clicks.sizes), lesson.dimension, lesson.width, 0)
        self.optimizer = optimizer_of(self.tables, self.perceptrons)
        batches = [clicks.batch(number, lesson.batch) for number in range(_BATCHES)]
        samples = lesson.batch // ranks
        here = slice(rank * samples, (rank + 1) * samples)
        self.categories = [torch.from_numpy(b.categories[self.owned]) for b in batches]
        self.samples = [
            ClickBatch(b.dense[here], b.categories[:, here], b.clicks[here]) for b in batches
        ]
        self._steps = 0

    def vectors(self) -> Floats:
        """Return the vectors of this rank's tables for the first batch."""
        vectors: Floats = self.tables(self.categories[0]).detach().numpy()
        return vectors

    def step(self, exchange: EmbeddingExchange) -> float:
        """Train with a batch, and return the mean loss of all ranks."""
        number = self._steps % _BATCHES
        self._steps += 1
        vectors = self.tables(self.categories[number])
        arrived = mapped(vectors, exchange.vectors, exchange.gradients)
        loss = click_loss(self.perceptrons, self.samples[number], arrived)
        self.optimizer.zero_grad()
        (loss / dist.get_world_size()).backward()  # type: ignore[no-untyped-call] # PyTorch's
        shared = [p.grad for p in self.perceptrons.parameters() if p.grad is not None]
        sums = torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in shared)])
        dist.all_reduce(sums)
        sizes = [gradient.numel() for gradient in shared]
        for gradient, total in zip(shared, sums[1:].split_with_sizes(sizes), strict=True):
            gradient.copy_(total.view_as(gradient))
        self.optimizer.step()
        return sums[0].item() / dist.get_world_size()


def exchange_of(model: RankModel, codec: str) -> EmbeddingExchange:
    """Return the all-to-alls by a codec with the tables' bounds; `hybrid` has a stream a table."""
    bounds = table_bounds()
    names = streams_of(model) if codec == HYBRID else [codec] * len(bounds)
    return EmbeddingExchange([block_codec(*pair) for pair in zip(names, bounds, strict=True)])


def streams_of(model: RankModel) -> list[str]:
    """Return the stream of each table that is shorter for a slice of its present vectors."""
    slices = model.vectors()[:, : model.samples[0].clicks.size]
    bounds = table_bounds()[model.owned]
    shortest = [
        min(HYBRID_STREAMS, key=lambda name: len(block_codec(name, bound).encode(block.copy())))
        for block, bound in zip(slices, bounds, strict=True)
    ]
    chosen: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(chosen, shortest)
    dealt = zip_longest(*chosen)  # tables are dealt out in turn
    return [name for turn in dealt for name in turn if name is not None]


def largest(value: float) -> float:
    """Return the largest value of all ranks."""
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.item()


def seconds(action: Callable[[], object]) -> float:
    """Return how long an action takes that all ranks begin together, until the last one ends."""
    dist.barrier()
    began = perf_counter()
    action()
    return largest(perf_counter() - began)


def code(model: RankModel, codec: str, repeat: int) -> Mapping[str, Any]:
    """Encode and decode without a network, all ranks at once; times are those of the last rank."""
    exchange, vectors = exchange_of(model, codec), model.vectors()
    blocks = exchange.outgoing(vectors)
    messages = exchange.encode(blocks)

    arrived = exchange.transfer(messages)
    encode_s = [seconds(lambda: exchange.encode(blocks)) for _ in range(repeat)]
    decode_s = [
        seconds(lambda: exchange.decode_all(arrived, exchange.owned)) for _ in range(repeat)
    ]
    plain = vectors.nbytes * (dist.get_world_size() - 1) / dist.get_world_size()
    totals = torch.tensor([plain, float(sum(map(len, messages)))], dtype=torch.float64)
    dist.all_reduce(totals)
    ratio = (totals[0] / totals[1]).item()
    return {"bytes": largest(plain), "encode_s": encode_s, "decode_s": decode_s, "ratio": ratio}


def exchange(model: RankModel, codec: str, repeat: int) -> Mapping[str, Any]:
    """Time all-to-alls of vectors with coding, from the first byte encoded to the last decoded."""
    exchange, vectors = exchange_of(model, codec), model.vectors()
    return {"seconds": [seconds(lambda: exchange.vectors(vectors)) for _ in range(repeat)]}


def check(model: RankModel, codec: str, repeat: int) -> Mapping[str, Any]:
    """Compare received with sent tensors, forward and backward, and train between checks."""
    coded, plain = exchange_of(model, codec), exchange_of(model, "fp32")
    bounds, worst = table_bounds()[:, None, None], []
    for _ in range(repeat):
        vectors = model.vectors()
        there = plain.vectors(vectors)
        forward = largest_excess(there, coded.vectors(vectors), bounds)
        back, arrived = (by_source(one.gradients(there)) for one in (plain, coded))
        backward = largest_excess(back, arrived, bounds[model.owned][:, None])
        worst.append(largest(max(forward, backward)))
        model.step(coded)
    return {"worst": worst}


def by_source(gradients: Floats) -> Floats:
    """Return gradients [table, sample, dimension] as [table, rank, sample of it, dimension]."""
    tables, _, dimension = gradients.shape
    return gradients.reshape(tables, dist.get_world_size(), -1, dimension)


def largest_excess(sent: Floats, arrived: Floats, bounds: NDArray[np.float64]) -> float:
    """Return the largest error of numbers, relative to the bound of their block."""
    allowed = np.maximum(error_bounds(sent, bounds), np.finfo(np.float64).tiny)
    return float((np.abs(arrived.astype(np.float64) - sent) / allowed).max())


def train(model: RankModel, codec: str, repeat: int, gap_s: float = 0.0) -> Mapping[str, Any]:
    """Train, and time each iteration and the all-to-alls in it.

    Args:
        codec: Codec of vectors and gradients.
        repeat: Iterations.
        gap_s: Seconds in each iteration in which this rank computes nothing and sends nothing.
    """
    exchange, losses = exchange_of(model, codec), list[float]()

    def iteration() -> None:
        losses.append(model.step(exchange))
        sleep(gap_s)

    times, exchanged = [], []
    for _ in range(repeat):
        exchange.seconds = 0.0
        times.append(seconds(iteration))
        exchanged.append(largest(exchange.seconds))
    return {"seconds": times, "exchange_s": exchanged, "losses": losses}


ACTIONS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    "code": code,
    "exchange": exchange,
    "check": check,
    "train": train,
}
