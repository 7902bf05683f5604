"""What the ranks of the tests do. Each function runs in all ranks of a job."""

import random
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

GROUPS: dict[str, Any] = {}


def init(backend: str = "moefabric", timeout_s: float = 60.0) -> None:
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    GROUPS["gloo"] = dist.new_group(backend="gloo")


def destroy() -> None:
    GROUPS.clear()
    dist.destroy_process_group()


def _tensor(rng: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn((rows, columns), generator=rng).to(dtype)


def compare(seed: int, rounds: int, dtype_names: list[str]) -> int:
    """Exchange random tensors by both backends; return how many bytes were compared."""
    shapes, rank, size = random.Random(seed), dist.get_rank(), dist.get_world_size()
    rng, compared = torch.Generator().manual_seed(seed * 100 + rank), 0
    for _ in range(rounds):
        dtype: torch.dtype = getattr(torch, shapes.choice(dtype_names))
        columns = shapes.choice([1, 3, 64, 257])
        most = shapes.choice([0, 1, 5, 400])
        rows = [[shapes.randint(0, most) for _ in range(size)] for _ in range(size)]
        if shapes.random() < 0.3:
            rows = [[most] * size] * size
        sends, receives = rows[rank], [row[rank] for row in rows]
        source = _tensor(rng, sum(sends), columns, dtype)
        splits = (receives, sends) if rows != [[most] * size] * size else (None, None)
        results = [torch.full((sum(receives), columns), 7, dtype=dtype) for _ in range(2)]
        for result, group in zip(results, (None, GROUPS["gloo"]), strict=True):
            dist.all_to_all_single(result, source, splits[0], splits[1], group)
        assert torch.equal(results[0].view(torch.uint8), results[1].view(torch.uint8))
        compared += results[0].numel() * results[0].element_size()
    return compared
