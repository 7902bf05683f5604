"""The process group: gloo for all collectives but all-to-alls, which agents carry out."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from moefabric.execution.torch.agent_link import AgentLink, ExchangeRequest, close_link, open_link
from moefabric.execution.torch.exchange_work import ExchangeWork

CPU: Final = torch.device("cpu")
MOST_EXPERTS: Final = 1 << 16
"""Experts of a layer whose token counts are taken from an earlier exchange."""


def _of_gloo(name: str) -> Callable[..., Any]:
    """Return the method of a process group that calls gloo's method of this name.

    The base class would call gloo, too. But for the methods that a subclass may override, it holds
    the interpreter's lock meanwhile (PyTorch 2.13, PyProcessGroup.hpp, `WORK_OVERRIDE`). A thread
    of gloo that frees the tensors of an earlier collective then waits for this lock, and the caller
    for that thread.
    """

    def collective(self: "AgentProcessGroup", *arguments: Any, **options: Any) -> Any:
        return getattr(self._gloo, name)(*arguments, **options)

    return collective


class AgentProcessGroup(dist.ProcessGroup):
    """A group of ranks.

    Gloo has all collectives but all-to-alls. It is registered as the backend of the base class.

    Args:
        options: What PyTorch hands over: store, rank, size, time-out, name and global ranks.

    Raises:
        RuntimeError: if the agent that the environment names doesn't answer.
    """

    def __init__(self, options: Any) -> None:
        rank, size = options.group_rank, options.group_size
        super().__init__(rank, size)  # type: ignore[call-arg] # the constructor of subclasses
        self._gloo = dist.ProcessGroupGloo(options.store, rank, size, timeout=options.timeout)
        self._gloo._set_sequence_number_for_group()  # noqa: SLF001 - as PyTorch does for gloo
        self._register_backend(CPU, dist.ProcessGroup.BackendType.GLOO, self._gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
        self._name = str(options.group_id)
        self._exchanges = 0
        self._counts = TokenCounts(size)
        self._link: AgentLink | None = open_link(self._ranks[rank]) if size > 1 else None

    _gloo_all_to_all = _of_gloo("alltoall")
    _gloo_all_to_all_single = _of_gloo("alltoall_base")
    allgather = _of_gloo("allgather")
    allreduce = _of_gloo("allreduce")
    allreduce_coalesced = _of_gloo("allreduce_coalesced")
    barrier = _of_gloo("barrier")
    broadcast = _of_gloo("broadcast")
    recv = _of_gloo("recv")
    reduce_scatter = _of_gloo("reduce_scatter")
    send = _of_gloo("send")

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 - PyTorch's name
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Exchange blocks of a tensor's first dimension; empty split sizes mean equal ones."""
        opts = dist.AllToAllOptions() if opts is None else opts
        if self._link is None or not input.is_floating_point():
            if not input.is_floating_point():
                self._counts.announce(input, input_split_sizes)
            return self._gloo_all_to_all_single(
                output, input, list(output_split_sizes), list(input_split_sizes), opts
            )
        sends = _blocks(input, input_split_sizes, self.size())
        receives = _blocks(output, output_split_sizes, self.size())
        return self._exchange(self._link, [output], receives, sends, opts)

    def alltoall(
        self,
        output_tensors: list[torch.Tensor],
        input_tensors: list[torch.Tensor],
        opts: Any = None,
    ) -> Any:
        """Exchange a tensor with every rank."""
        opts = dist.AllToAllOptions() if opts is None else opts
        counts = {len(output_tensors), len(input_tensors)}
        floating = all(tensor.is_floating_point() for tensor in input_tensors)
        if self._link is None or counts != {self.size()} or not floating:
            return self._gloo_all_to_all(output_tensors, input_tensors, opts)
        for tensor in (*output_tensors, *input_tensors):
            _check_contiguous(tensor)
        return self._exchange(self._link, output_tensors, output_tensors, input_tensors, opts)

    def shutdown(self) -> None:
        """Leave the agent, if this is the last group that uses it."""
        super().shutdown()
        if self._link is not None:
            self._link = None
            close_link()

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the name by which PyTorch shows this backend."""
        return "moefabric"

    def _exchange(
        self,
        link: AgentLink,
        outputs: list[torch.Tensor],
        receives: Sequence[torch.Tensor],
        sends: Sequence[torch.Tensor],
        opts: Any,
    ) -> ExchangeWork:
        dtypes = {tensor.dtype for tensor in (*receives, *sends)}
        if len(dtypes) > 1:
            raise ValueError(f"Invalid usage of tensors with different dtypes: {dtypes}")
        send_bytes, receive_bytes = (
            [tensor.detach().reshape(-1).view(torch.uint8) for tensor in blocks]
            for blocks in (sends, receives)
        )
        sizes = [len(block) for block in send_bytes]
        request = ExchangeRequest(
            self._name,
            self._ranks,
            self._exchanges,
            sizes,
            [len(block) for block in receive_bytes],
            str(sends[0].dtype).removeprefix("torch."),
            self._counts.take(sizes),
        )
        timeout = opts.timeout.total_seconds()
        if timeout <= 0:  # unset
            timeout = self._gloo.options._timeout.total_seconds()  # noqa: SLF001 - no other getter
        work = ExchangeWork(link, request, self.rank(), timeout, outputs, send_bytes, receive_bytes)
        self._exchanges += 1
        return work


def _check_contiguous(tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")


def _blocks(tensor: torch.Tensor, sizes: Sequence[int], count: int) -> list[torch.Tensor]:
    """Return the blocks of a tensor's first dimension; the errors are those of gloo."""
    _check_contiguous(tensor)
    rows = tensor.size(0) if tensor.dim() else 1
    if not sizes:
        if rows % count:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        sizes = [rows // count] * count
    elif len(sizes) != count:
        raise RuntimeError("Number of tensor splits not equal to group size")
    elif sum(sizes) != rows or min(sizes) < 0:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    return list(tensor.detach().split_with_sizes(list(sizes)))


class TokenCounts:
    """The last integer all-to-all of a group, in case it announces the next exchange.

    Args:
        size: Ranks of the group.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts: tuple[int, ...] = ()

    def announce(self, counts: torch.Tensor, split_sizes: Sequence[int]) -> None:
        """Keep the counts that a rank sends in an integer all-to-all.

        Args:
            counts: Equally many integers for each rank, such as one for each of its experts.
            split_sizes: Rows for each rank; empty for equally many.
        """
        self._counts = ()
        equal = len(set(split_sizes)) <= 1
        if equal and 0 < counts.numel() <= MOST_EXPERTS and counts.numel() % self._size == 0:
            self._counts = tuple(int(count) for count in counts.detach().reshape(-1).tolist())

    def take(self, send_bytes: Sequence[int]) -> tuple[int, ...] | None:
        """Return the counts if they announced an exchange, else None; forget them."""
        counts, self._counts = self._counts, ()
        return counts if announces(counts, send_bytes) else None


def announces(counts: Sequence[int], send_bytes: Sequence[int]) -> bool:
    """Return whether the counts for each rank, times the bytes of a token, are an exchange's sizes.

    Args:
        counts: Tokens for each expert; those of a rank follow each other.
        send_bytes: Bytes for each rank.
    """
    if not counts or min(counts) < 0:
        return False
    per_rank = len(counts) // len(send_bytes)
    tokens = [
        sum(counts[rank * per_rank : (rank + 1) * per_rank]) for rank in range(len(send_bytes))
    ]
    total_tokens, total_bytes = sum(tokens), sum(send_bytes)
    if not total_tokens:
        return not total_bytes
    return total_bytes > 0 and all(
        size * total_tokens == total_bytes * count
        for size, count in zip(send_bytes, tokens, strict=True)
    )
