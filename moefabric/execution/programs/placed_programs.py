"""Programs on servers: the places of ranks, the paths of messages, and the model's prediction.

A program's sizes are those that agents really send; a scale says what they stand for.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from math import ceil, inf
from typing import Final, Self

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError
from moefabric.core.flows import Flow
from moefabric.core.paths import eps_paths, gpu_nic, nic_paths
from moefabric.core.port_counts import GRANT_BYTES, framed_bytes
from moefabric.core.routes import Link, Route, route
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.planner.sending.flow_pacing import BURST_SEGMENTS, pace_bps
from moefabric.simulator.event_simulation import Step, simulate
from moefabric.simulator.fair_sharing import Stream
from moefabric.simulator.fluid import goodput_bps
from moefabric.workload.collectives.program import (
    DEFAULT_NVSWITCH_BPS,
    Program,
    ProgramStep,
    RankPlaces,
)
from moefabric.workload.collectives.schedule import BufferName, Via

Connection = tuple[str, str, str]
"""Sender, receiver and path."""

MOST_MEMORY: Final = 2_000_000_000
"""Bytes of all buffers together above which the byte scale is increased."""
LEAST_PART: Final = 16 * 1024
"""Emulated bytes below which a message isn't divided among more paths."""
_LEAST_BURSTS: Final = 50
"""Bursts of a connection from which on it is paced."""
_NVSWITCH: Final = "nvswitch"
_Key = tuple[str, int, int]
"""Key of a simulated `step` of a rank, or of a `part` of a transfer."""


@dataclass(frozen=True)
class RankPlacement:
    """Places of ranks.

    Attributes:
        servers: Server of each rank.
        gpus: GPU of each rank on its server.
    """

    servers: tuple[str, ...]
    gpus: tuple[int, ...]

    @classmethod
    def spread(cls, fabric: Fabric, ranks: int | None = None) -> Self:
        """Return ranks on a fabric's servers: as few on each as possible, neighbours together.

        Args:
            ranks: Number of ranks; None for one on each GPU.

        Raises:
            SpecError: If the ranks can't be spread evenly.
        """
        servers = fabric.primary_servers
        ranks = len(servers) * fabric.gpus if ranks is None else ranks
        per_server = max(1, ceil(ranks / len(servers)))
        if ranks < 1 or ranks % per_server or per_server > fabric.gpus:
            most = len(servers) * fabric.gpus
            more = f", or a multiple of that up to {most}" if fabric.gpus > 1 else ""
            fault = (
                f"{ranks} ranks can't be spread evenly over {len(servers)} servers of "
                f"{fabric.gpus} GPUs: use up to {len(servers)}{more}"
            )
            raise SpecError([("ranks", fault)])
        return cls(
            tuple(servers[rank // per_server] for rank in range(ranks)),
            tuple(rank % per_server for rank in range(ranks)),
        )

    @cached_property
    def server_numbers(self) -> tuple[int, ...]:
        """Index of each rank's server among the servers that have ranks."""
        numbers = {server: n for n, server in enumerate(dict.fromkeys(self.servers))}
        return tuple(numbers[server] for server in self.servers)


@dataclass(frozen=True)
class Part:
    """A part of a message that takes one path, or a message between GPUs of one server.

    Attributes:
        number: Number of the part, unique in the program.
        offset: Its first byte within the message.
        size: Its bytes.
        path: Its path; empty within a server.
    """

    number: int
    offset: int
    size: int
    path: str = ""


@dataclass(frozen=True)
class MessagePaths:
    """Chooses the paths of messages between servers.

    Attributes:
        placement: Places of ranks.
        circuits: Circuits that may be used.
        optical_share: Part of a pair's bytes that its circuits carry, by pair; 1 for other pairs
            that have a circuit.
    """

    fabric: Fabric
    placement: RankPlacement
    circuits: CircuitSet = field(default_factory=CircuitSet)
    optical_share: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def rank_places(self) -> RankPlaces:
        """The network as schedules see it: servers, circuits, and the rank of each NIC."""
        return RankPlaces.on_fabric(self.fabric, self.circuits, self.placement.servers)

    def shares(self, source: int, target: int, via: Via) -> list[tuple[str, float]]:
        """Return the paths of a message between two ranks, and the part of its bytes on each.

        Raises:
            SpecError: If there is no path.
        """
        src, dst = self.placement.servers[source], self.placement.servers[target]
        ends = [circuit.end_at(src) for circuit in self.circuits.between(src, dst)]
        electrical = [(path.name, path.share) for path in eps_paths(self.fabric, src, dst)]
        if self.fabric.nic_per_gpu:
            nics = [gpu_nic(self.fabric, self.placement.gpus[rank]) for rank in (source, target)]
            names = nic_paths(self.fabric, src, dst, nics[0], nics[1])
            electrical = [(name, 1 / len(names)) for name in names]
        light = self.optical_share.get((src, dst), 1.0) if ends and via != "eps" else 0.0
        if via == "light" or not electrical:
            light = 1.0
        if (light and not ends) or (light < 1 and not electrical):
            lack = "circuit" if light else "electrical NIC"
            raise SpecError([(f"rank {source} to rank {target}", f"{src} has no {lack} to {dst}")])
        gpu = self.placement.gpus[source]
        shares = [(path, share * (1 - light)) for path, share in self._gpu_paths(electrical, gpu)]
        shares += [(nic.path, light / len(ends)) for nic in ends]
        return [(path, share) for path, share in shares if share > 0]

    def _gpu_paths(self, paths: list[tuple[str, float]], gpu: int) -> list[tuple[str, float]]:
        """Return a GPU's path if GPUs are divided evenly among paths; otherwise all paths."""
        ranks = max(self.placement.gpus) + 1
        even = len({round(share, 9) for _, share in paths}) == 1
        return [(paths[gpu % len(paths)][0], 1.0)] if even and ranks % len(paths) == 0 else paths


def program_scale(scale: Scale, byte_factor: float) -> Scale:
    """Return the scale of a program on a fabric with a scale.

    The product of both factors stays, as the fabric's links have it.

    Args:
        scale: The fabric's scale.
        byte_factor: Bytes of the model for each byte of the program.
    """
    return Scale(byte_factor, scale.bytes * scale.dilation / byte_factor)


class PlacedProgram:
    """A program whose ranks have servers and whose messages have paths.

    Args:
        program: The program, with emulated sizes.
        paths: Chooses paths.
        scale: What sizes and times stand for.

    Attributes:
        steps: The steps of each rank.
        parts: The parts of each transfer.
        early: Transfers that may arrive before their receiver's step could start.
        ends: Source and target rank of each transfer.
        call_of_transfer: Position of the call of each transfer.
    """

    def __init__(self, program: Program, paths: MessagePaths, scale: Scale) -> None:
        self.program, self.paths, self.scale = program, paths, scale
        self.fabric, self.placement = paths.fabric, paths.placement
        self.steps = [tuple(program.steps(rank)) for rank in range(program.ranks)]
        self.parts: dict[int, tuple[Part, ...]] = {}
        self.early = {t for steps in self.steps for t in _into_untouched_places(steps)}
        self.ends: dict[int, tuple[int, int]] = {}
        self.call_of_transfer: dict[int, int] = {}
        chosen: dict[tuple[int, int, Via], list[tuple[str, float]]] = {}
        count = 0
        for rank, steps in enumerate(self.steps):
            for step in steps:
                if step.kind != "send":
                    continue
                assert step.extent is not None
                self.ends[step.transfer] = rank, step.peer
                self.call_of_transfer[step.transfer] = step.call
                if self.server(rank) == self.server(step.peer):
                    parts = [Part(count, 0, step.extent.size)]
                else:
                    key = rank, step.peer, step.via
                    if key not in chosen:
                        chosen[key] = paths.shares(*key)
                    element = program.calls[step.call].call.element
                    turn = self.placement.gpus[rank] + step.transfer
                    cut = _cut(step.extent.size, chosen[key], element, turn)
                    parts = [Part(count + n, *part) for n, part in enumerate(cut)]
                self.parts[step.transfer] = tuple(parts)
                count += len(parts)

    @cached_property
    def connections(self) -> dict[Connection, int]:
        """The connections that messages between servers take, and the bytes on each."""
        sizes: defaultdict[Connection, int] = defaultdict(int)
        for transfer, (source, target) in self.ends.items():
            for part in self.parts[transfer]:
                if part.path:
                    sizes[self.server(source), self.server(target), part.path] += part.size
        return dict(sizes)

    @cached_property
    def fluid_s(self) -> float | None:
        """Model seconds in which the fullest link carries all bytes; None if steps wait."""
        if any(step.after and step.kind != "compute" for steps in self.steps for step in steps):
            return None
        load: defaultdict[Link, float] = defaultdict(float)
        for connection, size in self.connections.items():
            for link in self.route(connection):
                load[link] += 8 * size * self.scale.bytes / goodput_bps(self.fabric, link)
        return max(load.values(), default=0.0)

    def route(self, connection: Connection) -> Route:
        """Return the links of a connection."""
        src, dst, path = connection
        return route(self.fabric, self.paths.circuits, Flow(src, dst, path, 1.0))

    @property
    def server_demand(self) -> DemandMatrix:
        """The bytes that the program moves between servers, in the model."""
        scale, sizes = self.scale.bytes, self.connections.items()
        pairs = ((src, dst, size * scale) for (src, dst, _), size in sizes)
        return DemandMatrix.of_pairs(self.fabric.servers, pairs)

    def bytes_by_network(self, *, framed: bool = False) -> tuple[float, float]:
        """Return the bytes between servers by light and by the EPS, in the model.

        Args:
            framed: Whether to count the frames of messages and of their grants, which return.
        """
        sizes = Counter[str]()
        for transfer, parts in self.parts.items():
            grant = framed and transfer not in self.early
            for part in parts:
                size = framed_bytes(part.size) if framed else part.size
                sizes[part.path[:1]] += size + GRANT_BYTES * grant
        return sizes["o"] * self.scale.bytes, sizes["e"] * self.scale.bytes

    @property
    def memory(self) -> int:
        """Bytes of the buffers of all ranks."""
        return sum(sum(b.values()) for call in self.program.calls for b in call.schedule.buffers)

    def paces(self, *, greedy: bool = False) -> dict[Connection, float | None]:
        """Return the pace of each connection in wall bits per second; None for unlimited.

        If no step waits for another, all connections end together when the fullest link has
        carried its bytes. Otherwise nothing is paced, nor are connections of a few bursts, which
        would end up to a burst late.
        """
        paces: dict[Connection, float | None] = dict.fromkeys(self.connections)
        if greedy or not self.fluid_s:
            return paces
        wall_s = self.fluid_s * self.scale.dilation
        least = _LEAST_BURSTS * BURST_SEGMENTS * self.fabric.mtu
        return {
            connection: pace_bps(self.fabric, size, wall_s) if size >= least else None
            for connection, size in self.connections.items()
        }

    def server(self, rank: int) -> str:
        """Return the server of a rank."""
        return self.placement.servers[rank]


def _cut(
    size: int, shares: Sequence[tuple[str, float]], element: int, turn: int
) -> list[tuple[int, int, str]]:
    """Divide a message among paths, between numbers; small ones take fewer paths in turn.

    Returns:
        Offset, size and path of each part.
    """
    count = min(len(shares), max(1, size // LEAST_PART))
    if count < len(shares):
        shares = [shares[(turn + n) % len(shares)] for n in range(count)]
    whole = sum(share for _, share in shares)
    ends = [
        round(size * share / whole / element) * element
        for share in accumulate(share for _, share in shares)
    ]
    ends[-1] = size
    starts = [0, *ends[:-1]]
    return [
        (start, end - start, path)
        for start, end, (path, _) in zip(starts, ends, shares, strict=True)
        if end > start
    ]


def _into_untouched_places(steps: Sequence[ProgramStep]) -> Iterator[int]:
    """Yield the transfers that a rank receives into bytes that no earlier step reads or writes."""
    touched: defaultdict[tuple[int, BufferName], list[tuple[int, int]]] = defaultdict(list)
    for step in steps:
        for extent in (step.extent, step.source):
            if extent is None:
                continue
            spans, start, end = touched[step.call, extent.buffer], extent.offset, extent.end
            first, last = bisect_left(spans, (start, -1)), bisect_left(spans, (end, -1))
            if first and spans[first - 1][1] > start:
                first -= 1
            if overlapped := spans[first:last]:
                start, end = min(start, overlapped[0][0]), max(end, overlapped[-1][1])
            elif step.kind in {"receive", "receive_add"}:
                yield step.transfer
            spans[first:last] = [(start, end)]


class ProgramModel:
    """The event simulation of a program: max-min fair links, dependencies, NVSwitch ports.

    Messages of a connection follow one another. Connections that are paced keep to their pace.

    Args:
        greedy: Whether no connection is paced.

    Attributes:
        seconds: Model seconds until the last step has ended.
        step_ends_s: When each step ends, by rank.
    """

    def __init__(self, placed: PlacedProgram, *, greedy: bool = False) -> None:
        self._placed = placed
        self._fluid_s = None if greedy else placed.fluid_s
        receives = {
            step.transfer: [("step", rank, other) for other in step.after]
            for rank, steps in enumerate(placed.steps)
            for step in steps
            if step.kind in {"receive", "receive_add"} and step.transfer not in placed.early
        }
        waits: dict[_Key, list[_Key]] = {}
        steps_of: dict[_Key, Step] = {}
        for rank, steps in enumerate(placed.steps):
            for step in steps:
                key = ("step", rank, step.number)
                waits[key] = [("step", rank, other) for other in step.after]
                steps_of[key] = Step(seconds=step.duration_s)
                if step.transfer < 0:
                    continue
                parts = placed.parts[step.transfer]
                keys: list[_Key] = [("part", step.transfer, part.number) for part in parts]
                if step.kind == "send":
                    for part, part_key in zip(parts, keys, strict=True):
                        waits[part_key] = waits[key] + receives.get(step.transfer, [])
                        steps_of[part_key] = self._part_step(step.transfer, part)
                waits[key] = waits[key] + keys
        positions = {key: position for position, key in enumerate(_in_order(waits))}
        simulated = [
            replace(steps_of[key], after=tuple(sorted({positions[n] for n in waits[key]})))
            for key in positions
        ]
        links = {
            link: DEFAULT_NVSWITCH_BPS if _NVSWITCH in link else goodput_bps(placed.fabric, link)
            for step in simulated
            for stream in step.streams
            for link in stream.links
        }
        times = simulate(simulated, links)
        self.step_ends_s = [
            [times[positions["step", rank, step.number]].end_s for step in steps]
            for rank, steps in enumerate(placed.steps)
        ]
        self.seconds = max((end for ends in self.step_ends_s for end in ends), default=0.0)

    def _part_step(self, transfer: int, part: Part) -> Step:
        placed = self._placed
        source, target = placed.ends[transfer]
        size = part.size * placed.scale.bytes
        if not part.path:
            links: Route = ((f"gpu{source}", _NVSWITCH), (_NVSWITCH, f"gpu{target}"))
            return Step(streams=(Stream(size, links),), lane=("gpu", source))
        servers = placed.placement.servers
        connection = servers[source], servers[target], part.path
        pace_bps = inf
        if self._fluid_s:
            pace_bps = 8 * placed.connections[connection] * placed.scale.bytes / self._fluid_s
        streams = (Stream(size, placed.route(connection), pace_bps),)
        return Step(streams=streams, lane=connection)


def _in_order(waits: Mapping[_Key, Sequence[_Key]]) -> list[_Key]:
    """Return keys so that each follows those that it waits for."""
    order = TopologicalSorter[_Key](dict.fromkeys(waits, ()))
    for key, before in waits.items():
        order.add(key, *before)
    try:
        return list(order.static_order())
    except CycleError as error:
        fault = f"{len(error.args[1]) - 1} steps wait for each other and never start"
        raise SpecError([("program", fault)]) from error
