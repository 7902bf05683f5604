"""The work object of an exchange: waits for its end, and copies received bytes to the output."""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final

import torch
import torch.distributed as dist

from moefabric.execution.torch.agent_link import AgentLink, ExchangeRequest, SharedMemory

NO_TIMEOUT: Final = timedelta(0)
OVERDUE_REPLY_S: Final = 5.0
"""Time for which a rank waits, after its time-out, for the names of missing ranks."""
ALIGNMENT: Final = 64


class ExchangeWork(dist.Work):
    """An exchange that this rank takes part in, from its request on.

    Args:
        link: The link to the agent.
        member: This rank's place in the group.
        timeout_s: How long the exchange may take.
        outputs: The value of the future.
        sends: The bytes for each member.
        receives: The room for the bytes from each member.
    """

    def __init__(
        self,
        link: AgentLink,
        request: ExchangeRequest,
        member: int,
        timeout_s: float,
        outputs: list[torch.Tensor],
        sends: Sequence[torch.Tensor],
        receives: Sequence[torch.Tensor],
    ) -> None:
        super().__init__()
        self._link, self._request, self._member = link, request, member
        self._deadline_s, self._timeout_s = time.monotonic() + timeout_s, timeout_s
        self._outputs, self._receives = outputs, receives
        self._ended = threading.Event()
        self._error = ""
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._lock = threading.Lock()
        self._boundary = -(-sum(map(len, sends)) // ALIGNMENT) * ALIGNMENT
        memory = link.memory(self._boundary + sum(map(len, receives)))
        self._memory: SharedMemory | None = memory
        shared = torch.frombuffer(memory.bytes, dtype=torch.uint8)
        for rank, (begin, block) in enumerate(_places(0, sends)):
            if rank == member:
                if len(receives[rank]) == len(block):  # else all ranks learn of it by the request
                    receives[rank].copy_(block)
            else:
                shared[begin : begin + len(block)].copy_(block)
        self._number = link.ask(request, memory, self._boundary, self._end)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end.

        Args:
            timeout: How long to wait; by default, as long as the exchange may take.

        Raises:
            DistBackendError: if the exchange failed; names the ranks that are lost or missing.
            RuntimeError: if `timeout` has passed; the exchange goes on.
        """
        if timeout > NO_TIMEOUT and not self._ended.wait(timeout.total_seconds()):
            raise RuntimeError("Operation timed out!")
        if not self._ended.wait(max(0.0, self._deadline_s - time.monotonic())):
            self._time_out()
        if self._error:
            raise dist.DistBackendError(f"moefabric: {self._error}")
        return True

    def _time_out(self) -> None:
        """Have the exchange fail at all ranks; without an answer, at least at this one."""
        self._link.overdue(self._number, self._timeout_s)
        if not self._ended.wait(OVERDUE_REPLY_S):
            self._link.end(
                self._number,
                f"exchange {self._request.number}: timed out after {self._timeout_s:g} s, "
                "and nobody answers; is `moefabric` still running?",
            )
            self._ended.wait()

    def is_completed(self) -> bool:
        """Return whether the exchange has ended."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Return whether the exchange has ended without an error."""
        return self._ended.is_set() and not self._error

    def exception(self) -> Exception | None:
        """Return the error of an exchange that failed."""
        return dist.DistBackendError(f"moefabric: {self._error}") if self._error else None

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that were received."""
        return self._outputs

    def synchronize(self) -> None:
        """Wait for the end."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future of the tensors that are received."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._ended.is_set():
                    self._settle(self._future)
            return self._future

    def _end(self, error: str) -> None:
        """Copy the received bytes, and wake the waiting threads. The link's thread calls this."""
        assert self._memory is not None
        if not error:
            try:
                self._copy_received(self._memory)
            except RuntimeError as problem:  # such as an output that was freed or resized
                error = f"can't store what was received: {problem}"
        if error:  # the agents may still write to the memory
            self._link.drop(self._memory)
        else:
            self._link.give_back(self._memory)
        self._memory, self._receives, self._error = None, (), error
        with self._lock:
            self._ended.set()
            future = self._future
        if future is not None:
            self._settle(future)

    def _copy_received(self, memory: SharedMemory) -> None:
        shared = torch.frombuffer(memory.bytes, dtype=torch.uint8)
        for member, (begin, block) in enumerate(_places(self._boundary, self._receives)):
            if member != self._member:
                block.copy_(shared[begin : begin + len(block)])

    def _settle(self, future: "torch.futures.Future[list[torch.Tensor]]") -> None:
        if self._error:
            future.set_exception(self.exception())  # type: ignore[arg-type] # PyTorch's mistake
        else:
            future.set_result(self._outputs)


def _places(begin: int, blocks: Sequence[torch.Tensor]) -> Any:
    """Yield where each block begins in shared memory, and the block."""
    return zip(accumulate(map(len, blocks), initial=begin), blocks, strict=False)
