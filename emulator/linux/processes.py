"""Processes of a fabric: start them in their namespaces, check them and end them."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.emulator.linux.line_requests import ask_socket
from moefabric.emulator.linux.marked_processes import mark_environment
from moefabric.runtime.environment import passed_environment
from moefabric.runtime.processes import Process, adopt_orphans, end_processes, end_text, is_stopped
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline

OUTER: Final = "outer"
"""The node of a process that stays in the namespace where `up` was called."""
_OWN_NETWORK: Final = "/proc/self/ns/net"
_SIGNAL_S: Final = 3.0
"""Limit for a host to pass a signal on."""
_LAST_LINE_LETTERS: Final = 300
_LAST_LINE_BYTES: Final = 64 * 1024
_SOURCES: Final = str(Path(__file__).absolute().parents[3])
_PREFORK_SERVER: Final = str(Path(__file__).with_name("prefork_server.py"))


class ProcessRole(StrEnum):
    """Role of a process in the fabric; it determines how `up` knows that the process is ready."""

    CONTROLLER = "controller"
    OCS = "ocs"
    AGENT = "agent"
    OTHER = "other"


@dataclass(frozen=True)
class ProcessSpec:
    """Program to start for a fabric.

    Attributes:
        name: unique in the fabric; also names the log.
        node: `outer`, a server (`s0`) or an OCS (`ocs0`).
        argv: the command; with `prefork`, the arguments of the program's `main`.
        env: environment variables added to the caller's.
        role: determines how `up` knows that the process is ready.
        prefork: the argv of a prefork server (`prefork_argv`) that forks this process. Processes
            with equal argv share one server.
        host: name of the one process that runs this specification and the others with this host
            (`moefabric.agents.engine.host`); empty for a process of its own.
    """

    name: str
    node: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    role: ProcessRole = ProcessRole.OTHER
    prefork: tuple[str, ...] = ()
    host: str = ""


def nsenter_argv(namespaces: str | int, argv: Sequence[str]) -> list[str]:
    """Return the argv that runs a command in other namespaces.

    Args:
        namespaces: the path of a network namespace, or the pid of a process whose network, mount
            and UTS namespace the command enters.
        argv: the command.
    """
    if isinstance(namespaces, str):
        return ["nsenter", f"--net={namespaces}", "--", *argv]
    return ["nsenter", "-t", str(namespaces), "-n", "-m", "-u", f"--wdns={Path.cwd()}", "--", *argv]


def module_environment() -> dict[str, str]:
    """Return the environment of a `python -m` that finds this code, and none in its folder.

    It has those of the caller's variables that pass (`moefabric.runtime.environment`).
    """
    search_path = os.pathsep.join(filter(None, (_SOURCES, os.environ.get("PYTHONPATH"))))
    return {**passed_environment(), "PYTHONPATH": search_path, "PYTHONSAFEPATH": "1"}


def prefork_argv(module: str, *, bare: bool = False) -> tuple[str, ...]:
    """Return the argv of a prefork server for a module's `main(arguments)`.

    Args:
        module: dotted name.
        bare: start Python without site packages and environment, for a module that needs only the
            standard library and this repository.
    """
    return (sys.executable, *(["-S", "-E"] if bare else []), _PREFORK_SERVER, module)


@dataclass(frozen=True)
class ChildProcess(Process):
    """Process of the fabric, with its log."""

    log: Path

    @property
    def exit_description(self) -> str:
        """Sentence with the exit status and the last line of the log."""
        status = self.exit_status
        end = f"ended ({end_text(status)})" if status and status < 0 else f"exited {status}"
        return f"{self.name} {end}, saying: {last_line(self.log)}"


@dataclass(frozen=True)
class StartedProgram(ChildProcess):
    """Process that was started from an argv, not forked by a prefork server."""

    popen: subprocess.Popen[bytes]

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; None while the process runs."""
        return self.popen.poll()

    def reap(self) -> None:
        """Release a process that has ended, and its pipes."""
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        os.close(self.pidfd)


def last_line(log: Path) -> str:
    """Return the last non-blank line of a log, shortened; `nothing` if there is none.

    Only the end of the log is read.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_LINE_BYTES))
            end = file.read(_LAST_LINE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        end = ""
    last = next((line.strip() for line in reversed(end.split("\n")) if line.strip()), "nothing")
    return last[:_LAST_LINE_LETTERS]


class ChildProcesses:
    """All processes that the calling process started for a fabric."""

    def __init__(self, run_dir: RunDirectory) -> None:
        """Start nothing yet; logs go to the run directory."""
        self.running: dict[str, ChildProcess] = {}
        self.hosted: dict[str, list[ProcessSpec]] = {}
        """Specifications that share a process, by the name of the process."""
        self._run_dir = run_dir
        self._killed: list[str] = []  # of `hosted`
        self._servers: dict[tuple[str, ...], StartedProgram] = {}
        self._forks: dict[tuple[str, ...], list[tuple[ProcessSpec, str | int]]] = {}

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        piped: bool = False,
    ) -> StartedProgram:
        """Start a program, whose output goes to its log.

        Args:
            name: names the process and its log.
            argv: the command.
            env: variables added to the caller's environment.
            piped: connect standard input and output to pipes; only standard error goes to the log.

        Raises:
            FabricError: if there is no such program.
        """
        log = self._run_dir.log_file(name)
        with log.open("ab") as out:
            try:
                popen = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if piped else out,
                    stderr=out,
                    env={**os.environ, **(env or {}), **mark_environment(self._run_dir.name)},
                    start_new_session=True,
                )
            except OSError as error:
                raise FabricError(f"{name}: can't run {argv[0]}: {error.strerror}") from error
        program = StartedProgram(name, popen.pid, os.pidfd_open(popen.pid), log, popen)
        self.running[name] = program
        return program

    def start_prefork_servers(self, specs: Iterable[ProcessSpec]) -> None:
        """Start the prefork servers of these processes, so that they load their programs."""
        adopt_orphans()
        for argv in {spec.prefork for spec in specs if spec.prefork} - self._servers.keys():
            self._servers[argv] = server = self.start(f"prefork-{argv[-1]}", argv, piped=True)
            del self.running[server.name]

    def start_all(self, specs: Iterable[tuple[ProcessSpec, str | int]]) -> None:
        """Start processes in their namespaces; call `wait_forked` to wait for forked ones.

        Args:
            specs: each process with the path of a network namespace, or with the pid of a process
                whose network and mount namespace it enters.

        Raises:
            FabricError: names a process that can't be started.
        """
        hosted = dict[tuple[tuple[str, ...], str], list[tuple[ProcessSpec, str | int]]]()
        for spec, namespaces in specs:
            if spec.host:
                hosted.setdefault((spec.prefork, spec.host), []).append((spec, namespaces))
            elif spec.prefork:
                self._forks.setdefault(spec.prefork, []).append((spec, namespaces))
            else:
                self.start(spec.name, nsenter_argv(namespaces, spec.argv), spec.env)
        for (prefork, name), members in hosted.items():
            host = self._host(name, prefork, members)
            self._forks.setdefault(prefork, []).append((host, _OWN_NETWORK))
        self.start_prefork_servers(spec for forks in self._forks.values() for spec, _ in forks)
        for argv, forks in self._forks.items():
            popen = self._servers[argv].popen
            if popen.stdin is not None:
                with suppress(BrokenPipeError), popen.stdin:  # `wait_forked` reports a dead server
                    popen.stdin.write(b"".join(self._request(*fork) for fork in forks))
                popen.stdin = None

    def _host(
        self, name: str, prefork: tuple[str, ...], members: list[tuple[ProcessSpec, str | int]]
    ) -> ProcessSpec:
        """Return the process that runs several specifications in their network namespaces."""
        self.hosted[name] = [spec for spec, _ in members]
        agents = [
            (place if isinstance(place, str) else f"/proc/{place}/ns/net", spec.argv)
            for spec, place in members
        ]
        argv = ("--name", name, "--signals", self._signals(name), "--agents", json.dumps(agents))
        return ProcessSpec(name, OUTER, argv, prefork=prefork)

    def _signals(self, host: str) -> str:
        return str(self._run_dir.agent_socket(host).with_suffix(".signals"))

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, or have its host do what the signal would do.

        Raises:
            FabricError: if the host doesn't answer, or knows no such signal.
        """
        if name in self.running:
            self.running[name].signal(number)
        for host, specs in self.hosted.items():
            for spec in [spec for spec in specs if spec.name == name]:
                if self.running[host].exit_status is None:
                    self._signal_hosted(host, spec.node, number)
                    if number is signal.SIGKILL:
                        specs.remove(spec)
                        self._killed.append(name)

    def _signal_hosted(self, host: str, server: str, number: signal.Signals) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_SIGNAL_S)
            try:
                link.connect(self._signals(host))
                reply = ask_socket(link, {"op": "signal", "server": server, "number": number})
            except (OSError, ValueError) as error:
                raise FabricError(f"{host} takes no signal for {server}: {error}") from error
        if not reply["ok"]:
            raise FabricError(f"{host}: {reply['error']}")

    def _request(self, spec: ProcessSpec, namespaces: str | int) -> bytes:
        """Return the line that asks a prefork server for a process."""
        request: dict[str, Any] = {"name": spec.name, "arguments": spec.argv, "env": dict(spec.env)}
        request |= {"namespaces": namespaces, "log": str(self._run_dir.log_file(spec.name))}
        return json.dumps(request).encode() + b"\n"

    def wait_forked(self, deadline: Deadline) -> None:
        """Wait until all prefork servers have forked and ended; the forks become our children.

        Raises:
            FabricError: if a server fails or exceeds the deadline.
        """
        while self._forks:
            argv, forks = self._forks.popitem()
            server = self._servers[argv]
            try:
                output, _ = server.popen.communicate(timeout=deadline.remaining_s)
            except subprocess.TimeoutExpired:
                text = f"{server.name} had not forked {forks[0][0].name} in time"
                raise FabricError(text) from None
            for (spec, _), pid in zip(forks, map(int, output.split()), strict=False):
                log = self._run_dir.log_file(spec.name)
                self.running[spec.name] = ChildProcess(spec.name, pid, os.pidfd_open(pid), log)
            if server.popen.returncode:
                raise FabricError(server.exit_description)
            self._servers.pop(argv).reap()

    def restart(self, spec: ProcessSpec, namespaces: str | int, deadline: Deadline) -> ChildProcess:
        """Start a process that has ended again.

        Raises:
            FabricError: if it can't be started in time.
        """
        ended = self.running[spec.name]
        self.start_all([(spec, namespaces)])
        self.wait_forked(deadline)
        ended.reap()
        return self.running[spec.name]

    def check_alive(self) -> bool:
        """Return True.

        Raises:
            FabricError: if a process has ended; describes the end of the first one.
        """
        for end in self.ends():
            raise FabricError(end)
        return True

    def alive(self) -> list[ChildProcess]:
        """Return the processes that have not ended."""
        return [process for process in self.running.values() if process.exit_status is None]

    def ended(self) -> list[ChildProcess]:
        """Return the processes that have ended, and have not been started again."""
        return [process for process in self.running.values() if process.exit_status is not None]

    def ends(self) -> Iterator[str]:
        """Describe the ends of processes."""
        for process in self.ended():
            hosted = ", ".join(spec.name for spec in self.hosted.get(process.name, ()))
            yield process.exit_description + (f"; with it ended {hosted}" if hosted else "")
        yield from (f"{name} was killed" for name in self._killed)

    def stops(self, expected: Collection[str]) -> Iterator[str]:
        """Describe the processes that a signal has stopped, except those of these names."""
        for process in self.running.values():
            if process.name not in expected and is_stopped(process.pid):
                yield f"{process.name}: the process is stopped"

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM to every process, and SIGKILL to those that run on after `grace_s`."""
        processes = [*self.running.values(), *self._servers.values()]
        end_processes([process.pidfd for process in processes], grace_s)
        for process in processes:
            process.reap()
        self.running.clear()
        self.hosted.clear()
        self._killed.clear()
        self._servers.clear()
        self._forks.clear()
