"""Training of a small DLRM in one process, with the errors of coded vectors and gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from moefabric_studies.codecs.error_bounded import Floats, rounded
from moefabric_studies.systems.dlrm.clicks import ClickBatch, Clicks
from moefabric_studies.systems.dlrm.lesson import Bounding, Lesson, Trained
from moefabric_studies.systems.dlrm.model import Perceptrons, Tables, mapped, optimizer_of

_HELD_OUT: Final = 1 << 20
"""Number of the first batch that isn't trained on."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep PyTorch from splitting small operations: its threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def trained(lesson: Lesson, bounding: Bounding, seed: int) -> Trained:
    """Train a model and judge it by held-out samples."""
    clicks = Clicks(lesson.most, seed)
    tables = Tables(clicks.sizes, lesson.dimension, seed, range(len(clicks.sizes)))
    perceptrons = Perceptrons(len(clicks.sizes), lesson.dimension, lesson.width, seed)
    optimizer = optimizer_of(tables, perceptrons)
    vectors = torch.empty(0)
    for iteration in range(lesson.iterations):
        batch = clicks.batch(iteration, lesson.batch)
        vectors = tables(torch.from_numpy(batch.categories))
        bounds = bounding.of(iteration, lesson.iterations)
        arrived = vectors if bounds is None else _arrived(vectors, bounds, lesson.ranks)
        optimizer.zero_grad()
        loss = click_loss(perceptrons, batch, arrived)
        loss.backward()  # type: ignore[no-untyped-call] # PyTorch's
        optimizer.step()
    held_out = [clicks.batch(_HELD_OUT + n, lesson.batch) for n in range(lesson.held_out)]
    return _judged(tables, perceptrons, held_out, vectors.detach().numpy())


def _arrived(vectors: Tensor, bounds: NDArray[np.float64], ranks: int) -> Tensor:
    """Return what all ranks receive: each table's slice for a rank is a block."""

    def rounding(blocks: Floats) -> Floats:
        slices = blocks.reshape(len(bounds), ranks, -1, blocks.shape[-1])
        return rounded(slices, bounds[:, None, None, None]).reshape(blocks.shape)

    return mapped(vectors, rounding, rounding)


def click_loss(perceptrons: Perceptrons, batch: ClickBatch, vectors: Tensor) -> Tensor:
    """Return the mean log loss of a batch."""
    logits = perceptrons(torch.from_numpy(batch.dense), vectors)
    return functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.clicks))


@torch.no_grad()
def _judged(
    tables: Tables, perceptrons: Perceptrons, batches: list[ClickBatch], vectors: Floats
) -> Trained:
    right, losses, no_clicks = [], [], []
    for batch in batches:
        looked_up = tables(torch.from_numpy(batch.categories))
        losses.append(click_loss(perceptrons, batch, looked_up).item())
        predicted = perceptrons(torch.from_numpy(batch.dense), looked_up).numpy() > 0
        right.append(float((predicted == batch.clicks).mean()))
        no_clicks.append(float(1 - batch.clicks.mean()))
    accuracy, log_loss, share = (float(np.mean(v)) for v in (right, losses, no_clicks))
    return Trained(accuracy, log_loss, share, vectors)
