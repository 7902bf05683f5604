"""What agents load of a program: buffers, inputs, expected results and steps of each rank."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from moefabric.core.units import NS_PER_S
from moefabric.execution.programs.placed_programs import Connection, Part, PlacedProgram
from moefabric.workload.collectives.program import DEFAULT_NVSWITCH_BPS, ProgramStep
from moefabric.workload.collectives.schedule import (
    REDUCTIONS,
    BufferName,
    Call,
    Extent,
    buffer_sizes,
)

Json = dict[str, Any]
Terms = list[tuple[int, int]]
"""Ranks whose patterns are added, each with an offset in its pattern."""

_STRIDE: Final = 7919
"""Distance of the seeds of two ranks: a prime, so that their patterns have little in common."""


def program_requests(
    placed: PlacedProgram, paces: Mapping[Connection, float | None]
) -> dict[str, list[Json]]:
    """Return the ranks of each server, as its agent loads them.

    Args:
        paces: Pace of each connection in wall bits per second; None for unlimited.
    """
    by_server: dict[str, list[Json]] = {}
    for rank in range(placed.program.ranks):
        request = _RankRequest(placed, rank, paces).request()
        by_server.setdefault(placed.server(rank), []).append(request)
    return by_server


class _RankRequest:
    """The request of one rank.

    Attributes:
        buffers: Number of each buffer that a call has on this rank.
    """

    def __init__(
        self, placed: PlacedProgram, rank: int, paces: Mapping[Connection, float | None]
    ) -> None:
        self.placed, self.rank, self.paces = placed, rank, paces
        self.calls = [
            (number, call, call.ranks.index(rank))
            for number, call in enumerate(placed.program.calls)
            if rank in call.ranks
        ]
        sizes = {
            (number, name): size
            for number, call, index in self.calls
            for name, size in call.schedule.buffers[index].items()
        }
        self.buffers = {buffer: position for position, buffer in enumerate(sizes)}
        self.sizes = list(sizes.values())

    def request(self) -> Json:
        """Return the request."""
        return {
            "rank": self.rank,
            "buffers": self.sizes,
            "inputs": list(self._contents(call_inputs)),
            "expected": list(self._contents(call_results)),
            "steps": self._steps(),
        }

    def _contents(
        self, contents: Callable[[Call, int], Iterator[tuple[Extent, Terms]]]
    ) -> Iterator[Json]:
        """Yield the ranges of bytes that are filled or compared."""
        for number, call, index in self.calls:
            for extent, terms in contents(call.call, index):
                if extent.size:
                    yield {
                        "buffer": self.buffers[number, extent.buffer],
                        "offset": extent.offset,
                        "bytes": extent.size,
                        "element": call.call.element,
                        "terms": [[number + rank * _STRIDE, at] for rank, at in terms],
                    }

    def _steps(self) -> list[Json]:
        """Return the steps; a message has one for each of its parts."""
        placed = self.placed
        steps: list[Json] = []
        positions: list[range] = []
        for step in placed.steps[self.rank]:
            first = len(steps)
            after = [position for other in step.after for position in positions[other]]
            common: Json = {"kind": step.kind, "after": after}
            if step.extent is None:
                wall_ns = round(step.duration_s * placed.scale.dilation * NS_PER_S)
                steps.append({**common, "wall_ns": wall_ns})
            elif step.source is not None:
                places = self._place(step, step.extent) | self._place(step, step.source, "source_")
                steps.append({**common, **places, "bytes": step.extent.size})
            else:
                common |= self._place(step, step.extent)
                common["element"] = placed.program.calls[step.call].call.element
                common["peer"] = placed.server(step.peer)
                common["granted"] = step.transfer in placed.early
                parts = placed.parts[step.transfer]
                steps += [{**common, **self._part(step, step.extent, part)} for part in parts]
            positions.append(range(first, len(steps)))
        return steps

    def _place(self, step: ProgramStep, extent: Extent, prefix: str = "") -> Json:
        number = self.buffers[step.call, extent.buffer]
        return {f"{prefix}buffer": number, f"{prefix}offset": extent.offset}

    def _part(self, step: ProgramStep, extent: Extent, part: Part) -> Json:
        placed = self.placed
        fields: Json = {
            "message": part.number,
            "offset": extent.offset + part.offset,
            "bytes": part.size,
            "path": part.path,
        }
        if step.kind == "send" and part.path:
            ends = placed.server(self.rank), placed.server(step.peer)
            fields["rate_bps"] = self.paces.get((*ends, part.path))
        elif step.kind == "send":
            seconds = 8 * part.size * placed.scale.bytes / DEFAULT_NVSWITCH_BPS
            fields["wall_ns"] = round(seconds * placed.scale.dilation * NS_PER_S)
        return fields


def call_inputs(call: Call, rank: int) -> Iterator[tuple[Extent, Terms]]:
    """Yield the contents of a rank's buffers before a collective."""
    match call.kind:
        case "all_to_all" | "gather":
            yield Extent("input", 0, buffer_sizes(call, rank).get("input", 0)), [(rank, 0)]
        case "all_gather":
            yield call.shard(rank), [(rank, call.shard(rank).offset)]
        case "broadcast" | "scatter" if rank == call.root:
            name: BufferName = "output" if call.kind == "broadcast" else "input"
            yield Extent(name, 0, call.size), [(rank, 0)]
        case kind if kind in REDUCTIONS:
            yield Extent("output", 0, call.size), [(rank, 0)]


def call_results(call: Call, rank: int) -> Iterator[tuple[Extent, Terms]]:
    """Yield the contents of a rank's buffers after a collective, by its definition."""
    ranks = range(call.ranks)
    match call.kind:
        case "all_to_all":
            for source in ranks:
                sent = call.input_part(source, rank)
                yield call.output_part(rank, source), [(source, sent.offset)]
        case "all_gather":
            for shard in map(call.shard, ranks):
                yield shard, [(shard.offset // max(1, call.size), shard.offset)]
        case "gather" if rank == call.root:
            for source in ranks:
                yield Extent("output", source * call.size, call.size), [(source, 0)]
        case "scatter":
            shard = call.shard(rank)
            yield Extent("output", 0, shard.size), [(call.root, shard.offset)]
        case "broadcast":
            yield Extent("output", 0, call.size), [(call.root, 0)]
        case "reduce_scatter":
            shard = call.shard(rank)
            yield shard, [(other, shard.offset) for other in ranks]
        case "all_reduce":
            yield Extent("output", 0, call.size), [(other, 0) for other in ranks]
        case "reduce" if rank == call.root:
            yield Extent("output", 0, call.size), [(other, 0) for other in ranks]
