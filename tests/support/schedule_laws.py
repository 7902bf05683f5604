"""Laws that every schedule of a collective obeys."""

from collections import Counter
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from random import Random

from moefabric.workload.collectives.program import transfers
from moefabric.workload.collectives.schedule import (
    Call,
    CollectiveSchedule,
    Extent,
    Schedule,
    Step,
    buffer_sizes,
    schedule_call,
)
from tests.support.collective_interpreter import expected, first, run_call


def check(algorithm: CollectiveSchedule, call: Call, rng: Random) -> Schedule:
    """Assert all laws of a call; return its schedule."""
    schedule = schedule_call(algorithm, call)
    assert_form(call, schedule)
    assert_no_races(schedule)
    assert_no_deadlock(schedule)
    assert_results(call, schedule, rng)
    return schedule


def assert_form(call: Call, schedule: Schedule) -> None:
    assert len(schedule.steps) == len(schedule.buffers) == call.ranks
    for rank, steps in enumerate(schedule.steps):
        buffers = schedule.buffers[rank]
        assert buffers.items() >= buffer_sizes(call, rank).items()
        for number, step in enumerate(steps):
            assert step.number == number
            assert all(0 <= before < number for before in step.after)
            for extent in filter(None, (step.extent, step.source)):
                assert extent.size > 0
                assert 0 <= extent.offset <= extent.end <= buffers[extent.buffer]
            assert (step.kind == "copy") == (step.source is not None)
            assert step.kind == "copy" or 0 <= step.peer < call.ranks
            assert step.peer != rank
    transfers(schedule)


def assert_no_races(schedule: Schedule) -> None:
    """Assert that steps of a rank that touch the same bytes have an order, unless both read."""
    for steps in schedule.steps:
        before: list[int] = []  # bits of all steps that end before each step starts
        for step in steps:
            bits = 0
            for number in step.after:
                bits |= before[number] | 1 << number
            before.append(bits)
        for one, other in conflicts(steps):
            first, last = sorted((one, other), key=lambda step: step.number)
            assert before[last.number] >> first.number & 1, (schedule.name, first, last)


def conflicts(steps: Sequence[Step]) -> Iterator[tuple[Step, Step]]:
    """Yield steps that touch the same bytes; additions commute, and reads do not conflict."""
    uses = [(extent, step) for step in steps for extent in touched(step)]
    uses.sort(key=lambda use: (use[0].buffer, use[0].offset))
    for number, (extent, one) in enumerate(uses, 1):
        for at in range(number, len(uses)):
            place, other = uses[at]
            if place.buffer != extent.buffer or place.offset >= extent.end:
                break
            is_addition = one.kind == other.kind == "receive_add"
            is_written = is_write(extent, one) or is_write(place, other)
            if one is not other and is_written and not is_addition:
                yield one, other


def is_write(extent: Extent, step: Step) -> bool:
    return extent is step.extent and step.kind != "send"


def touched(step: Step) -> Iterator[Extent]:
    yield step.extent
    if step.source:
        yield step.source


def assert_no_deadlock(schedule: Schedule) -> None:
    """Assert that a schedule ends even if each send waits until its receiver is ready."""
    numbers = transfers(schedule)
    graph: TopologicalSorter[object] = TopologicalSorter()
    for rank, steps in enumerate(schedule.steps):
        for step in steps:
            node = numbers.get((rank, step.number), (rank, step.number))
            graph.add(node, *(numbers.get((rank, b), (rank, b)) for b in step.after))
    graph.prepare()


def assert_results(call: Call, schedule: Schedule, rng: Random) -> None:
    """Assert that each rank has what the collective means, whatever the order of steps."""
    data = [rng.randbytes(input_size(call, rank)) for rank in range(call.ranks)]
    for choice in (first, lambda count: count - 1, rng.randrange, rng.randrange):
        outputs = run_call(call, schedule, data, choice)
        for rank, parts in enumerate(expected(call, data)):
            for extent, value in parts.items():
                got = outputs[rank][extent.offset : extent.end]
                assert got == value, (schedule.name, call.kind, call.ranks, rank, extent)


def input_size(call: Call, rank: int) -> int:
    sizes = buffer_sizes(call, rank)
    if call.kind == "all_gather":
        return call.size
    if call.kind in {"all_to_all", "gather", "scatter"}:
        return sizes.get("input", 0)
    return sizes.get("output", 0)


def sent(schedule: Schedule) -> list[int]:
    """Return the bytes that each rank sends."""
    return [sum(s.extent.size for s in steps if s.kind == "send") for steps in schedule.steps]


def received(schedule: Schedule) -> list[int]:
    """Return the bytes that each rank receives."""
    kinds = {"receive", "receive_add"}
    return [sum(s.extent.size for s in steps if s.kind in kinds) for steps in schedule.steps]


def phases(schedule: Schedule) -> Counter[str]:
    """Return the bytes that are sent in each phase."""
    count: Counter[str] = Counter()
    for steps in schedule.steps:
        for step in steps:
            if step.kind == "send":
                count[step.phase] += step.extent.size
    return count
