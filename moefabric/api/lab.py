"""A running fabric: circuits, programs on servers, faults, captures, events and inspection."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from pydantic import Field

from moefabric.api.capture import Capture
from moefabric.api.failure_injection import FailureInjection
from moefabric.api.running_fabrics import not_up, running_fabric, running_fabrics
from moefabric.api.server_programs import ServerPrograms
from moefabric.api.signals import graceful_shutdown
from moefabric.config.demand_file import check_demand
from moefabric.controller.client import ControllerClient
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.errors import ControlError, FabricError, SpecError
from moefabric.core.topology import Fabric, Region, ocs_port
from moefabric.core.transition import ReconfigurationPhases
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.run_directories import hold
from moefabric.execution.programs.perf import Perf, PerfKind, PerfOptions, PerfResult
from moefabric.execution.programs.program_fabric import ProgramFabric, running_programs
from moefabric.execution.programs.replay import ReplayOptions, ReplayResult, TraceReplay
from moefabric.planner.nic_assignment import assign_nics
from moefabric.results.parts import Json, ResultPart
from moefabric.runtime.failure_log import end_remedy
from moefabric.testbed.fabric_check import FabricCheck, check_fabric
from moefabric.testbed.failure_injection import stopped_controller
from moefabric.workload.graphs.execution_graph import ExecutionGraph

T = TypeVar("T")
Demand = Sequence[Sequence[float]]
"""Rows of bytes, from the row's server to the column's; an array of numpy is one, too."""


class LightChange(ResultPart):
    """The outcome of a request for circuits."""

    circuits_before: list[str]
    """Circuits that carried traffic before the request."""
    circuits_after: list[str]
    """Circuits that carry traffic now."""
    dark: list[str]
    """Circuits that were commanded but carry no light; their pairs use the EPS."""
    dark_why: dict[str, str] = Field(default_factory=dict)
    """Why, by circuit."""
    phases: ReconfigurationPhases
    """Wall seconds of each phase."""
    plan: Json | None = None
    """The plan for the demand; None if circuits were given."""
    policy_fault: str = ""
    """Why a policy of another package failed, so that no circuits were lit."""


class Lab(ServerPrograms, FailureInjection):
    """A fabric that is up. `moefabric.load_fabric(...).up()` and `Lab.running()` return one.

    In a `with`, the fabric is removed at the end, also after an exception, Ctrl-C, SIGTERM,
    SIGHUP and SIGKILL, together with all programs that run on it; one that was up before stays::

        with moefabric.load_fabric("examples/fabric.yaml").up() as lab:
            lab.light("s0/o0~s1/o0")
            print(lab.exec("s0", "ping -c 3 10.0.1.1").stdout)

    Attributes:
        name: Name of the fabric.
        was_up: Whether the fabric was up before, and therefore stays after a `with`.
        replaced: What had ended in the fabric in whose place `up` made this one.
    """

    def __init__(self, name: str, *, was_up: bool = True, replaced: Sequence[str] = ()) -> None:
        super().__init__(name)
        self.was_up, self.replaced = was_up, tuple(replaced)
        self._undo = ExitStack()

    @classmethod
    def running(cls, name: str | None = None) -> Self:
        """Return the running fabric with this name, or the only one that runs.

        Raises:
            FabricError: If no fabric of this name runs; it lists those that do.
            SpecError: If no fabric runs, or several do and `name` is None.
        """
        chosen = running_fabric(name)
        if chosen not in running_fabrics():
            raise FabricError(not_up(chosen))
        return cls(chosen)

    def __repr__(self) -> str:
        return f"Lab({self.name!r})"

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.enter_context(graceful_shutdown())
            if not self.was_up:
                undo.callback(lifecycle.down, self.name, force=True)
                lifecycle.own(self.name)
                undo.enter_context(hold(self.run_directory))
            undo.callback(self.end_programs)
            undo.callback(self._end_shells)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def down(self, *, force: bool = False) -> bool:
        """Remove the fabric and all that belongs to it; return whether there was anything.

        Args:
            force: Kill the fabric's process if it doesn't answer.

        Raises:
            FabricError: If the fabric's process doesn't answer.
        """
        return lifecycle.down(self.name, force=force)

    @cached_property
    def net(self) -> Any:
        """The fabric as a `mininet.net.Mininet`, which it neither makes nor removes.

        Its hosts, switches, OCSes, links and controllers are Mininet's objects; shells and programs
        of `net["s0"]` are in the server's namespaces, and `net["s0"].cmd(...)` works as in any
        Mininet script. They end with `net.stop()`, or with the `with` of the lab.

        Raises:
            FabricError: If the fabric doesn't run.
        """
        from moefabric.emulator.fabric.mininet_nodes import FabricNet

        return FabricNet(self.wiring)

    def _end_shells(self) -> None:
        if "net" in vars(self):
            self.net.end_shells()

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
            region: The region. Default: that of the circuits, or the first.

        Raises:
            SpecError: If the circuits or the demand don't fit the fabric.
            ControlError: If the controller refuses, or a device fails.
        """
        if (demand is None) == (not circuits):
            message = "give either circuits such as s0/o0~s1/o0 or a demand; `dark()` removes all"
            raise SpecError([("light", message)])
        chosen = self._region_of(region, circuits)
        if demand is not None:
            rows = check_demand(demand, len(chosen.servers), "demand")
            reply = self._ask(chosen, lambda client: client.demand(rows, policy))
        else:
            names = named_circuits(self.fabric, chosen, circuits, self.circuits(chosen.name))
            reply = self._ask(chosen, lambda client: client.light(names))
        return LightChange.model_validate(reply | {"dark_why": self._dark_reasons(chosen, reply)})

    def _dark_reasons(self, region: Region, reply: Json) -> dict[str, str]:
        """Return why circuits of a reply are dark: what its controller knows, and its OCS shows."""
        known: dict[str, str] = reply.get("dark_why") or {}
        ocs, shown = self.fabric.ocses[region], dict[int, Json]()
        untold = [name for name in reply["dark"] if name not in known]
        if untold and ocs.control.address is None:
            shown = {port["port"]: port for port in self.ocs(ocs.name)["ports"]}
        for name in untold:
            inputs = [ocs_port(self.fabric, nic) for nic in Circuit.parse(name)]
            ports = [port for one in inputs for port in (one, one + ocs.ports)]
            off = [p for p in ports if p in shown and shown[p]["admin"] != "enabled"]
            why = [f"port {p} of {ocs.name} is {shown[p]['admin']}" for p in off]
            known[name] = ": ".join(filter(None, ["no frame came through", ", ".join(why)]))
        return known

    def dark(self, *circuits: str, region: str | None = None) -> LightChange:
        """Remove circuits, or all circuits of a region; the others stay requested.

        A circuit that a failure keeps dark returns when that is cleared, unless it is removed.

        Args:
            *circuits: Circuits such as `s0/o0~s1/o0`, or pairs of servers such as `s0~s1`, all of
                whose circuits are removed. Default: all.
            region: The region. Default: that of the circuits, or the first.

        Raises:
            SpecError: If one of the circuits is neither lit nor requested.
            ControlError: If the controller refuses, or a device fails.
        """
        chosen = self._region_of(region, circuits)
        lit = self.circuits(chosen.name)
        requested = self._ask(chosen, ControllerClient.requested)
        rest = [name for name in requested if circuits and not _is_named(name, circuits)]
        known = {*lit, *requested}
        if unlit := [n for n in circuits if not any(_is_named(name, [n]) for name in known)]:
            shown = ", ".join(lit) or "no circuits"
            raise SpecError([("dark", f"{', '.join(unlit)} is not lit; lit: {shown}")])
        return LightChange.model_validate(self._ask(chosen, lambda client: client.light(rest)))

    def _region_of(self, name: str | None, circuits: Sequence[str]) -> Region:
        """Return the region of this name, else that of the circuits, else the first."""
        if name:
            return self.region(name)
        return region_of_circuits(self.fabric, circuits) if circuits else self._optical_regions()[0]

    def _optical_regions(self) -> list[Region]:
        if not self.fabric.ocses:
            raise SpecError([("", f"{self.name} has no OCS, and no circuits")])
        return list(self.fabric.ocses)

    def _ask(self, region: Region, request: Callable[[ControllerClient], T]) -> T:
        if stopped := stopped_controller(self.run_directory, region):
            raise ControlError(stopped)
        with ControllerClient.of_region(self.wiring, region) as client:
            try:
                return request(client)
            except ControlError as error:
                if lost := self._loss_of_machine(region) or end_remedy(self.run_directory):
                    raise ControlError(f"{lost} ({error})") from error
                raise

    def _loss_of_machine(self, region: Region) -> str:
        """Describe the loss of the machine that has a region; empty if it isn't lost."""
        if self.wiring.placement is None:
            return ""
        machine = self.wiring.placement.regions[region.name]
        reason = self.inspect().get("lost_machines", {}).get(machine)
        return f"{region.name} is on machine {machine}, which is lost: {reason}" if reason else ""

    def check(self) -> FabricCheck:
        """Check with packets that all servers connect and light moves, as `moefabric check` does.

        Raises:
            FabricError: If the fabric doesn't run.
            ControlError: If a controller doesn't answer.
        """
        return check_fabric(self.wiring)

    # --- packets ---------------------------------------------------------------------------------

    def capture(
        self,
        place: str,
        path: str | Path | None = None,
        length: int = 256,
        *,
        most_frames: int | None = None,
        most_bytes: int | None = None,
    ) -> Capture:
        """Return a capture of frames, which runs in a `with`::

            with lab.capture("s0/o0", "light.pcap") as capture:
                lab.exec("s0", "ping -c 3 10.0.1.1")
            print(capture.frames, capture.path)

        Args:
            place: A NIC (`s0/o0`), a server (`s0`: the frames of its programs), a circuit
                (`s0/o0~s1/o0`: both its NICs), a link between switches (`leaf0~spine0`), a switch
                (`leaf0`: all its ports), the management of an OCS (`ocs0`), or `management`.
            path: The pcapng file. Default: named after the place, in the present folder.
            length: Bytes to keep of each frame.
            most_frames: Frames after which the capture ends by itself.
            most_bytes: Bytes of frames after which it ends.
        """
        file = Path(path) if path else Path(f"{place.replace('/', '-')}.pcap")
        return Capture(self, place, file, length, frames=most_frames, bytes=most_bytes)

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
            return TraceReplay(programs, trace, options or ReplayOptions()).run()


def _is_named(circuit: str, names: Sequence[str]) -> bool:
    """Return whether names include a circuit or its pair of servers, in either order."""
    ends = circuit.split("~")
    servers = [end.partition("/")[0] for end in ends]
    forms = {"~".join(pair) for pair in (ends, ends[::-1], servers, servers[::-1])}
    return not forms.isdisjoint(names)


def region_of_circuits(fabric: Fabric, names: Sequence[str]) -> Region:
    """Return the region of circuits such as `s0/o0~s1/o0`, or of pairs of servers.

    Raises:
        SpecError: If a name is no circuit's, a server is unknown, or the circuits belong to
            several regions.
    """
    if others := [name for name in names if name.count("~") != 1]:
        raise SpecError([(others[0], "is no circuit such as s0~s1 or s0/o0~s1/o0")])
    servers = [end.partition("/")[0] for name in names for end in name.split("~")]
    if unknown := [server for server in servers if server not in fabric.server_index]:
        known = ", ".join(fabric.servers)
        raise SpecError([(" ".join(names), f"{unknown[0]!r} is not one of the servers {known}")])
    regions = list(dict.fromkeys(fabric.region_of[server] for server in servers))
    if len(regions) > 1:
        places = ", ".join(region.name for region in regions)
        message = f"the servers are in the regions {places}: no circuit leaves a region, and one"
        raise SpecError([(" ".join(names), f"{message} request changes one region")])
    return regions[0]


def named_circuits(
    fabric: Fabric, region: Region, names: Sequence[str], lit: Sequence[str]
) -> list[str]:
    """Return circuits by the names of their NICs.

    Args:
        region: The region of the circuits.
        names: Circuits such as `s0/o0~s1/o0`, which stay as they are, or pairs of servers such as
            `s0~s1`, once for each circuit.
        lit: Circuits that are lit. Pairs of servers keep theirs.

    Raises:
        SpecError: If both kinds of names are mixed, or a server lacks free NICs.
    """
    pairs = [name for name in names if "/" not in name]
    if not pairs:
        return list(names)
    if len(pairs) < len(names):
        raise SpecError([(pairs[0], "name the NICs of all circuits, or of none")])
    index = {server: i for i, server in enumerate(region.servers)}
    counts = np.zeros((len(index), len(index)), dtype=int)
    for (a, b), count in Counter(tuple(pair.split("~")) for pair in pairs).items():
        if a == b or a not in index or b not in index:
            raise SpecError([(f"{a}~{b}", f"two different servers of {region.name} are needed")])
        counts[index[a], index[b]] += count
        counts[index[b], index[a]] += count
    try:
        current = CircuitSet.of(Circuit.parse(name) for name in lit)
        return [str(circuit) for circuit in assign_nics(fabric, region, counts, current)]
    except ValueError as error:
        raise SpecError([(" ".join(names), str(error))]) from error
