"""Calls of PyTorch's operators for communication (`c10d::allreduce_`), as gloo and others run them.

NCCL describes its calls itself (`record_param_comms`, and the facts of its kernels); other backends
leave the operators and their arguments, which don't name the group. The group is that of all ranks
unless its size contradicts the arguments.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, Final

from moefabric.core.spans import merged
from moefabric.traces import recorded_calls as recorded
from moefabric.traces.files import as_time, is_count
from moefabric.traces.recorded_calls import Activity

PREFIX: Final = "c10d::"
GUESSED: Final = (
    "operators of c10d don't name their group: calls that suit several are taken for those of the "
    "largest one"
)
"""Note on groups that were not recorded."""
NO_SHAPES: Final = "calls of c10d without sizes (profile with record_shapes=True) are computation"
_WORK: Final = ("gloo:", "mpi:", "ucc:", "xccl:")
"""Beginning of the name of the work that an operator starts."""


@dataclass(frozen=True)
class Arguments:
    """Positions of an operator's arguments.

    Attributes:
        sent: The tensors whose size counts: those of the rank, or all parts of a scatter.
        splits: Rows for each rank.
        root: Rank of the root, or of the other end of a message.
        whole: Tensors that have `sent` of all ranks, or a part of it for each.
    """

    sent: int
    splits: int | None = None
    root: int | None = None
    whole: tuple[int, int] | None = None


_ARGUMENTS: Final[Mapping[str, Arguments]] = {
    "alltoallbase": Arguments(1, splits=4),
    "alltoall": Arguments(1),
    "allreduce": Arguments(0),
    "allreducecoalesced": Arguments(0),
    "allgather": Arguments(1, whole=(0, 1)),
    "allgatherbase": Arguments(1, whole=(0, 1)),
    "allgathercoalesced": Arguments(1),
    "allgatherintotensorcoalesced": Arguments(1, whole=(0, 1)),
    "reducescatter": Arguments(1, whole=(1, 0)),
    "reducescatterbase": Arguments(1, whole=(1, 0)),
    "reducescattertensorcoalesced": Arguments(1, whole=(1, 0)),
    "broadcast": Arguments(0, root=2),
    "reduce": Arguments(0, root=3),
    "gather": Arguments(1, root=3),
    "scatter": Arguments(0, root=3),
    "barrier": Arguments(0),
    "monitoredbarrier": Arguments(0),
    "send": Arguments(0, root=2),
    "recv": Arguments(0, root=2),
    "recvanysource": Arguments(0),
}
"""Positions by the letters of operators (torch/csrc/distributed/c10d/Ops.cpp, PyTorch 2.14)."""


def arguments_of(name: str) -> Arguments | None:
    """Return the positions of the arguments of an operator of c10d; None for any other name."""
    return _ARGUMENTS.get(recorded.letters(name)) if name.startswith(PREFIX) else None


def called_group(
    groups: Mapping[str, Sequence[int]],
    splits: Sequence[object],
    sizes: Sequence[int | None],
    notes: list[str],
) -> tuple[str, int | None]:
    """Return the likely group of a call, and its ranks as far as the arguments show them.

    Args:
        groups: Ranks of each group of the caller.
        splits: Rows for each rank; empty for even ones.
        sizes: Elements of all ranks, and of one rank; empty if the call doesn't tell.
        notes: Gets a note if other groups are as likely.
    """
    ranks = len(splits) or None
    if sizes and not splits:
        whole, part = sizes
        ranks = whole // part if whole and part and whole % part == 0 else None
    fitting = [name for name, of in groups.items() if ranks in (None, len(of))]
    if len(fitting) > 1:
        notes.append(GUESSED)
    largest = max(fitting, key=lambda name: len(groups[name]), default=recorded.DEFAULT_GROUP)
    return largest, ranks


# --- profiles ------------------------------------------------------------------------------------


class ProfiledCalls:
    """Operators of a profile of the CPU: computation, and calls of c10d until their work has ended.

    Calls have the facts of a kernel of NCCL.

    Args:
        document: The profile, whose `distributedInfo` lists the groups of its rank.

    Attributes:
        activities: Calls, and operators that are neither part of a call nor of another operator.
        notes: What was assumed.
        has_calls: Whether there are calls.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.notes: list[str] = []
        self._groups = dict(_listed_groups(document))
        events = [*_events(document)]
        calls = [event for event in events if arguments_of(event.name)]
        self.activities = [*self._calls(calls, [e for e in events if e.name.startswith(_WORK)])]
        self.activities += _computation(calls, [e for e in events if e.category == "cpu_op"])
        self.has_calls = bool(calls)

    def _calls(self, calls: list["_Event"], work: list["_Event"]) -> Iterator[Activity]:
        """Yield each call with the end of the work that it started before the next call."""
        in_order = sorted([*calls, *work], key=lambda event: event.order)
        ends: dict[int, _Event] = {}
        call = None
        for event in in_order:
            if not event.name.startswith(_WORK):
                call = event
            elif call is not None:
                ends.setdefault(id(call), event)
        for event in calls:
            started = ends.get(id(event), event)
            facts = self._facts(event, started)
            if facts is None:
                self.notes.append(NO_SHAPES)
            end_s = max(event.end_s, started.end_s)
            group = facts["Process Group Name"] if facts else ""
            number = [*self._groups].index(group) if group in self._groups else 0
            yield Activity(event.start_s, end_s, event.name, number, facts or {}, event.place)

    def _facts(self, call: "_Event", work: "_Event") -> dict[str, Any] | None:
        """Return the facts of a call; None if its sizes were not recorded."""
        places = arguments_of(call.name)
        assert places is not None
        kind = recorded.call_kind(call.name)
        elements, text = call.elements(places.sent), call.text(places.splits)
        splits = [int(word) for word in text.strip("[] ").split(",") if word.strip().isdecimal()]
        sizes = [*map(call.elements, places.whole or ())]
        group, _ = called_group(self._groups, splits, sizes, self.notes)
        facts: dict[str, Any] = {"Collective name": call.name, "Process Group Name": group}
        members = self._groups.get(group, ())
        if members:
            facts |= {"Process Group Ranks": str([*members]), "Group size": len(members)}
        root = call.text(places.root)
        if root.isdecimal():
            other = members[int(root)] if int(root) < len(members) else int(root)
            facts |= {"Root": other, "Dst Rank": other, "Src Rank": other}
        if kind == "barrier":
            return facts | {"dtype": "byte"}
        types = call.type(places.sent), work.type(0)
        width = next((name for name in types if name in recorded.TYPE_BYTES), None)
        if elements is None or width is None:
            return None
        if kind == "scatter":
            elements *= max(1, len(members))
        return facts | {"In msg nelems": elements, "dtype": width, "In split size": str(splits)}


class _Event:
    """An event of a profile."""

    def __init__(
        self, values: Mapping[str, Any], start_us: float, length_us: float, n: int
    ) -> None:
        self.name, self.category = str(values.get("name", "")), values.get("cat")
        self.start_s, self.end_s = start_us / 1e6, (start_us + max(0.0, length_us)) / 1e6
        self.thread, self.place = str(values.get("tid")), f"traceEvents[{n}]"
        self._facts = facts if isinstance(facts := values.get("args"), dict) else {}
        number = self._facts.get("Record function id")
        self.order = (number if is_count(number) else 0, self.start_s)

    def _argument(self, kind: str, position: int | None) -> Any:
        values = self._facts.get(kind)
        if not isinstance(values, list) or position is None or position >= len(values):
            return None
        return values[position]

    def text(self, position: int | None) -> str:
        """Return an argument as it was written; empty if it wasn't."""
        return str(self._argument("Concrete Inputs", position) or "")

    def type(self, position: int) -> str:
        """Return PyTorch's name of an argument's numbers, in small letters."""
        return str(self._argument("Input type", position) or "").rpartition(":")[2].lower()

    def elements(self, position: int) -> int | None:
        """Return the elements of a tensor, or of a list of them; None if they were not recorded."""
        dimensions = self._argument("Input Dims", position)
        is_named = bool(self._argument("Input type", position))
        return _elements(dimensions) if is_named and isinstance(dimensions, list) else None


def _elements(dimensions: Sequence[Any]) -> int | None:
    if all(is_count(size) for size in dimensions):
        return int(prod(dimensions))
    parts = [_elements(part) if isinstance(part, list) else None for part in dimensions]
    return None if None in parts else sum(part or 0 for part in parts)


def _events(document: Mapping[str, Any]) -> Iterator[_Event]:
    events = document.get("traceEvents")
    for n, values in enumerate(events if isinstance(events, list) else ()):
        if not isinstance(values, dict) or values.get("ph") != "X":
            continue
        start, length = as_time(values.get("ts")), as_time(values.get("dur"))
        if start is not None and length is not None:
            yield _Event(values, start, length, n)


def _listed_groups(document: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the groups of a profile's rank."""
    job = document.get("distributedInfo")
    groups = job.get("pg_config") if isinstance(job, dict) else None
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and recorded.are_ranks(ranks := group.get("ranks")):
            size = group.get("pg_size")
            everyone = range(size) if is_count(size, recorded.MAX_RANKS) else ()
            yield str(group.get("pg_name")), tuple(ranks) or tuple(everyone)


def _computation(calls: Collection[_Event], operators: list[_Event]) -> Iterator[Activity]:
    """Yield the outermost operators that neither are part of a call nor have one."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for call in calls:
        spans.setdefault(call.thread, []).append((call.start_s, call.end_s))
    merged_spans = {thread: [*merged(pairs)] for thread, pairs in spans.items()}
    ends_s: dict[str, float] = {}
    for event in sorted(operators, key=lambda event: (event.start_s, -event.end_s)):
        busy = merged_spans.get(event.thread, [])
        n = bisect_right(busy, (event.start_s, inf))
        inside = n > 0 and busy[n - 1][1] > event.start_s
        around = n < len(busy) and busy[n][0] < event.end_s
        if inside or around or event.start_s < ends_s.get(event.thread, -inf):
            continue
        ends_s[event.thread] = event.end_s
        yield Activity(event.start_s, event.end_s, event.name, 0, {}, event.place)
