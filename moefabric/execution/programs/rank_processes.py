"""Processes of the ranks of a job.

They are started on their servers, watched, and ended together. A thread reads what the ranks print
and waits for their ends. When a rank fails, it ends the others: SIGTERM first, SIGKILL after a
grace period. A guard kills what is left of the job when its ranks have ended, or when the process
that started them has, by SIGKILL for example.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Final, Literal, get_args
from uuid import uuid4

from moefabric.core.closing import Closing
from moefabric.core.errors import FabricError, RankFailedError
from moefabric.emulator.linux.marked_processes import ProcessGuard
from moefabric.execution.programs.rank_jobs import Rank, RankJob
from moefabric.runtime.environment import passed_environment

JOB_VARIABLE: Final = "MOEFABRIC_JOB"
"""Environment variable with the name of the job, set in every process of the job."""
GRACE_S: Final = 5.0
"""Time between SIGTERM and SIGKILL."""
_LAST_LINES: Final = 20
_READ_BYTES: Final = 1 << 16
_MAX_LINE_BYTES: Final = 1 << 20
Stream = Literal["stdout", "stderr"]


def print_line(_rank: Rank, stream: str, line: str) -> None:
    """Print a line of a rank on the same stream."""
    print(line, file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)


def print_tagged_line(rank: Rank, stream: str, line: str) -> None:
    """Print a line of a rank behind the rank's number and server."""
    print_line(rank, stream, f"[{rank.number} {rank.server}] {line}")


LineCallback = Callable[[Rank, Stream, str], None]
"""Called with each line that a rank prints, without its end, in the thread that reads them."""


@dataclass
class _Output:
    """Output of a rank on one stream."""

    rank: Rank
    stream: Stream
    pipe: IO[bytes]
    pending: bytes = b""
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    def lines(self, part: bytes) -> list[str]:
        """Return the lines that a part of the output completes; an empty part is the end."""
        *complete, self.pending = (self.pending + part).split(b"\n")
        if self.pending and (not part or len(self.pending) > _MAX_LINE_BYTES):
            complete, self.pending = [*complete, self.pending], b""
        texts = [line.decode(errors="replace").removesuffix("\r") for line in complete]
        self.last.extend(texts)
        return texts


class RankProcesses(Closing):
    """The running ranks of a job. Leaving the `with` ends those that still run."""

    def __init__(
        self,
        job: RankJob,
        on_line: LineCallback,
        *,
        grace_s: float = GRACE_S,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Start all ranks.

        Args:
            on_line: Called with each line that they print.
            grace_s: Time between SIGTERM and SIGKILL.
            on_end: Called in the same thread as `on_line` when the first rank has failed, and when
                all ranks have ended.

        Raises:
            FabricError: if a rank can't be started; none runs then.
        """
        self.job = job
        self.failure: RankFailedError | None = None
        """The first failure of a rank, as soon as it is known."""
        self._failed_or_ended = threading.Event()
        self._on_line, self._on_end, self._grace_s = on_line, on_end, grace_s
        self._running: dict[int, tuple[Rank, subprocess.Popen[bytes]]] = {}
        """By pidfd, the ranks that have not ended."""
        self._left: list[str] = []
        """The ranks that have exited 0."""
        self._outputs: dict[tuple[Rank, Stream], _Output] = {}
        self._callback_error: BaseException | None = None
        self._is_ending = False
        self.ended = False
        """Whether all ranks have ended and all their lines have been delivered."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._fail)
        self._waking = threading.Lock()
        """Held while the loop is woken or closed: its descriptor may soon be another file's."""
        mark = f"{os.getpid()}-{uuid4().hex}"
        self._guard = ProcessGuard(JOB_VARIABLE, mark)
        try:
            for rank in job.ranks:
                self._start(rank, mark)
        except BaseException:
            self._guard.close()
            self._release()
            raise
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    def _start(self, rank: Rank, mark: str) -> None:
        variables = {**self.job.environment_of(rank), JOB_VARIABLE: mark}
        words = [f"{name}={value}" for name, value in variables.items()]
        argv = self.job.place.launcher(rank.server, ["env", *words, *self.job.command])
        try:
            process = subprocess.Popen(
                argv,
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**passed_environment(), JOB_VARIABLE: mark},
                start_new_session=True,  # a signal reaches the rank with its children, and only it
            )
        except OSError as error:
            raise FabricError(f"{rank}: can't run {argv[0]}: {error.strerror}") from error
        for stream in get_args(Stream):
            output = self._outputs[rank, stream] = _Output(rank, stream, getattr(process, stream))
            os.set_blocking(output.pipe.fileno(), False)
            self._loop.add_reader(output.pipe, self._read, output)
        pidfd = os.pidfd_open(process.pid)
        self._running[pidfd] = rank, process
        self._loop.add_reader(pidfd, self._collect)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all ranks have ended and all their lines have been delivered.

        Returns:
            Whether they have; False after the timeout.

        Raises:
            RankFailedError: names the rank that failed first; all others have ended, too.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._callback_error is not None:
            raise self._callback_error
        if self.failure is not None:
            raise self.failure
        return True

    def first_failure(self, timeout_s: float) -> RankFailedError | None:
        """Wait until a rank has failed; None if all have ended without, or after the timeout."""
        self._failed_or_ended.wait(timeout_s)
        return self.failure

    def end(self) -> None:
        """Ask all ranks to end, and kill them after the grace period; don't wait for it."""
        with self._waking:
            if not self.ended:
                self._loop.call_soon_threadsafe(self._terminate)

    def close(self) -> None:
        """End the ranks that still run and wait for their end; a second Ctrl-C kills them."""
        self.end()
        try:
            self._thread.join()
        except BaseException:
            self._guard.close()
            self._thread.join()
            raise

    # --- the thread ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Deliver lines and notice ends until all ranks have ended; then kill what is left."""
        try:
            self._loop.call_soon(self._collect)  # where there are no ranks, too
            self._loop.run_forever()
        finally:
            self._guard.close()
            with self._waking:
                self._release()
                # before the call, as it makes another thread ask `ended`
                self._is_ending = self.ended = True
            self._failed_or_ended.set()
            self._call(self._on_end, also_after_error=True)

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End all ranks after an unforeseen error of this thread."""
        self._callback_error = self._callback_error or context.get("exception")
        loop.stop()

    def _read(self, output: _Output) -> bool:
        """Deliver what a pipe has; return False if it has nothing more."""
        try:
            part = os.read(output.pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        for line in output.lines(part):
            self._call(partial(self._on_line, output.rank, output.stream, line))
        if not part:
            self._loop.remove_reader(output.pipe)
            output.pipe.close()
            self._stop_if_over()
        return bool(part)

    def _call(self, callback: Callable[[], None], *, also_after_error: bool = False) -> None:
        """Call back, unless a callback has failed before."""
        if self._callback_error is None or also_after_error:
            try:
                callback()
            except BaseException as error:  # noqa: BLE001 - raised again in `wait`
                self._callback_error = self._callback_error or error
                self._terminate()

    def _collect(self) -> None:
        """Take the statuses of ranks that have ended; the first failure ends the others."""
        failed: list[tuple[Rank, int]] = []
        for pidfd, (rank, process) in list(self._running.items()):
            if (status := process.poll()) is None:
                continue
            del self._running[pidfd]
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            for output in [self._outputs[rank, stream] for stream in get_args(Stream)]:
                while not output.pipe.closed and self._read(output):
                    pass
            if status:
                failed.append((rank, status))
            else:
                self._left.append(str(rank))
        if failed and not self._is_ending:
            # Of several ends in one moment, that by a signal is the cause, not a lost connection.
            rank, status = min(failed, key=lambda end: (end[1] > 0, end[0].number))
            last_lines = self._outputs[rank, "stderr"].last
            place = rank.number, rank.server
            self.failure = RankFailedError(*place, status, last_lines, self._left)
            self._failed_or_ended.set()
            self._terminate()
            self._call(self._on_end)
        if not self._running:
            self._guard.close()  # now nothing holds the other ends of the pipes
            self._stop_if_over()

    def _stop_if_over(self) -> None:
        if not self._running and all(output.pipe.closed for output in self._outputs.values()):
            self._loop.stop()

    def _terminate(self) -> None:
        """Send SIGTERM to the ranks that run, once, and kill them after the grace period."""
        if not self._is_ending:
            self._is_ending = True
            self._signal(signal.SIGTERM)
            self._loop.call_later(self._grace_s, self._signal, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process groups of the ranks that run."""
        for _, process in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _release(self) -> None:
        """Release processes and pipes after the end of all ranks."""
        for pidfd, (_, process) in self._running.items():
            process.wait()
            os.close(pidfd)
        for output in self._outputs.values():
            output.pipe.close()
        self._running.clear()
        self._loop.close()
