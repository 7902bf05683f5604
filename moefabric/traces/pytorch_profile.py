"""PyTorch profiles (Kineto, Chrome's trace format) as graphs.

Kernels of computation and copies become computation, NCCL's kernels collectives. In a profile of
the CPU alone, operators are computation, and calls of c10d (gloo) collectives. A profile says
when kernels ran, not why. Computation that starts after the GPU idled while collectives ran waits
for those that have ended by then; a collective waits for the computation before its start and for
the collective before it on its stream. What the GPU idles otherwise is time of the host, and
counts as computation. So a replay in which collectives take as long as they did takes as long.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import TraceError
from moefabric.core.spans import merged
from moefabric.traces import recorded_calls as recorded
from moefabric.traces.c10d_calls import ProfiledCalls
from moefabric.traces.files import (
    as_time,
    is_count,
    json_list,
    rank_files,
    read_json,
    refuse_copies,
)
from moefabric.traces.recorded_calls import Activity, RecordedCall
from moefabric.workload.graphs.execution_graph import WORLD, ExecutionGraph, Node

_GPU_WORK: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LEAST_S: Final = 1e-9
"""Stretches of computation that are shorter come from rounding."""
_NO_SIZES: Final = "NCCL kernels without sizes (PyTorch before 2.3) are computation"


@dataclass(frozen=True, slots=True)
class Profile:
    """Activities on the GPU of a rank, ordered by start.

    Attributes:
        compute: Kernels and copies, or operators.
        collectives: NCCL's kernels, or calls of c10d.
        notes: What was left out or assumed.
    """

    path: Path
    compute: tuple[Activity, ...]
    collectives: tuple[Activity, ...]
    notes: tuple[str, ...] = ()


def is_profile(head: bytes) -> bool:
    """Return whether a file is a trace in Chrome's format that PyTorch wrote."""
    known = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"')
    return head.lstrip()[:1] == b"{" and any(key in head for key in known)


class PytorchProfileReader:
    """Reads the files that PyTorch's profiler exports, one for each rank."""

    name = "kineto"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether a file is a profile."""
        return is_profile(head)

    def read(self, path: Path) -> ExecutionGraph:
        """Read the files of all ranks."""
        files = rank_files(path)
        refuse_copies(files)
        groups: dict[str, tuple[int, ...]] = {}
        ranks, notes = {}, list[str]()
        for rank, file in files.items():
            profile = _with_sizes_only(read_profile(file), notes)
            notes += profile.notes
            calls = [_call(profile, n, call, groups) for n, call in enumerate(profile.collectives)]
            ranks[rank] = timed_nodes(calls, profile)
        world = max([len(files), *(rank + 1 for of in groups.values() for rank in of)])
        if groups.get(recorded.DEFAULT_GROUP) == tuple(range(world)):
            del groups[recorded.DEFAULT_GROUP]
        named = {
            rank: tuple(
                node if node.group in groups else replace(node, group=WORLD) for node in nodes
            )
            for rank, nodes in ranks.items()
        }
        return recorded.job_graph(path, named, world, groups, notes)


def read_profile(path: Path) -> Profile:
    """Read the activities on the GPU of one rank.

    Raises:
        TraceError: If the file is no profile.
    """
    document = read_json(path)
    events = json_list(path, document, "traceEvents", "events")
    activities, notes = [*_activities(path, events)], list[str]()
    if not any(map(_is_call, activities)) and (calls := ProfiledCalls(document)).has_calls:
        activities += calls.activities
        notes += dict.fromkeys(calls.notes)
    activities.sort(key=lambda activity: (activity.start_s, activity.end_s))
    collectives = [activity for activity in activities if _is_call(activity)]
    compute = [activity for activity in activities if not _is_call(activity)]
    return Profile(path, tuple(compute), tuple(collectives), tuple(notes))


def _activities(path: Path, events: list[Any]) -> Iterator[Activity]:
    for n, event in enumerate(events):
        if not isinstance(event, dict) or str(event.get("cat")) not in _GPU_WORK:
            continue
        facts = event.get("args", {})
        start, duration = as_time(event.get("ts")), as_time(event.get("dur"))
        if start is None or duration is None:
            raise TraceError(path, f"traceEvents[{n}]", "ts and dur are not microseconds")
        if not isinstance(facts, dict) or not isinstance(facts.get("stream", 0), int):
            raise TraceError(path, f"traceEvents[{n}].args", "an object with a stream is needed")
        name = str(event.get("name", ""))
        yield Activity(
            start / 1e6, (start + max(0, duration)) / 1e6, name,
            facts.get("stream", 0), facts, f"traceEvents[{n}]",
        )  # fmt: skip


def _is_call(activity: Activity) -> bool:
    return activity.name.startswith(("ncclKernel", "ncclDevKernel")) or (
        "Collective name" in activity.facts
    )


def _with_sizes_only(profile: Profile, notes: list[str]) -> Profile:
    """Return the profile with NCCL kernels whose sizes are unknown among the computation."""
    sized = [call for call in profile.collectives if "Collective name" in call.facts]
    others = [call for call in profile.collectives if "Collective name" not in call.facts]
    if others:
        notes.append(_NO_SIZES)
    compute = sorted([*profile.compute, *others], key=lambda call: (call.start_s, call.end_s))
    return replace(profile, compute=tuple(compute), collectives=tuple(sized))


def _call(
    profile: Profile, number: int, activity: Activity, groups: dict[str, tuple[int, ...]]
) -> RecordedCall:
    """Return the call of an NCCL kernel, which PyTorch describes since 2.3, or of c10d."""
    facts = activity.facts

    def fault(key: str) -> TraceError:
        return TraceError(profile.path, f"{activity.place}.args", f"{key} is {facts.get(key)!r}")

    def count(key: str) -> int:
        value = facts.get(key)
        if not is_count(value):
            raise fault(key)
        return value

    kind = recorded.call_kind(str(facts["Collective name"]))
    if kind in {None, "wait", "init"}:
        raise fault("Collective name")
    group = str(facts.get("Process Group Name", WORLD))
    if "Process Group Ranks" in facts:
        groups[group] = _ranks(facts["Process Group Ranks"], facts.get("Group size"))
        if not groups[group] or max(groups[group]) >= recorded.MAX_RANKS:
            raise fault("Process Group Ranks")
    width = recorded.TYPE_BYTES.get(str(facts.get("dtype", "")).lower())
    if width is None:
        raise fault("dtype")
    end = {"send": "Dst Rank", "receive": "Src Rank"}.get(kind, "Root")
    other = 0 if end == "Root" and end not in facts else count(end)
    node = recorded.call_node(number, activity.name, kind, group, other)
    size = 0 if kind == "barrier" else count("In msg nelems") * width
    splits = _ranks(facts.get("In split size", "[]"), None)
    rows = sum(splits)
    if kind == "all_to_all" and len(set(splits)) > 1 and rows and size % rows == 0:
        node = replace(node, splits=tuple(split * (size // rows) for split in splits))
    return RecordedCall(replace(node, size=size))


def _ranks(literal: object, size: object) -> tuple[int, ...]:
    """Return numbers such as `[0, 1, 2, ...]`, whose end the profiler leaves out beyond 30."""
    text = str(literal).replace(" ", "").strip("[]").split(",")
    numbers = [int(word) for word in text if word.isdecimal() and len(word) < 19]
    if "..." in text and len(numbers) > 1 and is_count(size, recorded.MAX_RANKS + 1) and size:
        step = numbers[1] - numbers[0]
        return tuple(numbers[0] + step * n for n in range(size))
    return tuple(numbers) if len(numbers) == len([word for word in text if word]) else ()


def timed_nodes(calls: Sequence[RecordedCall], profile: Profile) -> tuple[Node, ...]:
    """Return the operations of a rank in the order and with the computation of its profile.

    Args:
        calls: Communication in the order of the NCCL kernels; waits are left out.
        profile: What ran on the rank's GPU.

    Raises:
        TraceError: If there are other kernels of communication in the profile than calls.
    """
    nodes = [call.node for call in calls if call.node.kind != "compute"]
    kernels = profile.collectives
    if len(nodes) != len(kernels):
        fault = f"{len(kernels)} NCCL kernels, but {len(nodes)} calls of the execution trace"
        raise TraceError(profile.path, "traceEvents", fault)
    return tuple(_ordered(nodes, profile))


def _ordered(nodes: Sequence[Node], profile: Profile) -> Iterator[Node]:
    """Yield collectives, and computation between their starts and the ends of waits, in order."""
    compute, kernels = profile.compute, profile.collectives
    if not compute and not kernels:
        return
    waits = list(_waits(compute, kernels))
    waited_s = [0.0, *accumulate(end - start for start, end in waits)]
    starts = [start for start, _ in waits]

    def waited_by(at_s: float) -> float:
        """Return the seconds of waits until a time."""
        n = bisect_right(starts, at_s)
        return waited_s[n] - (max(0.0, waits[n - 1][1] - at_s) if n else 0.0)

    last_s = min(activity.start_s for activity in (*compute, *kernels))
    end_s = max(activity.end_s for activity in (*compute, *kernels))
    cuts = sorted(
        [(kernel.start_s, 0, n) for n, kernel in enumerate(kernels)]
        + [(resumed_s, 1, n) for n, (_, resumed_s) in enumerate(waits)]
        + [(end_s, 2, 0)]
    )
    streams = {number: n + 1 for n, number in enumerate(sorted({k.stream for k in kernels}))}
    by_end = sorted(range(len(kernels)), key=lambda n: kernels[n].end_s)
    ends_s = [kernels[n].end_s for n in by_end]
    number, waited_for = max((node.number for node in nodes), default=-1), 0
    pending, before = tuple[int, ...](), tuple[int, ...]()
    for at_s, what, n in cuts:
        duration_s = at_s - last_s - (waited_by(at_s) - waited_by(last_s))
        if duration_s > _LEAST_S:
            number += 1
            yield Node(number, "compute", "", pending, duration_s, stream=recorded.COMPUTE_STREAM)
            pending, before = (), (number,)
        last_s = at_s
        if what == 0:
            yield replace(nodes[n], after=before, stream=streams[kernels[n].stream])
        elif what == 1:
            ended = bisect_right(ends_s, at_s)
            pending = (*pending, *(nodes[place].number for place in by_end[waited_for:ended]))
            waited_for = ended


def _waits(
    compute: Sequence[Activity], kernels: Sequence[Activity]
) -> Iterator[tuple[float, float]]:
    """Yield the intervals in which no computation ran, but collectives, one of which ended."""
    by_end = sorted(kernels, key=lambda kernel: kernel.end_s)
    ends_s = [kernel.end_s for kernel in by_end]
    idle_s = min((activity.start_s for activity in (*compute, *kernels)), default=0.0)
    for start_s, end_s in [*((work.start_s, work.end_s) for work in compute), (inf, inf)]:
        if start_s > idle_s:
            ended = by_end[bisect_right(ends_s, idle_s) : bisect_right(ends_s, start_s)]
            yield from merged((max(kernel.start_s, idle_s), kernel.end_s) for kernel in ended)
        idle_s = max(idle_s, end_s)
