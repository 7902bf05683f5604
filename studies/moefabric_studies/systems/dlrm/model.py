"""A small DLRM in PyTorch: embedding tables, two perceptrons, and dot products of all pairs.

Follows "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (arXiv
1906.00091): looked-up vectors and the vector of the dense numbers interact by dot products.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from moefabric_studies.codecs.error_bounded import Floats
from moefabric_studies.systems.dlrm.clicks import DENSE

ArrayMap = Callable[[Floats], Floats]
"""Function from an array to another one."""
_RATE: Final = 0.04
"""Learning rate of Adagrad."""


class Tables(nn.Module):
    """Embedding tables in one matrix, whose gradients are sparse.

    Args:
        sizes: Categories of each table.
        dimension: Numbers of a vector.
        seed: Seed of the first values; each table has its own stream.
        owned: The tables to keep, by their place in `sizes`.
    """

    starts: Tensor

    def __init__(
        self, sizes: Sequence[int], dimension: int, seed: int, owned: Sequence[int]
    ) -> None:
        super().__init__()
        vectors = []
        for table in owned:
            random = torch.Generator().manual_seed(1000 * seed + table)
            values = torch.rand(sizes[table], dimension, generator=random)
            vectors.append((2 * values - 1) * sizes[table] ** -0.5)
        self.weight = nn.Parameter(torch.cat(vectors))
        starts = torch.tensor([0, *(sizes[table] for table in owned[:-1])]).cumsum(0)
        self.register_buffer("starts", starts[:, None], persistent=False)

    def forward(self, categories: Tensor) -> Tensor:
        """Return vectors [table, sample, dimension] for categories [table, sample]."""
        return functional.embedding(categories + self.starts, self.weight, sparse=True)


class Perceptrons(nn.Module):
    """Layers of a DLRM without its tables; every rank has a replica.

    Args:
        dimension: Numbers of a vector.
        width: Width of the hidden layers.
        seed: Seed of the first values.
    """

    def __init__(self, tables: int, dimension: int, width: int, seed: int) -> None:
        super().__init__()
        pairs = (tables + 1) * tables // 2
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.bottom = nn.Sequential(
                nn.Linear(DENSE, width), nn.ReLU(), nn.Linear(width, dimension), nn.ReLU()
            )
            self.top = nn.Sequential(
                nn.Linear(dimension + pairs, width), nn.ReLU(), nn.Linear(width, 1)
            )
        self._rows, self._columns = torch.tril_indices(tables + 1, tables + 1, offset=-1)

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Return logits [sample] for dense numbers and vectors [table, sample, dimension]."""
        bottom = self.bottom(dense)
        features = torch.cat([bottom[None], vectors]).transpose(0, 1)
        products = (features @ features.transpose(1, 2))[:, self._rows, self._columns]
        logits: Tensor = self.top(torch.cat([bottom, products], dim=1))[:, 0]
        return logits


def optimizer_of(*modules: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of some parts of the model."""
    # PyTorch warns unless a program says whether it wants these checks, which are slow.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call] # PyTorch's
    return torch.optim.Adagrad([p for module in modules for p in module.parameters()], _RATE)


class _Mapped(torch.autograd.Function):
    """Vectors forward, gradients backward, each by a function of its own."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, there: ArrayMap, back: ArrayMap) -> Tensor:
        ctx.back = back
        return torch.from_numpy(there(vectors.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return torch.from_numpy(ctx.back(gradients[0].contiguous().numpy())), None, None


def mapped(vectors: Tensor, there: ArrayMap, back: ArrayMap) -> Tensor:
    """Return what `there` makes of a tensor; `back` maps its gradients."""
    result: Tensor = _Mapped.apply(vectors, there, back)  # type: ignore[no-untyped-call] # PyTorch's
    return result
