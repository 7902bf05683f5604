"""A running fabric: circuits, programs on servers, faults, captures, events and inspection."""

import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from moefabric.api.capture import Capture
from moefabric.api.circuits import LightChange, named_circuits, region_of_circuits
from moefabric.api.ocs_faults import LOSS_DB, ocs_request, region_of_ocs
from moefabric.api.running_fabrics import running_fabric
from moefabric.api.signals import graceful_shutdown
from moefabric.config.demand_file import check_demand
from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.controller.client import ControllerClient
from moefabric.core.errors import CommandFailedError, FabricError, SpecError
from moefabric.core.failures import INJECTABLE, ControllerFailureMode, Failure, FailureKind
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric import hardware_injection, lifecycle, node_commands
from moefabric.emulator.fabric.run_directories import hold
from moefabric.emulator.ocs import client as ocs_client
from moefabric.runner import fault_injection
from moefabric.runner.exchange_loop import CarriedExchange, exchange_loop
from moefabric.runner.inspection import inspect_fabric
from moefabric.runner.mpi import hostfile, mpi_launch
from moefabric.runner.perf import Perf, PerfKind, PerfOptions, PerfResult
from moefabric.runner.programs import ProgramFabric, running_programs
from moefabric.runner.rank_places import RankPlace, chosen_servers, print_line
from moefabric.runner.rank_processes import LineCallback, RankProcesses
from moefabric.runner.replay import Replay, ReplayOptions, ReplayResult
from moefabric.runner.result_parts import Json
from moefabric.workload.execution_graph import ExecutionGraph

T = TypeVar("T")
Demand = Sequence[Sequence[float]]
"""Rows of bytes, from the row's server to the column's; an array of numpy is one, too."""

_PROCESS_FAILURES: Final = (FailureKind.GPU, FailureKind.CONTROLLER)
"""Failures that agents and controllers know, not the hardware."""


class Lab:
    """A fabric that is up. `moefabric.load_fabric(...).up()` and `Lab.running()` return one.

    In a `with`, the fabric is removed at the end, also after an exception, Ctrl-C, SIGTERM and
    SIGHUP, together with all programs that run on it; one that was up before stays::

        with moefabric.load_fabric("examples/fabric.yaml").up() as lab:
            lab.light("s0/o0~s1/o0")
            print(lab.exec("s0", "ping -c 3 10.0.1.1").stdout)

    Attributes:
        name: Name of the fabric.
        was_up: Whether the fabric was up before, and therefore stays after a `with`.
    """

    def __init__(self, name: str, *, was_up: bool = True) -> None:
        self.name, self.was_up = name, was_up
        self._undo = ExitStack()
        self._programs: list[subprocess.Popen[Any]] = []

    @classmethod
    def running(cls, name: str | None = None) -> Self:
        """Return the running fabric with this name, or the only one that runs.

        Raises:
            SpecError: If no fabric runs, or several do and `name` is None.
        """
        return cls(running_fabric(name))

    def __repr__(self) -> str:
        return f"Lab({self.name!r})"

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.enter_context(graceful_shutdown())
            if not self.was_up:
                undo.callback(self.down)
                undo.enter_context(hold(self.run_directory))
            undo.callback(self._end_programs)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _end_programs(self) -> None:
        """End the programs of `popen` that still run."""
        for program in self._programs:
            if program.poll() is None:
                program.kill()
        for program in self._programs:
            program.wait()

    def down(self) -> bool:
        """Remove the fabric and all that belongs to it; return whether there was anything."""
        return lifecycle.down(self.name)

    # --- what the fabric is ----------------------------------------------------------------------

    @property
    def run_directory(self) -> RunDirectory:
        """Directory with the wiring, the sockets and the logs of the fabric."""
        return RunDirectory.of_fabric(self.name)

    @cached_property
    def wiring(self) -> FabricWiring:
        """The fabric as its controllers, agents and commands know it.

        Raises:
            FabricError: If the fabric isn't up.
        """
        try:
            return FabricWiring.from_json(self.run_directory.wiring_file.read_text())
        except FileNotFoundError as error:
            message = f"{self.name} is not up: start it with `moefabric up FABRIC.yaml`"
            raise FabricError(message) from error

    @property
    def fabric(self) -> Fabric:
        """Servers, NICs, regions and switches."""
        return self.wiring.fabric

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of the servers."""
        return self.fabric.servers

    def address(self, server: str, gpu: int = 0) -> str:
        """Return the address of a server's GPU, by which programs reach the server."""
        if server not in self.fabric.server_index:
            raise SpecError([("", f"{server} is not one of {', '.join(self.servers)}")])
        return self.fabric.addresses(server)[gpu]

    def inspect(self) -> Json:
        """Return servers, NICs, switches, circuits, rules, counters and processes.

        The keys are those of `moefabric inspect --json`.
        """
        return inspect_fabric(self.name)

    # --- circuits --------------------------------------------------------------------------------

    def circuits(self, region: str | None = None) -> list[str]:
        """Return the circuits that carry traffic, of one region or of all."""
        regions = [self.region(region)] if region else self._optical_regions()
        return [name for region in regions for name in self._ask(region, ControllerClient.circuits)]

    def light(
        self,
        *circuits: str,
        demand: Demand | None = None,
        policy: str = "mixnet",
        region: str | None = None,
    ) -> LightChange:
        """Set the circuits of a region; its other circuits are removed.

        Returns when packets use the circuits.

        Args:
            *circuits: Circuits such as `s0/o0~s1/o0`, or pairs of servers such as `s0~s1`, whose
                free NICs are taken.
            demand: Instead of circuits: bytes from the row's server to the column's, in the order
                of the region's servers. `policy` chooses the circuits for it.
            policy: The policy.
            region: The region. Default: that of the circuits, or the first.

        Raises:
            SpecError: If the circuits or the demand don't fit the fabric.
            ControlError: If the controller refuses, or a device fails.
        """
        if (demand is None) == (not circuits):
            message = "give either circuits such as s0/o0~s1/o0 or a demand; `dark()` removes all"
            raise SpecError([("light", message)])
        if demand is not None:
            chosen = self.region(region) if region else self._optical_regions()[0]
            rows = check_demand(demand, len(chosen.servers), "demand")
            reply = self._ask(chosen, lambda client: client.demand(rows, policy))
        else:
            chosen = self.region(region) if region else region_of_circuits(self.fabric, circuits)
            names = named_circuits(self.fabric, chosen, circuits, self.circuits(chosen.name))
            reply = self._ask(chosen, lambda client: client.light(names))
        return LightChange.model_validate(reply)

    def dark(self, *circuits: str, region: str | None = None) -> LightChange:
        """Remove circuits, or all circuits of a region; the others stay.

        Args:
            *circuits: Circuits such as `s0/o0~s1/o0`, or pairs of servers such as `s0~s1`, all of
                whose circuits are removed. Default: all.
            region: The region. Default: that of the circuits, or the first.

        Raises:
            SpecError: If one of the circuits isn't lit.
            ControlError: If the controller refuses, or a device fails.
        """
        if region is None and circuits:
            chosen = region_of_circuits(self.fabric, circuits)
        else:
            chosen = self.region(region) if region else self._optical_regions()[0]
        lit = self.circuits(chosen.name)
        rest = [name for name in lit if circuits and not _is_named(name, circuits)]
        if unlit := [n for n in circuits if not any(_is_named(name, [n]) for name in lit)]:
            shown = ", ".join(lit) or "no circuits"
            raise SpecError([("dark", f"{', '.join(unlit)} is not lit; lit: {shown}")])
        return LightChange.model_validate(self._ask(chosen, lambda client: client.light(rest)))

    def region(self, name: str) -> Region:
        """Return the region with this name.

        Raises:
            SpecError: If there is none.
        """
        regions = {region.name: region for region in self.fabric.regions}
        if name not in regions:
            raise SpecError([("region", f"{name} is not one of {', '.join(regions)}")])
        return regions[name]

    def _optical_regions(self) -> list[Region]:
        regions = [region for region in self.fabric.regions if region.ocs is not None]
        if not regions:
            raise SpecError([("", f"{self.name} has no OCS, and no circuits")])
        return regions

    def _ask(self, region: Region, request: Callable[[ControllerClient], T]) -> T:
        with ControllerClient(self.wiring.management.northbound_endpoint(region)) as client:
            return request(client)

    # --- programs --------------------------------------------------------------------------------

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
                argv, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
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
            **options: Options of `subprocess.Popen`, such as `stdout=subprocess.PIPE`.

        Raises:
            FabricError: If the fabric has no such node.
        """
        program = subprocess.Popen(self.exec_argv(node, command), **options)
        self._programs.append(program)
        return program

    def exec_argv(self, node: str, command: str | Sequence[str]) -> list[str]:
        """Return the argv that runs a command on a server or OCS, for other process libraries."""
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
            command: Program and arguments of every rank; text is split as a shell does.
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
        job = place.job(_words(command), ranks_per_server, environment or {}, self.name)
        return RankProcesses(job, place.launcher, on_line or print_line)

    def torchrun(
        self,
        command: str | Sequence[str],
        policy: str,
        *,
        ranks_per_server: int = 1,
        servers: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        on_line: LineCallback | None = None,
    ) -> list[CarriedExchange]:
        """Run a program of PyTorch, and carry the all-to-alls of its backend `moefabric`.

        Circuits follow each all-to-all before its bytes leave, as the policy says.

        Args:
            command: Program and arguments of every rank; text is split as a shell does.
            policy: The policy.
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
        words, chosen = _words(command), chosen_servers(self.servers, servers)
        place = RankPlace.on_fabric(self.wiring, chosen, by_agents=True)
        job = place.job(words, ranks_per_server, environment or {}, self.name)
        carried, print_output = list[CarriedExchange](), on_line or print_line
        with (
            exchange_loop(self.name, policy) as (loop, wake),
            RankProcesses(job, place.launcher, print_output, on_end=wake) as ranks,
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
        **options: Any,
    ) -> "subprocess.CompletedProcess[Any]":
        """Run an MPI program with OpenMPI's `mpirun`, and return its status and output.

        Args:
            command: The program and its arguments, after options of mpirun, if any; text is split
                as a shell does.
            ranks: Ranks of the program. Default: all slots.
            slots: Ranks that each server has room for.
            servers: The servers, in the order of their ranks. Default: all.
            **options: Options of `subprocess.run`, such as `capture_output=True`.

        Raises:
            SpecError: If the fabric lacks one of the servers.
            UnsupportedError: If OpenMPI isn't installed.
        """
        chosen = chosen_servers(self.servers, servers)
        count = slots * len(chosen) if ranks is None else ranks
        with mpi_launch(self.wiring, chosen, slots) as launch:
            argv = [*launch.argv, "-n", str(count), *_words(command)]
            return subprocess.run(argv, env=launch.environment, check=False, **options)

    def capture(self, place: str, path: str | Path | None = None, length: int = 256) -> Capture:
        """Return a capture of frames, which runs in a `with`::

            with lab.capture("s0/o0", "light.pcap") as capture:
                lab.exec("s0", "ping -c 3 10.0.1.1")
            print(capture.frames, capture.path)

        Args:
            place: A NIC (`s0/o0`), a server (`s0`: the frames of its programs), or a link between
                switches (`leaf0~spine0`).
            path: The pcap file. Default: named after the place, in the present folder.
            length: Bytes to keep of each frame.
        """
        file = Path(path) if path else Path(f"{place.replace('/', '-')}.pcap")
        return Capture(self.name, place, file, length)

    # --- failures --------------------------------------------------------------------------------

    def fault(self, kind: str, *what: str, mode: str = "kill") -> "InjectedFault":
        """Make components fail. In a `with`, the failure is cleared at the end.

        Args:
            kind: `nic`, `ocs-port`, `ocs`, `gpu`, `server` or `controller`.
            *what: NICs (`s0/e0`), optical NICs (`s0/o0`), OCSes, GPUs (`s1/3`), servers, or
                controllers (`r0`, `eps`).
            mode: With `controller`: `kill` its process, which is started again, or `stop` it.

        Raises:
            SpecError: If the kind is unknown, or the fabric lacks the components.
            FabricError: If they can't be made to fail.
        """
        failure = Failure(_failure_kind(kind), what, _failure_mode(mode))
        if not what:
            raise SpecError([("fault", f"which {kind}?")])
        if failure.kind in _PROCESS_FAILURES:
            fault_injection.inject(self.run_directory, failure)
        else:
            hardware_injection.inject(self.run_directory, str(failure.kind), what)
        return InjectedFault(self, failure)

    def clear(self, kind: str | None = None, *what: str) -> list[Json]:
        """Clear failures of some components, of a kind, or all; return the remaining ones.

        Args:
            kind: As in `fault`. Default: all kinds, with the faults of OCSes.
            *what: The components. Default: all of the kind.

        Raises:
            SpecError: If the kind is unknown.
            FabricError: If one of the components has not failed.
        """
        chosen = _failure_kind(kind) if kind else None
        if chosen in (None, *_PROCESS_FAILURES):
            for failure in fault_injection.logged_failures(self.run_directory):
                if chosen in (None, failure.kind) and not what:
                    fault_injection.clear(self.run_directory, failure)
        if chosen in _PROCESS_FAILURES:
            if what:
                fault_injection.clear(self.run_directory, Failure(FailureKind(chosen), what))
        else:
            hardware_injection.clear(self.run_directory, chosen, what)
        return self.faults()

    def faults(self) -> list[Json]:
        """Return the present failures, each with `kind` and `what`."""
        processes = [
            {"kind": str(failure.kind), "what": list(failure.what)}
            for failure in fault_injection.logged_failures(self.run_directory)
        ]
        return [*hardware_injection.injected_failures(self.run_directory), *processes]

    # --- collectives -----------------------------------------------------------------------------

    def programs(self) -> AbstractContextManager[ProgramFabric]:
        """Return a context in which agents run programs of collectives on this fabric."""
        return running_programs(self.name)

    def perf(self, kind: PerfKind, sizes: int | Sequence[int], **options: Any) -> PerfResult:
        """Measure a collective with real bytes, as `moefabric perf` does.

        Args:
            kind: Name of a program of nccl-tests, such as `alltoall`.
            sizes: Sizes in bytes of the model: the larger of a rank's send and receive buffers.
            **options: Fields of `PerfOptions`, such as `ranks`, `algorithm`, `via`, `iterations`.

        Raises:
            SpecError: If an option is wrong.
            AgentError: If a step fails.
        """
        listed = [sizes] if isinstance(sizes, int) else list(sizes)
        with self.programs() as programs:
            measurement = Perf(programs, PerfOptions(kind, listed, **options))
            return measurement.result(list(measurement.rows()))

    def replay(self, trace: ExecutionGraph, options: ReplayOptions | None = None) -> ReplayResult:
        """Replay a trace with real bytes, as `moefabric replay` does.

        Args:
            trace: The operations of all ranks; `traces.formats.read_trace` reads them from files.
            options: How to replay it.

        Raises:
            SpecError: If the trace doesn't fit the fabric.
            AgentError: If a step fails.
        """
        with self.programs() as programs:
            return Replay(programs, trace, options or ReplayOptions()).run()

    # --- optical switches ------------------------------------------------------------------------

    def ocs(self, name: str = "ocs0") -> Json:
        """Return identity, start-up mode and ports of an OCS."""
        return self._ask_ocs(name, {"do": "show"})

    def ocs_fault(
        self,
        kind: str | None,
        *arguments: str,
        ocs: str = "ocs0",
        times: int | None = None,
        db: float = LOSS_DB,
        after: bool = False,
    ) -> Json:
        """Inject a fault into an OCS, and return its faults and whether it has power.

        Args:
            kind: `port`, `stuck`, `loss`, `reject`, `delay`, `drop-completion`, `reset`,
                `partial-apply`, `reboot` or `down`; `list` or None lists the faults.
            *arguments: Ports (numbers or NICs), a path (`1-17` or `s0/o0~s1/o0`), a time or a
                number, as the kind needs.
            ocs: Name of the OCS.
            times: Number of commands that are affected. Default: all.
            db: With `loss`: additional loss in dB.
            after: With `reset`: once the command is done, before the reply.

        Raises:
            SpecError: If the kind or its arguments are wrong.
            FabricError: If the OCS refuses.
        """
        region = region_of_ocs(self.wiring, ocs)
        request = ocs_request(kind, arguments, self.wiring, region, times=times, db=db, after=after)
        if kind == "down":
            hardware_injection.inject(self.run_directory, "ocs", [ocs])
        elif kind == "port" and times is None and not any(map(str.isdecimal, arguments)):
            hardware_injection.inject(self.run_directory, hardware_injection.PORT, arguments)
            request = {"do": "list"}
        return self._ocs_faults(ocs, request)

    def ocs_clear(self, number: int | None = None, ocs: str = "ocs0") -> Json:
        """Clear the fault of an OCS with this number, or all; return as `ocs_fault`."""
        region_of_ocs(self.wiring, ocs)
        if number is None:
            for entry in hardware_injection.injected_failures(self.run_directory):
                affected = (entry.get("ocs"), *entry["what"])
                if entry["kind"] in ("ocs", hardware_injection.PORT) and ocs in affected:
                    hardware_injection.clear(self.run_directory, entry["kind"], entry["what"])
        return self._ocs_faults(ocs, {"do": "clear", "number": number})

    def events(self, *, follow: bool = False) -> Iterator[Json]:
        """Yield the events of the OCSes: changes, light, faults, alarms.

        Args:
            follow: Whether to wait for new events after the stored ones, until the fabric ends.
        """
        sockets = {
            region.ocs.name: self.run_directory.ocs_socket(region)
            for region in self.fabric.regions
            if region.ocs is not None
        }
        for ocs, event in ocs_client.events(sockets, follow=follow):
            yield {"ocs": ocs, **event}

    def _ask_ocs(self, name: str, request: Mapping[str, Any]) -> Json:
        region = region_of_ocs(self.wiring, name)
        return ocs_client.request(self.run_directory.ocs_socket(region), request)

    def _ocs_faults(self, name: str, request: Mapping[str, Any]) -> Json:
        reply = self._ask_ocs(name, request)
        return reply | {"power": not hardware_injection.lacks_power(self.run_directory, name)}


class InjectedFault:
    """A failure that was injected; in a `with`, it is cleared at the end."""

    def __init__(self, lab: Lab, failure: Failure) -> None:
        self.failure = failure
        self._lab = lab

    def __repr__(self) -> str:
        return f"InjectedFault({self.failure})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Make the components work again; a killed controller starts by itself."""
        failure = self.failure
        if failure.kind is FailureKind.CONTROLLER and failure.how is ControllerFailureMode.KILL:
            return
        self._lab.clear(str(self.failure.kind), *self.failure.what)


def _words(command: str | Sequence[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command)


def _is_named(circuit: str, names: Sequence[str]) -> bool:
    """Whether a circuit is named by itself or by its two servers, in either order."""
    ends = circuit.split("~")
    servers = [end.partition("/")[0] for end in ends]
    forms = {"~".join(pair) for pair in (ends, ends[::-1], servers, servers[::-1])}
    return not forms.isdisjoint(names)


def _failure_kind(kind: str) -> FailureKind:
    if kind not in INJECTABLE:
        raise SpecError([("", f"{kind!r} is not one of {', '.join(INJECTABLE)}")])
    return FailureKind(kind)


def _failure_mode(mode: str) -> ControllerFailureMode:
    if mode not in set(ControllerFailureMode):
        raise SpecError([("", f"{mode!r} is not one of {', '.join(ControllerFailureMode)}")])
    return ControllerFailureMode(mode)
