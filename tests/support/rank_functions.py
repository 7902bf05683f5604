"""What the ranks of the tests do. Each function runs in all ranks of a job."""

import random
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel

GROUPS: dict[str, Any] = {}


def init(backend: str = "moefabric", timeout_s: float = 60.0) -> None:
    """Join the job; `gloo` is a second group of all ranks to compare with."""
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    GROUPS["gloo"] = dist.new_group(backend="gloo")


def destroy() -> None:
    GROUPS.clear()
    dist.destroy_process_group()


def add_groups(ranks: list[int], timeout_s: float = 60.0, name: str = "subgroup") -> None:
    """Make a group of some ranks of the job's backend, and one of gloo."""
    timeout = timedelta(seconds=timeout_s)
    GROUPS[name] = dist.new_group(ranks, timeout=timeout)
    GROUPS[f"{name} of gloo"] = dist.new_group(ranks, backend="gloo")


def _tensor(rng: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn((rows, columns), generator=rng).to(dtype)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.uint8)


def compare(
    seed: int, rounds: int, dtype_names: list[str], name: str = "", *, lists: bool = True
) -> int:
    """Exchange random tensors by two backends; return how many bytes were equal."""
    group, other = (GROUPS.get(name), GROUPS[f"{name} of gloo" if name else "gloo"])
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        return 0
    shapes, rng = random.Random(seed), torch.Generator().manual_seed(seed * 100 + rank)
    compared = 0
    for _ in range(rounds):
        dtype: torch.dtype = getattr(torch, shapes.choice(dtype_names))
        columns, most = shapes.choice([1, 3, 64, 257]), shapes.choice([0, 1, 5, 400])
        rows = [[shapes.randint(0, most) for _ in range(size)] for _ in range(size)]
        is_even = shapes.random() < 0.3
        if is_even:
            rows = [[most] * size] * size
        sends, receives = rows[rank], [row[rank] for row in rows]
        source = _tensor(rng, sum(sends), columns, dtype)
        results = [torch.full((sum(receives), columns), 7, dtype=dtype) for _ in range(2)]
        if is_even:
            dist.all_to_all_single(results[0], source, group=group)
        elif shapes.random() < 0.5 or not lists:
            dist.all_to_all_single(results[0], source, receives, sends, group)
        else:  # gloo's lists need equal sizes
            into = list(results[0].split_with_sizes(receives))
            dist.all_to_all(into, list(source.split_with_sizes(sends)), group)
        dist.all_to_all_single(results[1], source, receives, sends, other)
        assert torch.equal(_bits(results[0]), _bits(results[1]))
        compared += _bits(results[0]).numel()
    return compared


def compare_without_lists(seed: int, rounds: int, dtype_names: list[str]) -> int:
    """Compare where gloo carries out both sides."""
    return compare(seed, rounds, dtype_names, lists=False)


def several_outstanding() -> list[bool]:
    """Start exchanges without waiting, and wait in another order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    works, results = [], []
    for number in range(5):
        source = torch.full((size, 1000), float(10 * rank + number))
        results.append(torch.empty_like(source))
        works.append(dist.all_to_all_single(results[-1], source, async_op=True))
    values = works[0].get_future().then(lambda future: float(future.value()[0].sum()))
    for work in reversed(works):
        assert work.wait(timedelta(seconds=30))
        assert work.is_completed()
        assert work.is_success()
    expected = [torch.tensor([[10.0 * peer + n] * 1000 for peer in range(size)]) for n in range(5)]
    assert values.wait() == float(expected[0].sum())
    return [torch.equal(*pair) for pair in zip(results, expected, strict=True)]


def gradients() -> int:
    """Differentiate through all-to-alls by both backends; return how many gradients were equal."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sends, receives = [peer + 1 for peer in range(size)], [rank + 1] * size
    rng = torch.Generator().manual_seed(rank)
    source, weight = torch.randn(sum(sends), 8, generator=rng), torch.randn(8, generator=rng)
    found: list[list[torch.Tensor]] = []
    default: Any = dist.group.WORLD
    for group in (default, GROUPS["gloo"]):
        leaf = source.clone().requires_grad_()
        place = torch.empty(sum(receives), 8)
        came = all_to_all_single(place, leaf, receives, sends, group=group)  # type: ignore[no-untyped-call]
        (first,) = torch.autograd.grad((came * weight).sin().sum(), leaf)
        came = functional.all_to_all_single_autograd(leaf, receives, sends, group)
        (second,) = torch.autograd.grad((came * weight).cos().sum(), leaf)
        found.append([first, second])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    return len(found[0])


def train_step() -> None:
    """Take a step of data-parallel training by both backends; the weights are equal."""
    weights = []
    for group in (dist.group.WORLD, GROUPS["gloo"]):
        torch.manual_seed(1)
        model = DistributedDataParallel(torch.nn.Linear(16, 4), process_group=group)
        torch.manual_seed(dist.get_rank())
        loss = model(torch.randn(8, 16)).square().mean()
        torch.autograd.backward(loss)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        weights.append(model.module.weight)
    assert torch.equal(_bits(weights[0]), _bits(weights[1]))


def other_collectives() -> None:
    """Call what gloo does under this backend."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    assert total.item() == sum(range(size))
    gathered = torch.empty(size)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))
    assert gathered.tolist() == list(range(size))
    part = torch.empty(1)
    dist.reduce_scatter_tensor(part, torch.arange(float(size)))
    assert part.item() == rank * size
    word = torch.tensor([float(rank)])
    dist.broadcast(word, 1)
    assert word.item() == 1
    dist.scatter(word, [torch.tensor([5.0 + n]) for n in range(size)] if rank == 0 else None)
    assert word.item() == 5 + rank
    pieces = [torch.empty(1) for _ in range(size)] if rank == 0 else None
    dist.gather(word, pieces)
    if pieces is not None:
        assert [piece.item() for piece in pieces] == [5 + n for n in range(size)]
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": n} for n in range(size)]
    if rank == 0:
        dist.send(torch.tensor([3.0]), 1)
    elif rank == 1:
        dist.recv(word, 0)
        assert word.item() == 3
    dist.barrier()


def many_collectives(count: int) -> None:
    """Collectives whose tensors gloo frees while the next one begins."""
    for number in range(count):
        known: list[list[int] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(known, [number] * 50)
        assert known == [[number] * 50] * dist.get_world_size()


def announced_tokens(experts: int, columns: int) -> list[int]:
    """Exchange token counts and then tokens as mixture-of-experts programs do; return counts."""
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = torch.tensor([(3 * rank + 5 * expert) % 7 for expert in range(experts)])
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sends = counts.view(size, -1).sum(1).tolist()
    receives = arriving.view(size, -1).sum(1).tolist()
    tokens = torch.randn(sum(sends), columns)
    came = torch.empty(sum(receives), columns)
    dist.all_to_all_single(came, tokens, receives, sends)
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, came, sends, receives)
    assert torch.equal(back, tokens)
    return [int(count) for count in counts]


def exchange(rows: int = 2, name: str = "") -> None:
    """Exchange some rows with every rank of a group."""
    size = dist.get_world_size(GROUPS.get(name))
    source = torch.ones(rows * size, 3)
    dist.all_to_all_single(torch.empty_like(source), source, group=GROUPS.get(name))


def exchange_unless(absent: int, name: str) -> float:
    """Have all ranks but one call an exchange; return how long it took to fail."""
    began = time.monotonic()
    if dist.get_rank() == absent:
        return 0.0
    exchange(2, name)
    return time.monotonic() - began


def disagree(receiver: int) -> None:
    """Have a rank expect more rows from rank 0 than it sends."""
    rank, size = dist.get_rank(), dist.get_world_size()
    receives = [2] * size
    if rank == receiver:
        receives[0] = 3
    dist.all_to_all_single(torch.empty(sum(receives), 1), torch.ones(2 * size, 1), receives)


def wrong_arguments(kind: str, name: str = "") -> None:
    """Call an exchange with wrong arguments."""
    group = GROUPS.get(name)
    size = dist.get_world_size(group)
    flat, square = torch.ones(size), torch.ones(size, size)
    output = torch.empty(size)
    if kind == "input that is not contiguous":
        dist.all_to_all_single(torch.empty(size, size), square.t(), group=group)
    elif kind == "wrong sum of splits":
        dist.all_to_all_single(output, flat, [2] * size, [2] * size, group=group)
    elif kind == "wrong number of splits":
        dist.all_to_all_single(output, flat, [size], [size], group=group)
    elif kind == "wrong number of tensors":
        dist.all_to_all([output], [flat], group=group)
    elif kind == "different types":
        dist.all_to_all_single(output.double(), flat, group=group)


def timed_exchanges(size_bytes: int, rounds: int) -> tuple[list[float], list[float]]:
    """Exchange some bytes by both backends in turn; return the seconds of each exchange."""
    size = dist.get_world_size()
    source = torch.randn(size_bytes // 4 // size * size)
    result = torch.empty_like(source)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for taken, group in zip(times, (None, GROUPS["gloo"]), strict=True):
            dist.barrier(GROUPS["gloo"])
            began = time.monotonic()
            dist.all_to_all_single(result, source, group=group)
            if number >= 2:  # the first ones make memory and connections
                taken.append(time.monotonic() - began)
    return times
