"""Ranks of a job, numbered as by torchrun: where they run and meet, and their processes.

A place is a fabric that is up, or real hosts. The processes are started on their servers, watched,
and ended together. A thread reads what the ranks print and waits for their ends. When a rank fails,
it ends the others: SIGTERM first, SIGKILL after a grace period. A guard kills what is left of the
job when its ranks have ended, or when the process that started them has, by SIGKILL for example.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Final, Literal, Self, get_args
from uuid import uuid4

from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.closing import Closing
from moefabric.core.errors import FabricError, RankFailedError, SpecError
from moefabric.core.server_host import HostLogin
from moefabric.emulator.fabric import node_commands
from moefabric.emulator.linux.marked_processes import ProcessGuard
from moefabric.runtime.environment import passed_environment
from moefabric.runtime.run_directory import FabricWiring

MASTER_PORT: Final = 29500
"""TCP port of the rendezvous; torchrun's default."""
RENDEZVOUS_INTERFACE: Final = "eth0"
"""Interface of a server through which ranks reach each other."""
Launcher = Callable[[str, Sequence[str]], Sequence[str]]
"""Returns the local argv that runs a command on a server: emulated, a container or a host.

The command must end when the local process gets SIGTERM, and exit with its status.
"""
JOB_VARIABLE: Final = "MOEFABRIC_JOB"
"""Environment variable with the name of the job, set in every process of the job."""
GRACE_S: Final = 5.0
"""Time between SIGTERM and SIGKILL."""
_LAST_LINES: Final = 20
_READ_BYTES: Final = 1 << 16
_MAX_LINE_BYTES: Final = 1 << 20
Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class Rank:
    """A process of a job.

    Attributes:
        number: Among all ranks of the job.
        local: Among the ranks of its server.
        server: Where it runs.
    """

    number: int
    local: int
    server: str

    def __str__(self) -> str:
        return f"rank {self.number} on {self.server}"


@dataclass(frozen=True)
class RankPlace:
    """Servers on which ranks run.

    Attributes:
        launcher: Starts ranks there.
        servers: The servers, in the order of their ranks.
        master_address: Address of the first server, where rank 0 offers the rendezvous.
        master_port: TCP port of the rendezvous.
        environment: Variables of the ranks of each server.
    """

    launcher: Launcher
    servers: tuple[str, ...]
    master_address: str
    master_port: int = MASTER_PORT
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def on_fabric(
        cls,
        wiring: FabricWiring,
        servers: Sequence[str],
        *,
        by_agents: bool = False,
        over_management: bool = False,
    ) -> Self:
        """Return servers of a fabric that is up; their ranks meet over the management network.

        Args:
            by_agents: Whether ranks that use the backend `moefabric` reach the agents of their
                servers.
            over_management: Whether gloo talks over the management network instead of the fabric.
        """
        environment: dict[str, dict[str, str]] = {}
        for server in servers:
            names = wiring.interfaces_of(server)
            interface = names.management if over_management else names.host
            environment[server] = {"GLOO_SOCKET_IFNAME": interface}
            if by_agents:
                environment[server]["MOEFABRIC_AGENT"] = wiring.rank_address(server)
        first, name = servers[0], wiring.fabric.name
        return cls(
            partial(node_commands.exec_argv, name),
            tuple(servers),
            wiring.management.server_address(wiring.fabric, first),
            node_commands.free_port(name, first),
            environment,
        )

    @classmethod
    def on_hosts(
        cls, logins: Mapping[str, HostLogin], addresses: Mapping[str, str], fleet: Fleet
    ) -> Self:
        """Return real hosts, whose ranks meet and talk over the hosts' own network.

        Commands start in the folder of the caller's name there, if there is one.

        Args:
            logins: How to log in to each host, by server.
            addresses: Address of each host.
            fleet: Agents of the hosts.
        """
        environment, first = {}, next(iter(logins))
        for server in logins:
            facts = fleet.facts[server]
            named = {address: name for name, address in facts["interfaces"].items()}
            # Without an interface, gloo takes the one that the host's name leads to, often lo.
            interface = named.get(addresses[server], "")
            variables = {"GLOO_SOCKET_IFNAME": interface, "MOEFABRIC_AGENT": facts["ranks"]}
            environment[server] = variables

        def launcher(server: str, command: Sequence[str]) -> Sequence[str]:
            module = [sys.executable, "-m", "moefabric.agents.remote.command"]
            return [*module, "--login", logins[server].to_json(), "--", *command]

        return cls(launcher, tuple(logins), addresses[first], MASTER_PORT, environment)


@dataclass(frozen=True)
class RankJob:
    """A command that runs at a place, a number of times on each server.

    Attributes:
        place: The servers.
        command: Program and arguments of every rank.
        ranks_per_server: Ranks of each server.
        environment: Variables of all ranks.
        run_id: Name of the job for its programs.
    """

    place: RankPlace
    command: Sequence[str]
    ranks_per_server: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    run_id: str = "none"

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks; the ranks of a server follow each other."""
        count = self.ranks_per_server
        return tuple(
            Rank(index * count + local, local, server)
            for index, server in enumerate(self.place.servers)
            for local in range(count)
        )

    def environment_of(self, rank: Rank) -> dict[str, str]:
        """Return the variables that torchrun sets, those of gloo, and the job's own.

        The job's own variables come last, so that they replace the others.
        """
        world = len(self.place.servers) * self.ranks_per_server
        variables = {
            "RANK": rank.number,
            "LOCAL_RANK": rank.local,
            "GROUP_RANK": rank.number // self.ranks_per_server,
            "ROLE_RANK": rank.number,
            "ROLE_NAME": "default",
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": self.ranks_per_server,
            "GROUP_WORLD_SIZE": len(self.place.servers),
            "ROLE_WORLD_SIZE": world,
            "MASTER_ADDR": self.place.master_address,
            "MASTER_PORT": self.place.master_port,
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            # Rank 0 offers the rendezvous itself; torchrun's own agent would do it otherwise.
            "TORCHELASTIC_USE_AGENT_STORE": False,
            "GLOO_SOCKET_IFNAME": RENDEZVOUS_INTERFACE,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            # Lines of output arrive when they are printed, also from ranks that are killed.
            "PYTHONUNBUFFERED": 1,
        }
        texts = {name: str(value) for name, value in variables.items()}
        of_server = self.place.environment.get(rank.server, {})
        return {**texts, **self.environment, **of_server}


def chosen_servers(all_servers: Sequence[str], chosen: Sequence[str] | None) -> tuple[str, ...]:
    """Return the chosen servers in their order, or all.

    Raises:
        SpecError: if the fabric lacks one of them, or one occurs twice.
    """
    if not chosen:
        return tuple(all_servers)
    if unknown := [server for server in chosen if server not in all_servers]:
        message = f"{', '.join(unknown)}: no such server; there are {', '.join(all_servers)}"
        raise SpecError([("servers", message)])
    if len(set(chosen)) < len(chosen):
        raise SpecError([("servers", f"{', '.join(chosen)}: each server may occur once")])
    return tuple(chosen)


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
