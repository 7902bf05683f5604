"""Processes of a job's ranks: started on their servers, watched, and ended together.

A thread reads what the ranks print and waits for their ends. When a rank fails, it ends the others:
SIGTERM first, SIGKILL after a grace period. A guard kills what is left of the job when its ranks
have ended, or when the process that started them has, by SIGKILL for example.
"""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Final, Literal, get_args
from uuid import uuid4

from moefabric.core.closing import Closing
from moefabric.core.errors import FabricError, RankFailedError
from moefabric.emulator.linux.marked_processes import ProcessGuard
from moefabric.execution.programs.rank_places import Launcher, Rank, RankJob

JOB_VARIABLE: Final = "MOEFABRIC_JOB"
"""Environment variable with the name of the job, set in every process of the job."""
GRACE_S: Final = 5.0
"""Time between SIGTERM and SIGKILL."""
_LAST_LINES: Final = 20
_READ_BYTES: Final = 1 << 16
_MAX_LINE_BYTES: Final = 1 << 20

Stream = Literal["stdout", "stderr"]
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
        launcher: Launcher,
        on_line: LineCallback,
        *,
        grace_s: float = GRACE_S,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Start all ranks.

        Args:
            job: The ranks.
            launcher: Where they run.
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
        self._on_line, self._on_end, self._grace_s = on_line, on_end, grace_s
        self._running: dict[int, tuple[Rank, subprocess.Popen[bytes]]] = {}
        """By pidfd, the ranks that have not ended."""
        self._reading: dict[int, _Output] = {}
        """By file descriptor, the pipes that are open."""
        self._outputs: dict[tuple[Rank, Stream], _Output] = {}
        self._callback_error: BaseException | None = None
        self._is_ending = False
        self.ended = False
        """Whether all ranks have ended and all their lines have been delivered."""
        self._kill_at_s: float | None = None
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0)
        self._waking = threading.Lock()
        """Held while the descriptor is used or closed: its number may soon be another file's."""
        self._selector.register(self._wake, selectors.EVENT_READ)
        mark = f"{os.getpid()}-{uuid4().hex}"
        self._guard = ProcessGuard(JOB_VARIABLE, mark)
        try:
            for rank in job.ranks:
                self._start(rank, launcher, mark)
        except BaseException:
            self._guard.close()
            self._release()
            raise
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    def _start(self, rank: Rank, launcher: Launcher, mark: str) -> None:
        variables = {**self.job.environment_of(rank), JOB_VARIABLE: mark}
        words = [f"{name}={value}" for name, value in variables.items()]
        argv = launcher(rank.server, ["env", *words, *self.job.command])
        try:
            process = subprocess.Popen(
                argv,
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, JOB_VARIABLE: mark},
                start_new_session=True,  # a signal reaches the rank with its children, and only it
            )
        except OSError as error:
            raise FabricError(f"{rank}: can't run {argv[0]}: {error.strerror}") from error
        for stream in get_args(Stream):
            output = _Output(rank, stream, getattr(process, stream))
            os.set_blocking(output.pipe.fileno(), False)
            self._reading[output.pipe.fileno()] = output
            self._selector.register(output.pipe, selectors.EVENT_READ)
            self._outputs[rank, stream] = output
        pidfd = os.pidfd_open(process.pid)
        self._running[pidfd] = rank, process
        self._selector.register(pidfd, selectors.EVENT_READ)

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

    def end(self) -> None:
        """Ask all ranks to end, and kill them after the grace period; don't wait for it."""
        with self._waking:
            if not self.ended:
                os.eventfd_write(self._wake, 1)

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
            while self._running:
                self._turn()
            self._guard.close()  # now nothing holds the other ends of the pipes
            while self._reading:
                self._turn()
        finally:
            self._guard.close()
            with self._waking:
                self._release()
                self.ended = True  # before the call, as it makes another thread ask `ended`
            self._call(self._on_end, also_after_error=True)

    def _turn(self) -> None:
        """Wait for output, the end of a rank or a time limit, and act on it."""
        left_s = None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())
        ready = [key.fd for key, _ in self._selector.select(left_s)]
        for fd in ready:
            if fd in self._reading:
                self._read(fd)
        if self._wake in ready:
            os.eventfd_read(self._wake)
            self._terminate()
        if pidfds := [fd for fd in ready if fd in self._running]:
            self._collect(pidfds)
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            self._kill_at_s = None
            self._signal(signal.SIGKILL)

    def _read(self, fd: int) -> bool:
        """Deliver what a pipe has; return False if it has nothing more."""
        try:
            part = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        output = self._reading[fd]
        for line in output.lines(part):
            self._call(partial(self._on_line, output.rank, output.stream, line))
        if not part:
            self._selector.unregister(fd)
            self._reading.pop(fd).pipe.close()
        return bool(part)

    def _call(self, callback: Callable[[], None], *, also_after_error: bool = False) -> None:
        """Call back, unless a callback has failed before."""
        if self._callback_error is None or also_after_error:
            try:
                callback()
            except BaseException as error:  # noqa: BLE001 - raised again in `wait`
                self._callback_error = self._callback_error or error
                self._terminate()

    def _collect(self, pidfds: Sequence[int]) -> None:
        """Take the statuses of ranks that have ended; the first failure ends the others."""
        failed: list[tuple[Rank, int]] = []
        for pidfd in pidfds:
            self._selector.unregister(pidfd)
            rank, process = self._running.pop(pidfd)
            os.close(pidfd)
            self._read_rest(rank)
            if status := process.wait():
                failed.append((rank, status))
        if failed and not self._is_ending:
            # Of several ends in one moment, that by a signal is the cause, not a lost connection.
            rank, status = min(failed, key=lambda end: (end[1] > 0, end[0].number))
            last_lines = self._outputs[rank, "stderr"].last
            self.failure = RankFailedError(rank.number, rank.server, status, last_lines)
            self._terminate()
            self._call(self._on_end)

    def _read_rest(self, rank: Rank) -> None:
        """Deliver all that a rank has printed until now."""
        for fd in [fd for fd, output in self._reading.items() if output.rank == rank]:
            while self._read(fd):
                pass

    def _terminate(self) -> None:
        """Send SIGTERM to the ranks that run, once."""
        if not self._is_ending:
            self._is_ending, self._kill_at_s = True, time.monotonic() + self._grace_s
            self._signal(signal.SIGTERM)

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
        for output in self._reading.values():
            output.pipe.close()
        os.close(self._wake)
        self._running.clear()
        self._reading.clear()
        self._selector.close()
