"""Runs programs on bytes in memory, in any order that their dependencies allow.

Plug-in schedules are tested with it: a schedule is right if every order gives the right bytes. A
send reads its bytes when it ends, and what it sent arrives at any later time, so that missing
dependencies show as wrong bytes in some orders.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

from moefabric.core.errors import SpecError
from moefabric.workload.collectives.program import NO_CALL, Program, ProgramStep
from moefabric.workload.collectives.schedule import (
    REDUCTIONS,
    BufferName,
    Call,
    Extent,
    Schedule,
    buffer_sizes,
)

Buffers = dict[BufferName, bytearray]
"""The buffers of a rank for a call."""
Choice = Callable[[int], int]
"""Returns one of the numbers below its argument: which of the ready steps is next."""


def first(_count: int) -> int:
    """Choose the step that has been ready for longest."""
    return 0


def execute(program: Program, inputs: Mapping[tuple[int, int], Buffers], choice: Choice) -> None:
    """Run a program on its buffers.

    Args:
        program: The program.
        inputs: The buffers of (call, rank), which the run changes.
        choice: Which of the ready steps is next, such as `random.Random(1).randrange`.

    Raises:
        SpecError: If steps wait for each other, so that the program never ends.
    """
    steps = [list(program.steps(rank)) for rank in range(program.ranks)]
    waits = [[len(step.after) for step in own] for own in steps]
    followers: list[list[list[int]]] = [[[] for _ in own] for own in steps]
    for rank, own in enumerate(steps):
        for step in own:
            for before in step.after:
                followers[rank][before].append(step.number)
    messages: dict[int, bytes] = {}
    waiting: dict[int, ProgramStep] = {}
    receivers: dict[int, int] = {}
    ready = [
        (rank, number) for rank, own in enumerate(waits) for number, n in enumerate(own) if not n
    ]
    left = sum(map(len, steps))
    while ready:
        rank, number = ready.pop(choice(len(ready)))
        step = steps[rank][number]
        if step.kind in {"receive", "receive_add"} and step.transfer not in messages:
            waiting[step.transfer], receivers[step.transfer] = step, rank
            continue
        _run(step, inputs.get((step.call, rank), {}), messages, program)
        if step.kind == "send" and step.transfer in waiting:
            ready.append((receivers[step.transfer], waiting.pop(step.transfer).number))
        left -= 1
        for follower in followers[rank][number]:
            waits[rank][follower] -= 1
            if not waits[rank][follower]:
                ready.append((rank, follower))
    if left:
        raise SpecError([("program", f"{left} steps wait for each other and never start")])


def _run(step: ProgramStep, buffers: Buffers, messages: dict[int, bytes], program: Program) -> None:
    if step.call == NO_CALL or step.extent is None:
        return
    extent = step.extent
    place = slice(extent.offset, extent.end)
    if step.kind == "send":
        messages[step.transfer] = bytes(buffers[extent.buffer][place])
    elif step.kind == "receive":
        buffers[extent.buffer][place] = messages.pop(step.transfer)
    elif step.kind == "receive_add":
        element = program.calls[step.call].call.element
        own, other = bytes(buffers[extent.buffer][place]), messages.pop(step.transfer)
        buffers[extent.buffer][place] = added(own, other, element)
    elif step.source is not None:
        source = step.source
        data = buffers[source.buffer][source.offset : source.end]
        buffers[extent.buffer][place] = data


def added(one: bytes, other: bytes, element: int) -> bytes:
    """Add little-endian numbers of `element` bytes, each without its overflow."""
    return b"".join(
        (
            (
                int.from_bytes(one[at : at + element], "little")
                + int.from_bytes(other[at : at + element], "little")
            )
            % (1 << 8 * element)
        ).to_bytes(element, "little")
        for at in range(0, len(one), element)
    )


def run_call(
    call: Call, schedule: Schedule, data: Sequence[bytes], choice: Choice = first
) -> list[bytes]:
    """Run one collective.

    Args:
        call: The collective.
        schedule: Its steps.
        data: What each rank has before: its input, or its output in place; for an all-gather its
            shard.
        choice: Which of the ready steps is next.

    Returns:
        The output of each rank.
    """
    inputs = {(0, rank): filled(call, schedule, rank, own) for rank, own in enumerate(data)}
    execute(Program.of_call(call, schedule), inputs, choice)
    return [bytes(inputs[0, rank].get("output", b"")) for rank in range(call.ranks)]


def filled(call: Call, schedule: Schedule, rank: int, data: bytes) -> Buffers:
    """Return the buffers of a rank before a collective."""
    buffers = {name: bytearray(size) for name, size in schedule.buffers[rank].items()}
    if data:
        place = place_before(call, rank)
        buffers[place.buffer][place.offset : place.end] = data
    return buffers


def place_before(call: Call, rank: int) -> Extent:
    """Return where a rank has its bytes before a collective."""
    if call.kind == "all_gather":
        return call.shard(rank)
    buffer: BufferName = "input" if call.kind in {"all_to_all", "gather", "scatter"} else "output"
    return Extent(buffer, 0, buffer_sizes(call, rank).get(buffer, 0))


def expected(call: Call, data: Sequence[bytes]) -> list[dict[Extent, bytes]]:
    """Return what each rank has after a collective, by the range of its output.

    Computed from the meaning of the collective alone. Ranges that may hold partial results are
    left out.
    """
    ranks = range(call.ranks)
    if call.kind == "all_to_all":
        return [
            {
                call.output_part(rank, source): _part(data[source], call.input_part(source, rank))
                for source in ranks
            }
            for rank in ranks
        ]
    if call.kind in REDUCTIONS:
        whole = reduce(partial(added, element=call.element), data)
    else:
        whole = data[call.root] if call.kind in {"broadcast", "scatter"} else b"".join(data)
    if call.kind in {"reduce_scatter", "scatter"}:
        shards = [call.shard(rank) for rank in ranks]
        starts = [shard.offset if call.kind == "reduce_scatter" else 0 for shard in shards]
        return [
            {Extent("output", start, shard.size): _part(whole, shard)}
            for start, shard in zip(starts, shards, strict=True)
        ]
    at_root = call.kind in {"reduce", "gather"}
    result = {Extent("output", 0, len(whole)): whole}
    return [{} if at_root and rank != call.root else result for rank in ranks]


def _part(data: bytes, extent: Extent) -> bytes:
    return data[extent.offset : extent.end]
