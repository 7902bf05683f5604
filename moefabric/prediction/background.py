"""Flows that stand for regions which exist in the model only, with rates over time.

The model says at which rate each flow of the whole cluster proceeds at each instant. A flow that
crosses a link of an emulated region is replayed: as pieces of a constant rate each, sent one after
another by a server that stands for the modelled one. A piece has the model's bytes and the model's
rate. It is a paced TCP flow, as in the whole cluster: it keeps to the model's rate where the link
has room for it. Where flows of the emulated region are faster than in the model, it takes its fair
share.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from moefabric.core.flows import Flow
from moefabric.simulator.fair_sharing import RateChange

_TOLERANCE: Final = 0.05
"""Relative difference of rates, and of instants as a part of the task, that a piece ignores."""
LEAST_WALL_S: Final = 0.06
"""Least duration of a piece, in wall seconds: agents start within some milliseconds."""


@dataclass(frozen=True)
class RatedFlow:
    """A flow of the model, with its rate over time.

    Attributes:
        flow: The flow, in bytes of the model.
        changes: Changes of its rate, the first one being its start.
        end_s: Its end, in seconds from the same beginning as the changes.
    """

    flow: Flow
    changes: Sequence[RateChange]
    end_s: float


@dataclass(frozen=True)
class Piece:
    """Flows that start together and take equally long, in seconds from the start of their task."""

    after_s: float
    seconds: float
    flows: tuple[Flow, ...]


def pieces(rated: Iterable[RatedFlow], start_s: float, least_s: float = 0.0) -> list[Piece]:
    """Divide the flows of a task into pieces of a constant rate, in the order of their starts.

    Args:
        rated: The flows.
        start_s: When their task starts, in seconds from the same beginning as their rates.
        least_s: Least duration of a piece, unless the whole flow is shorter.
    """
    listed = list(rated)
    task_s = max((flow.end_s for flow in listed), default=start_s) - start_s
    flows_at: defaultdict[tuple[int, int], list[tuple[float, float, Flow]]] = defaultdict(list)
    step_s = task_s * _TOLERANCE
    for rated_flow in listed:
        for first_s, last_s, size in _constant(rated_flow, max(step_s, least_s)):
            key = round((first_s - start_s) / step_s), round((last_s - start_s) / step_s)
            way = rated_flow.flow.src, rated_flow.flow.dst, rated_flow.flow.path
            flows_at[key].append((first_s - start_s, last_s - first_s, Flow(*way, size)))
    unordered = []
    for part in flows_at.values():
        starts_s, lasts_s, flows = zip(*part, strict=True)
        unordered.append(Piece(min(starts_s), max(lasts_s), flows))
    return sorted(unordered, key=lambda piece: piece.after_s)


def _constant(rated: RatedFlow, least_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield start, end and bytes of the parts in which a flow has about one rate.

    A part shorter than `least_s` is merged with the part before it.
    """
    ends = [*(instant for instant, _ in rated.changes[1:]), rated.end_s]
    first_s, size, rate_bps = rated.changes[0][0], 0.0, rated.changes[0][1]
    remaining = rated.flow.bytes
    for (instant_s, next_bps), end_s in zip(rated.changes, ends, strict=True):
        differs = abs(next_bps - rate_bps) > _TOLERANCE * rate_bps
        if differs and instant_s - first_s >= least_s and rated.end_s - instant_s >= least_s:
            yield first_s, instant_s, size
            remaining -= size
            first_s, size, rate_bps = instant_s, 0.0, next_bps
        size += next_bps / 8 * (end_s - instant_s)
    yield first_s, rated.end_s, remaining


def average(rated: Iterable[RatedFlow], seconds: float) -> Piece:
    """Return one piece that sends all bytes of an iteration at their average rates.

    Args:
        rated: The flows of all tasks of the iteration.
        seconds: Duration of the iteration.
    """
    sizes: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for flow in (rated_flow.flow for rated_flow in rated):
        sizes[flow.src, flow.dst, flow.path] += flow.bytes
    return Piece(0.0, seconds, tuple(Flow(*way, size) for way, size in sizes.items()))
