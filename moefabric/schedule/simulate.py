"""A discrete-event fluid simulation: steps that start as soon as those they wait for are done, and whose bytes share links while they flow.

Links are shared max-min (progressive filling, Bertsekas and Gallager, Data Networks, section 6.5.2), each stream being held to its own pace besides.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.fluid import Link

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDING: Final = 1e-9
"""Links that are fuller than full by no more than this are not; streams of which no more is left have ended."""


@dataclass(frozen=True)
class Stream:
    """Bytes over some links, at no more than `pace_bps` of payload, from `after_s` after their step's start on."""

    bytes: float
    links: tuple[Link, ...]
    pace_bps: float = inf
    after_s: float = 0.0


@dataclass(frozen=True)
class Step:
    """Starts when the steps `after` are done (by their position, all of them earlier), and no sooner than `not_before_s`.

    It lasts `seconds`, and until its streams have flown if that is longer.
    """

    after: tuple[int, ...] = ()
    seconds: float = 0.0
    streams: tuple[Stream, ...] = ()
    not_before_s: float = 0.0


@dataclass(frozen=True)
class Lasted:
    """When a step started and ended, in seconds from the beginning."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


def simulate(steps: Sequence[Step], goodput_bps: Mapping[Link, float]) -> list[Lasted]:
    """When each step starts and ends, in their order; `goodput_bps` is what a link carries of payload.

    ValueError where a step waits for itself or a later one, or a stream has no way.
    """
    for number, step in enumerate(steps):
        if any(not 0 <= before < number for before in step.after):
            raise ValueError(f"step {number} waits for {step.after}, which are not all before it")
        if any(not stream.links and stream.bytes for stream in step.streams):
            raise ValueError(f"step {number} has bytes without a way")
    return _Simulation(steps, goodput_bps).run()


def side_by_side(
    courses: Sequence[Sequence[Sequence[Step]]], goodput_bps: Mapping[Link, float]
) -> list[list[list[Lasted]]]:
    """How long the steps of each iteration of each course last: iterations follow one another, courses share but the links."""
    steps: list[Step] = []
    where: list[list[range]] = []
    for course in courses:
        where.append([])
        barrier: tuple[int, ...] = ()
        for iteration in course:
            at = len(steps)
            steps += [replace(step, after=tuple(at + n for n in step.after) or barrier) for step in iteration]
            where[-1].append(range(at, len(steps)))
            steps.append(Step(after=tuple(range(at, len(steps))) or barrier))
            barrier = (len(steps) - 1,)
    seen = simulate(steps, goodput_bps)
    return [[[seen[n] for n in places] for places in course] for course in where]


class _Due(Enum):
    """What a step comes to at an instant that is known: its start, the end of its seconds, a stream of it that starts late."""

    START = auto()
    SECONDS = auto()
    STREAM = auto()


class _Simulation:
    """Time, what flows now, and who waits for whom."""

    def __init__(self, steps: Sequence[Step], goodput_bps: Mapping[Link, float]) -> None:
        self.steps = steps
        self.started: list[float] = [0.0] * len(steps)
        self.ended: list[float] = [inf] * len(steps)
        self.waits = [len(set(step.after)) for step in steps]
        self.followers: defaultdict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(steps):
            for before in set(step.after):
                self.followers[before].append(number)
        self.streams = [stream for step in steps for stream in step.streams]
        self.water = _Water(self.streams, goodput_bps)
        counts = [len(step.streams) for step in steps]
        self.first = np.concatenate(([0], np.cumsum(counts))).astype(int).tolist()
        self.owner = np.repeat(np.arange(len(steps)), counts)
        self.parts = [1 + count for count in counts]
        """What of a step has not ended: its seconds, and each of its streams."""
        self.timers: list[tuple[float, int, int, _Due]] = []
        """Instants, in the order in which they were set where they are the same, and the step or stream that each is about."""
        self.set = 0

    def run(self) -> list[Lasted]:
        for number, waits in enumerate(self.waits):
            if not waits:
                self._ready(number, 0.0)
        now = 0.0
        while self.timers or len(self.water.flowing):
            due = self.timers[0][0] if self.timers else inf
            flown, now = self.water.flow(now, due)
            for stream in flown.tolist():
                self._part_ended(int(self.owner[stream]), now)
            while self.timers and self.timers[0][0] <= now:
                _, _, number, due_is = heapq.heappop(self.timers)
                self._due(number, due_is, now)
        return [Lasted(start, end) for start, end in zip(self.started, self.ended, strict=True)]

    def _at(self, instant: float, number: int, what: _Due) -> None:
        self.set += 1
        heapq.heappush(self.timers, (instant, self.set, number, what))

    def _due(self, number: int, what: _Due, now: float) -> None:
        match what:
            case _Due.START:
                self._start(number, now)
            case _Due.SECONDS:
                self._part_ended(number, now)
            case _Due.STREAM if self.water.pour([number]):
                self._part_ended(int(self.owner[number]), now)

    def _ready(self, number: int, now: float) -> None:
        self._at(max(now, self.steps[number].not_before_s), number, _Due.START)

    def _start(self, number: int, now: float) -> None:
        self.started[number] = now
        self._at(now + self.steps[number].seconds, number, _Due.SECONDS)
        mine = range(self.first[number], self.first[number + 1])
        for stream in mine:
            if self.streams[stream].after_s:
                self._at(now + self.streams[stream].after_s, stream, _Due.STREAM)
        self.parts[number] -= self.water.pour([n for n in mine if not self.streams[n].after_s])

    def _part_ended(self, number: int, now: float) -> None:
        self.parts[number] -= 1
        if self.parts[number]:
            return
        self.ended[number] = now
        for follower in self.followers[number]:
            self.waits[follower] -= 1
            if not self.waits[follower]:
                self._ready(follower, now)


class _Water:
    """All streams there will ever be, and those that flow now, with the rate of each."""

    def __init__(self, streams: Sequence[Stream], goodput_bps: Mapping[Link, float]) -> None:
        named = {
            link: number for number, link in enumerate(dict.fromkeys(k for s in streams for k in s.links))
        }
        self.room: Floats = np.array([goodput_bps[link] / 8 for link in named] + [inf])
        most = max((len(stream.links) for stream in streams), default=1)
        self.links: Ints = np.full((len(streams), most), len(named), dtype=np.int64)
        for number, stream in enumerate(streams):
            self.links[number, : len(stream.links)] = [named[link] for link in stream.links]
        self.bytes: Floats = np.array([stream.bytes for stream in streams], dtype=float)
        self.left = self.bytes.copy()
        self.pace: Floats = np.array([stream.pace_bps / 8 for stream in streams], dtype=float)
        self.flowing: Ints = np.empty(0, dtype=np.int64)
        self._rates: Floats | None = None

    def pour(self, streams: Sequence[int]) -> int:
        """Let these streams flow; how many of them are empty, and have ended."""
        mine = np.array(streams, dtype=np.int64)
        wet = mine[self.left[mine] > 0]
        if len(wet):
            self.flowing, self._rates = np.concatenate((self.flowing, wet)), None
        return len(mine) - len(wet)

    def flow(self, now: float, until: float) -> tuple[Ints, float]:
        """Let time pass until `until`, or until a stream ends if that is sooner; which ended, and what time it is then."""
        if not len(self.flowing):
            return self.flowing, until
        if self._rates is None:
            self._rates = self._shared()
        needed = self.left[self.flowing] / self._rates
        soonest = float(needed.min())
        seconds = min(soonest, until - now)
        self.left[self.flowing] -= self._rates * seconds
        over = needed <= seconds + _ROUNDING * max(seconds, 1e-3)
        if not over.any():
            return self.flowing[:0], until
        flown = self.flowing[over]
        self.left[flown] = 0.0
        self.flowing, self._rates = self.flowing[~over], None
        return flown, now + seconds

    def _shared(self) -> Floats:
        """The rate of each stream that flows: its pace, where no link on its way is asked for more than it carries."""
        links, rates = self.links[self.flowing], self.pace[self.flowing]
        asked = np.bincount(links.ravel(), np.repeat(rates, links.shape[1]), len(self.room))
        full = asked > self.room * (1 + _ROUNDING)
        held = full[links].any(axis=1)
        if held.any():
            crossed = np.where(full[links[held]], links[held], len(self.room) - 1)
            rates[held] = progressive_filling(crossed, rates[held], self.room)
        return rates


def progressive_filling(links: Ints, pace: Floats, room: Floats) -> Floats:
    """Max-min fair rates: all rise together, and stop one by one at their own pace or where a link of theirs is full.

    `links[stream, hop]` are positions in `room`, which is infinite for those that stand for none.
    """
    rates, rising, left = np.zeros(len(pace)), np.ones(len(pace), dtype=bool), room.copy()
    while rising.any():
        sharers = np.bincount(links[rising].ravel(), minlength=len(room))
        share = np.full(len(room), inf)
        np.divide(left, sharers, out=share, where=(sharers > 0) & np.isfinite(left))
        mine = share[links].min(axis=1)
        level = float(mine[rising].min())
        stops = rising & (pace <= level)
        if stops.any():
            rates[stops] = pace[stops]
        else:
            stops = rising & (mine <= level * (1 + _ROUNDING))
            rates[stops] = level
        taken = np.bincount(links[stops].ravel(), np.repeat(rates[stops], links.shape[1]), len(room))
        left = np.where(np.isfinite(left), np.maximum(left - taken, 0.0), left)
        rising &= ~stops
    return rates
