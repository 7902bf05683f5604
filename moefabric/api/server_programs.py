"""Programs on the servers of a running fabric, alone or as ranks of a job, and captures."""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moefabric.api.fabric_view import FabricView
from moefabric.core.errors import CommandFailedError, FabricError
from moefabric.emulator.fabric import node_commands
from moefabric.execution.programs.mpi import hostfile, mpi_launch
from moefabric.execution.programs.rank_jobs import RankJob, RankPlace, chosen_servers
from moefabric.execution.programs.rank_processes import (
    LineCallback,
    RankProcesses,
    print_line,
    print_tagged_line,
)
from moefabric.runtime.environment import passed_environment

if TYPE_CHECKING:
    from moefabric.execution.programs.exchange_loop import CarriedExchange

__all__ = ["ServerPrograms", "print_line", "print_tagged_line"]


class ServerPrograms(FabricView):
    """Runs programs on servers and OCSes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._programs: list[subprocess.Popen[Any]] = []

    def end_programs(self) -> None:
        """End the programs of `popen` that still run."""
        while self._programs:
            program = self._programs.pop()
            program.kill()
            program.wait()

    def exec(
        self,
        node: str,
        command: str | Sequence[str],
        *,
        stdin: str | None = None,
        timeout_s: float | None = None,
        check: bool = False,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program on a server, or in the namespace of an OCS, and return its output.

        It gets the caller's variables that pass to servers (`docs/security.md`).

        Args:
            node: The server (`s0`) or OCS (`ocs0`).
            command: The program and its arguments; text is split as a shell does.
            stdin: What the program reads.
            timeout_s: Limit of its run time.
            check: Whether an exit status other than 0 is an error.

        Raises:
            FabricError: If the fabric has no such node, or the program didn't end in time.
            CommandFailedError: With `check`, if the program failed.
        """
        argv = self.exec_argv(node, command)
        try:
            completed = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env=passed_environment(),
            )
        except subprocess.TimeoutExpired as error:
            message = f"{node}: {shlex.join(_words(command))} has not ended within {timeout_s:g} s"
            raise FabricError(message) from error
        if check and completed.returncode:
            output = completed.stderr or completed.stdout
            raise CommandFailedError(_words(command), completed.returncode, output)
        return completed

    def popen(
        self, node: str, command: str | Sequence[str], **options: Any
    ) -> "subprocess.Popen[Any]":
        """Start a program on a server and return its process. It ends with the `with` of the lab.

        Args:
            node: The server (`s0`) or OCS (`ocs0`).
            command: The program and its arguments; text is split as a shell does.
            **options: Options of `subprocess.Popen`, such as `stdout=subprocess.PIPE`. Default of
                `env`: the caller's variables that pass to programs of `exec`.

        Raises:
            FabricError: If the fabric has no such node.
        """
        options.setdefault("env", passed_environment())
        program = subprocess.Popen(self.exec_argv(node, command), **options)
        self._programs.append(program)
        return program

    def exec_argv(self, node: str, command: str | Sequence[str]) -> list[str]:
        """Return the argv that runs a command on a server or OCS, for other process libraries.

        The command gets the environment that they give it.
        """
        return node_commands.exec_argv(self.name, node, _words(command))

    def launch(
        self,
        command: str | Sequence[str],
        *,
        ranks_per_server: int = 1,
        servers: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        on_line: LineCallback | None = None,
    ) -> RankProcesses:
        """Start ranks on servers with torchrun's environment. In a `with`, they end with it::

            with lab.launch("python train.py", ranks_per_server=2) as ranks:
                ranks.wait()

        Args:
            command: Program and arguments of every rank; text is split as a shell does; `python`
                or `python3` at its start is the running interpreter.
            ranks_per_server: Ranks on each server.
            servers: The servers, in the order of their ranks. Default: all.
            environment: Variables of all ranks.
            on_line: Called with each rank, stream and line that it prints. Default: print them.

        Raises:
            SpecError: If the fabric lacks one of the servers.
            FabricError: If a rank can't be started.
        """
        chosen = chosen_servers(self.servers, servers)
        place = RankPlace.on_fabric(self.wiring, chosen)
        job = RankJob(place, _rank_words(command), ranks_per_server, environment or {}, self.name)
        return RankProcesses(job, on_line or print_line)

    def torchrun(
        self,
        command: str | Sequence[str],
        policy: str,
        *,
        ranks_per_server: int = 1,
        servers: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        on_line: LineCallback | None = None,
    ) -> "list[CarriedExchange]":
        """Run a program of PyTorch, and carry the all-to-alls of its backend `moefabric`.

        Circuits follow each all-to-all before its bytes leave, as the policy says.

        Args:
            command: Program and arguments of every rank; text is split as a shell does; `python`
                or `python3` at its start is the running interpreter.
            ranks_per_server: Ranks on each server.
            servers: The servers, in the order of their ranks. Default: all.
            environment: Variables of all ranks.
            on_line: Called with each rank, stream and line that it prints. Default: print them.

        Returns:
            The all-to-alls.

        Raises:
            SpecError: If the fabric lacks one of the servers, or there is no such policy.
            RankFailedError: If a rank fails.
        """
        words, chosen = _rank_words(command), chosen_servers(self.servers, servers)
        place = RankPlace.on_fabric(self.wiring, chosen, by_agents=True)
        job = RankJob(place, words, ranks_per_server, environment or {}, self.name)
        from moefabric.execution.programs.exchange_loop import CarriedExchange, exchange_loop

        carried, print_output = list[CarriedExchange](), on_line or print_line
        with (
            exchange_loop(self.name, policy) as loop,
            RankProcesses(job, print_output, on_end=loop.wake) as ranks,
        ):
            loop.run(lambda: ranks.ended or ranks.failure is not None, carried.append)
            ranks.wait()
        return carried

    def hostfile(self, *, slots: int = 1, servers: Sequence[str] | None = None) -> str:
        """Return a hostfile of OpenMPI.

        Args:
            slots: Ranks that each server has room for.
            servers: The servers, in the order of their ranks. Default: all.

        Raises:
            SpecError: If the fabric lacks one of the servers.
        """
        return hostfile(chosen_servers(self.servers, servers), slots)

    def mpirun(
        self,
        command: str | Sequence[str],
        *,
        ranks: int | None = None,
        slots: int = 1,
        servers: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> "subprocess.CompletedProcess[Any]":
        """Run an MPI program with OpenMPI's `mpirun`, and return its status and output.

        Args:
            command: The program and its arguments, after options of mpirun, if any; text is split
                as a shell does.
            ranks: Ranks of the program. Default: all slots.
            slots: Ranks that each server has room for.
            servers: The servers, in the order of their ranks. Default: all.
            environment: Variables of all ranks.
            **options: Options of `subprocess.run`, such as `capture_output=True`.

        Raises:
            SpecError: If the fabric lacks one of the servers.
            UnsupportedError: If OpenMPI isn't installed.
        """
        chosen = chosen_servers(self.servers, servers)
        count, own = slots * len(chosen) if ranks is None else ranks, environment or {}
        passed = [word for name in own for word in ("-x", name)]
        with mpi_launch(self.wiring, chosen, slots) as (argv, settings):
            argv += ["-n", str(count), *passed, *_words(command)]
            return subprocess.run(argv, env={**settings, **own}, check=False, **options)


def _words(command: str | Sequence[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command)


def _rank_words(command: str | Sequence[str]) -> list[str]:
    """Return the words of a rank's command; in text, this interpreter is `python`.

    Another one of that name, first on the path, mostly lacks the packages that this one has.
    """
    words = _words(command)
    if isinstance(command, str) and words[:1] in (["python"], ["python3"]):
        words[0] = sys.executable
    return words
