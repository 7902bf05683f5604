"""Predicted times of programs of collectives, their bandwidths, and a bound of both.

Steps are those of the event simulation, on a network of ranks.

A message starts when its sender's step may start, and its receiver's step too unless bytes may
arrive early. Messages between two ranks that take the same links follow one another, as on a
connection; others share links max-min fairly. The sender's step ends when the links have carried
the last byte, the receiver's step when that byte has arrived.
Copies and additions take no time unless their rates are given.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import Protocol, TypeVar

from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import SpecError
from moefabric.core.flows import Share, flows
from moefabric.core.routes import Link, route
from moefabric.core.topology import Fabric
from moefabric.simulator import event_simulation, fluid
from moefabric.simulator.event_simulation import StepTimes
from moefabric.simulator.fair_sharing import Stream
from moefabric.workload.collectives.costs import bus_factor, counted_bytes, port_bytes
from moefabric.workload.collectives.program import (
    DEFAULT_NVSWITCH_BPS,
    NO_CALL,
    Program,
    ProgramStep,
    RankPlaces,
)
from moefabric.workload.collectives.schedule import Call, Via

_Key = TypeVar("_Key")


class ProgramNetwork(Protocol):
    """The network between ranks: rates and latencies."""

    @property
    def latency_s(self) -> float:
        """Seconds from when links have carried a byte until it arrives."""

    def streams(self, sender: int, receiver: int, size: int, via: Via) -> tuple[Stream, ...]:
        """Return the streams of a message, which together carry its bytes."""

    def goodput_bps(self, link: Link) -> float:
        """Return the payload rate of a link in bits per second."""


@dataclass(frozen=True)
class NonBlockingNetwork:
    """A network with one port for each rank and no other limit.

    Attributes:
        rate_bps: Payload rate of a port in each direction, in bits per second.
        latency_s: Seconds from when the ports have carried a byte until it arrives.
    """

    rate_bps: float
    latency_s: float = 0.0

    def streams(self, sender: int, receiver: int, size: int, via: Via) -> tuple[Stream, ...]:
        """Return the only stream of a message."""
        return (Stream(size, ((f"rank{sender}", "switch"), ("switch", f"rank{receiver}"))),)

    def goodput_bps(self, link: Link) -> float:
        """Return the payload rate of a port."""
        return self.rate_bps


@dataclass(frozen=True)
class FabricNetwork:
    """Ranks on the GPUs of a fabric with lit circuits.

    Ranks of a server reach each other over its NVSwitch, and other servers over the NICs of their
    server: by the split of the two servers' bytes, or by what the schedule names.

    Attributes:
        fabric: The fabric.
        circuits: Circuits that are lit.
        places: Server and GPU of each rank.
        split: How the bytes of a pair of servers are split, as far as the pair is there; only
            proportions count. Pairs that aren't there use their circuits, or else the EPS.
        nvswitch_bps: Rate of a GPU's NVLinks in each direction, in bits per second.
        latency_s: Seconds from when the links have carried a byte until it arrives.
    """

    fabric: Fabric
    circuits: CircuitSet
    places: tuple[tuple[str, int], ...]
    split: Mapping[tuple[str, str], Share] | None = None
    nvswitch_bps: float = DEFAULT_NVSWITCH_BPS
    latency_s: float = 0.0

    @classmethod
    def filled(cls, fabric: Fabric, circuits: CircuitSet, ranks: int) -> "FabricNetwork":
        """Return a network with one rank a GPU, server by server.

        Raises:
            SpecError: If there are more ranks than GPUs.
        """
        gpus = [(s, gpu) for s in fabric.primary_servers for gpu in range(fabric.gpus)]
        if ranks > len(gpus):
            fault = f"{ranks} ranks need as many GPUs, and fabric {fabric.name} has {len(gpus)}"
            raise SpecError([("ranks", fault)])
        return cls(fabric, circuits, tuple(gpus[:ranks]))

    @property
    def rank_places(self) -> RankPlaces:
        """The network as schedules see it: servers, circuits, and the GPU of each NIC."""
        servers = [server for server, _ in self.places]
        return RankPlaces.on_fabric(self.fabric, self.circuits, servers)

    def streams(self, sender: int, receiver: int, size: int, via: Via) -> tuple[Stream, ...]:
        """Return the streams of a message: one over the NVSwitch, or one for each path."""
        (src, src_gpu), (dst, dst_gpu) = self.places[sender], self.places[receiver]
        if src == dst:
            up, down = (f"{src}/g{src_gpu}", "nvswitch"), ("nvswitch", f"{dst}/g{dst_gpu}")
            return (Stream(size, (up, down)),)
        share = self.share(src, dst, size, via)
        result = []
        for flow in flows(self.fabric, self.circuits, [share]):
            links = route(self.fabric, self.circuits, flow)
            if not links:
                raise SpecError([("fabric", f"{src} has no way to {dst} by {flow.path}")])
            result.append(Stream(flow.bytes, links))
        return tuple(result)

    def share(self, src: str, dst: str, size: float, via: Via) -> Share:
        """Return how the bytes of a message between two servers are split."""
        lit = bool(self.circuits.between(src, dst))
        if via == "eps" or (not via and not lit and (src, dst) not in (self.split or {})):
            return Share(src, dst, 0.0, size)
        if via == "light" or not self.split or (src, dst) not in self.split:
            return Share(src, dst, size, 0.0)
        return self.split[src, dst].of_size(size)

    def goodput_bps(self, link: Link) -> float:
        """Return the payload rate of a link."""
        return self.nvswitch_bps if "nvswitch" in link else fluid.goodput_bps(self.fabric, link)


@dataclass(frozen=True)
class ModelledTimes:
    """When each step of a program starts and ends.

    Attributes:
        program: The program.
        steps: The span of each step, by rank.
    """

    program: Program
    steps: tuple[tuple[StepTimes, ...], ...]

    @property
    def seconds(self) -> float:
        """When the last step ends."""
        return max((span.end_s for own in self.steps for span in own), default=0.0)

    @cached_property
    def calls(self) -> tuple[StepTimes, ...]:
        """The span of each call, from its first rank's start to its last rank's end."""
        spans = self._spans(lambda step: step.call)
        return tuple(spans.get(n, StepTimes(0.0, 0.0)) for n in range(len(self.program.calls)))

    @cached_property
    def phases(self) -> dict[tuple[int, str], StepTimes]:
        """Start and end of each phase over all ranks, by position of its call and its name."""
        return self._spans(lambda step: (step.call, step.phase))

    def _spans(self, key: Callable[[ProgramStep], _Key]) -> dict[_Key, StepTimes]:
        """Return the span of the steps of calls that have a key in common."""
        groups: defaultdict[_Key, list[StepTimes]] = defaultdict(list)
        for rank, spans in enumerate(self.steps):
            for step, span in zip(self.program.steps(rank), spans, strict=True):
                if step.call != NO_CALL:
                    groups[key(step)].append(span)
        return {
            one: StepTimes(min(span.start_s for span in own), max(span.end_s for span in own))
            for one, own in groups.items()
        }


def predict(program: Program, network: ProgramNetwork, *, add_bps: float = inf) -> ModelledTimes:
    """Return the times of a program on a network.

    Args:
        program: The program.
        network: What carries its messages.
        add_bps: Rate at which a rank adds what it has received, in bits per second.

    Raises:
        SpecError: If steps wait for each other, so that the program never ends.
    """
    lowered = _SimulatedSteps(program, network, add_bps)
    links = {link for step in lowered.steps for s in step.streams for link in s.links}
    rates = {link: network.goodput_bps(link) for link in links}
    times = event_simulation.simulate(lowered.steps, rates)
    spans = (
        tuple(StepTimes(times[first].start_s, times[last].end_s) for first, last in own)
        for own in lowered.positions
    )
    return ModelledTimes(program, tuple(spans))


class _SimulatedSteps:
    """The steps of the event simulation, and where the steps of each rank are among them."""

    def __init__(self, program: Program, network: ProgramNetwork, add_bps: float) -> None:
        self._network, self._add_bps = network, add_bps
        self._ranks = [list(program.steps(rank)) for rank in range(program.ranks)]
        self.steps: list[event_simulation.Step] = []
        self.positions: list[list[tuple[int, int]]] = [[(-1, -1)] * len(s) for s in self._ranks]
        """First and last step of the simulation of each step, by rank."""
        self._carried: dict[int, int] = {}
        """Position of the step that carries each transfer."""
        self._receivers = {
            step.transfer: (rank, step)
            for rank, steps in enumerate(self._ranks)
            for step in steps
            if step.kind in {"receive", "receive_add"}
        }
        self._lower()

    def _lower(self) -> None:
        """Lower all steps, each after those that it waits for."""
        places = ((rank, step.number) for rank, own in enumerate(self._ranks) for step in own)
        order = TopologicalSorter[tuple[int, int]](dict.fromkeys(places, ()))
        for rank, steps in enumerate(self._ranks):
            for step in steps:
                place, before = (rank, step.number), [(rank, number) for number in step.after]
                if step.kind == "send":
                    receiver, receive = self._receivers[step.transfer]
                    order.add((receiver, receive.number), place)
                    before += self._held_by(receiver, receive)
                order.add(place, *before)
        try:
            for rank, number in order.static_order():
                self._add(rank, self._ranks[rank][number])
        except CycleError as error:
            rank, number = min(error.args[1])
            fault = f"step {number} waits for itself, through other ranks"
            raise SpecError([(f"program, rank {rank}", fault)]) from None

    def _held_by(self, receiver: int, receive: ProgramStep) -> list[tuple[int, int]]:
        """Return the steps of the receiver that a sender has to wait for.

        Bytes may arrive before the operation of the receiver starts if no earlier step of the call
        touches their place: the call's own buffers are there.
        """
        steps = self._ranks[receiver]
        early = all(steps[number].operation != receive.operation for number in receive.after)
        return [] if early else [(receiver, number) for number in receive.after]

    def _add(self, rank: int, step: ProgramStep) -> None:
        after = {self.positions[rank][number][1] for number in step.after}
        seconds = step.duration_s
        first = len(self.steps)
        if step.kind == "send" and step.extent:
            receiver, receive = self._receivers[step.transfer]
            held = self._held_by(receiver, receive)
            after |= {self.positions[place][number][1] for place, number in held}
            streams = self._network.streams(rank, receiver, step.extent.size, step.via)
            self.steps += [
                event_simulation.Step(tuple(sorted(after)), streams=(stream,), lane=stream.links)
                for stream in streams
            ]
            after = set(range(first, len(self.steps)))
            self._carried[step.transfer] = len(self.steps)
        elif step.kind in {"receive", "receive_add"}:
            carried = self._carried[step.transfer]
            if self._network.latency_s:
                arrival = event_simulation.Step((carried,), self._network.latency_s)
                self.steps.append(arrival)
                after.add(len(self.steps) - 1)
            after.add(carried)
            if step.kind == "receive_add" and step.extent:
                seconds = 8 * step.extent.size / self._add_bps
        self.steps.append(event_simulation.Step(tuple(sorted(after)), seconds))
        self.positions[rank][step.number] = first, len(self.steps) - 1


@dataclass(frozen=True)
class Bandwidth:
    """Speed of a collective in bytes per second.

    Attributes:
        algorithm: nccl-tests' `algbw`, in bytes per second rather than in GB/s.
        bus: nccl-tests' `busbw`, likewise.
    """

    algorithm: float
    bus: float


def bandwidth(call: Call, seconds: float) -> Bandwidth:
    """Return the bandwidths of a collective that took some time, which is greater than 0."""
    algorithm = counted_bytes(call) / seconds
    return Bandwidth(algorithm, algorithm * bus_factor(call))


def bound_s(call: Call, rank_bps: float, server_bps: float | None = None) -> float:
    """Return a time below which no schedule ends.

    Args:
        call: The collective, with the servers of its ranks.
        rank_bps: Payload rate of each rank's port in each direction, bits per second.
        server_bps: Payload rate of all NICs of a server together; None if it is no limit.
    """
    seconds = 8 * port_bytes(call) / rank_bps
    if server_bps is None:
        return seconds
    servers = [call.server(rank) for rank in range(call.ranks)]
    return max(seconds, 8 * port_bytes(call, servers) / server_bps)
