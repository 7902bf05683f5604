"""A discrete-event simulation of flows: steps with dependencies, whose bytes share links.

A step starts as soon as the steps that it waits for are done. Each of its streams has its own
start, size, route, greatest rate, latency and end; streams share links max-min fairly
(`moefabric.simulator.fair_sharing`). `simulate_streams` simulates streams alone.

    >>> link = ("s0/e0", "leaf0")
    >>> short, long = Stream(1e9, (link,)), Stream(3e9, (link,), latency_s=1e-6)
    >>> simulate_streams([short, long], {link: 8e9})
    [2.0, 4.000001]

The simulation is a model of a transport that keeps every link full for which bytes wait, and
divides it fairly at every instant. It has no packets, queues, losses or acknowledgements.
`moefabric.simulator.fluid.route_latency_s` is the closed form of the latency of a route.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

import numpy as np

from moefabric.core.routes import Link
from moefabric.simulator.fair_sharing import RateChange, SharedLinks, Stream


@dataclass(frozen=True)
class Step:
    """A part of an iteration that takes time, sends bytes, or both.

    Attributes:
        after: Positions of the steps for which it waits, all of them earlier.
        seconds: Its least duration.
        streams: Its bytes; it lasts until all of them have arrived.
        not_before_s: Earliest start, in seconds from the beginning.
        lane: Steps of one lane run one at a time, in the order in which they could start, as
            messages on a connection do. None: none waits for others besides `after`.
    """

    after: tuple[int, ...] = ()
    seconds: float = 0.0
    streams: tuple[Stream, ...] = ()
    not_before_s: float = 0.0
    lane: Hashable = None


@dataclass(frozen=True)
class StepTimes:
    """When a step started and ended, in seconds from the beginning.

    `stream_ends_s` holds when the last byte of each of its streams arrived, `stream_rates` the
    changes of rate of its recorded streams, by position among its streams.
    """

    start_s: float
    end_s: float
    stream_ends_s: tuple[float, ...] = ()
    stream_rates: Mapping[int, Sequence[RateChange]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.end_s - self.start_s


def simulate(
    steps: Sequence[Step],
    goodput_bps: Mapping[Link, float],
    recorded: Collection[Link] = frozenset(),
) -> list[StepTimes]:
    """Simulate steps that share links.

    Example:
        Two steps of 1 GB, one after the other, over a link of 8 Gb/s:

        >>> link = ("s0/e0", "leaf0")
        >>> first = Step(streams=(Stream(1e9, (link,)),))
        >>> second = Step(after=(0,), streams=(Stream(1e9, (link,)),))
        >>> [(times.start_s, times.end_s) for times in simulate([first, second], {link: 8e9})]
        [(0.0, 1.0), (1.0, 2.0)]

    Args:
        steps: The steps; each waits for earlier ones only.
        goodput_bps: Payload rate of each link, in bits per second.
        recorded: Links; the rates of the streams that cross one of them are recorded.

    Returns:
        When each step starts and ends, in their order.

    Raises:
        ValueError: If a step waits for itself or a later one, or a stream has no links.
    """
    for number, step in enumerate(steps):
        if any(not 0 <= before < number for before in step.after):
            raise ValueError(f"step {number} waits for {step.after}, which are not all before it")
        if any(not stream.links and stream.bytes for stream in step.streams):
            raise ValueError(f"step {number} has bytes without a route")
    return _Simulation(steps, goodput_bps, recorded).run()


def simulate_streams(streams: Sequence[Stream], goodput_bps: Mapping[Link, float]) -> list[float]:
    """Simulate streams that share links.

    Args:
        streams: The streams; each starts `after_s` seconds from the beginning.
        goodput_bps: Payload rate of each link, in bits per second.

    Returns:
        When the last byte of each stream arrives, in seconds from the beginning.

    Raises:
        ValueError: If a stream has bytes but no links.
    """
    [times] = simulate([Step(streams=tuple(streams))], goodput_bps)
    return list(times.stream_ends_s)


def simulate_iterations(
    jobs: Sequence[Sequence[Sequence[Step]]],
    goodput_bps: Mapping[Link, float],
    recorded: Collection[Link] = frozenset(),
) -> list[list[list[StepTimes]]]:
    """Simulate jobs side by side that share nothing but links.

    Args:
        jobs: The steps of each iteration of each job. A job's iterations follow one another;
            `after` counts within an iteration.
        goodput_bps: Payload rate of each link, in bits per second.
        recorded: Links; the rates of the streams that cross one of them are recorded.

    Returns:
        When each step of each iteration of each job starts and ends.
    """
    steps: list[Step] = []
    positions: list[list[range]] = []
    for job in jobs:
        positions.append([])
        barrier: tuple[int, ...] = ()
        for iteration in job:
            start = len(steps)
            steps += [
                replace(step, after=tuple(start + n for n in step.after) or barrier)
                for step in iteration
            ]
            numbers = range(start, len(steps))
            positions[-1].append(numbers)
            steps.append(Step(after=tuple(numbers) or barrier))
            barrier = (len(steps) - 1,)
    times = simulate(steps, goodput_bps, recorded)
    return [[[times[n] for n in numbers] for numbers in job] for job in positions]


_Handler = Callable[[int, float], None]
"""Handles an event of a step or a stream, given its number and the instant."""


class _Simulation:
    """A simulation under way: the clock, pending events, and the steps that each step waits for."""

    def __init__(
        self, steps: Sequence[Step], goodput_bps: Mapping[Link, float], recorded: Collection[Link]
    ) -> None:
        self.steps = steps
        self.start_s: list[float] = [0.0] * len(steps)
        self.end_s: list[float] = [inf] * len(steps)
        self.waits = [len(set(step.after)) for step in steps]
        self.followers: defaultdict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(steps):
            for before in set(step.after):
                self.followers[before].append(number)
        self.streams = [stream for step in steps for stream in step.streams]
        self.links = SharedLinks(self.streams, goodput_bps, recorded)
        counts = [len(step.streams) for step in steps]
        self.first_stream = np.concatenate(([0], np.cumsum(counts))).astype(int).tolist()
        self.step_of = np.repeat(np.arange(len(steps)), counts).tolist()
        self.stream_ends_s: list[float] = [inf] * len(self.streams)
        self.parts = [1 + count for count in counts]
        """Parts of each step that have not ended: its seconds, and each of its streams."""
        self.events: list[tuple[float, int, int, _Handler]] = []
        """(instant, order among equal instants, step or stream, what happens to it), as a heap."""
        self.scheduled = 0
        self.lanes: dict[Hashable, deque[int]] = {}
        """The running step of each busy lane, followed by the steps that wait for the lane."""

    def run(self) -> list[StepTimes]:
        for number, waits in enumerate(self.waits):
            if not waits:
                self._release(number, 0.0)
        now = 0.0
        while self.events or self.links.busy:
            instant = self.events[0][0] if self.events else inf
            ended, now = self.links.advance(now, instant)
            self._carried(ended.tolist(), now)
            while self.events and self.events[0][0] <= now:
                _, _, number, handle = heapq.heappop(self.events)
                handle(number, now)
        rates = self.links.rate_changes
        return [
            StepTimes(
                start,
                end,
                tuple(self.stream_ends_s[first:last]),
                {n - first: rates[n] for n in range(first, last) if n in rates} if rates else {},
            )
            for start, end, (first, last) in zip(
                self.start_s, self.end_s, pairwise(self.first_stream), strict=True
            )
        ]

    def _schedule(self, instant: float, number: int, handle: _Handler) -> None:
        self.scheduled += 1
        heapq.heappush(self.events, (instant, self.scheduled, number, handle))

    def _release(self, number: int, now: float) -> None:
        self._schedule(max(now, self.steps[number].not_before_s), number, self._enter)

    def _enter(self, number: int, now: float) -> None:
        """Start a step, or let it wait for its lane."""
        lane = self.steps[number].lane
        if lane is None:
            self._start(number, now)
            return
        waiting = self.lanes.setdefault(lane, deque())
        waiting.append(number)
        if len(waiting) == 1:
            self._start(number, now)

    def _leave(self, number: int, now: float) -> None:
        """Start the next step of an ended step's lane."""
        lane = self.steps[number].lane
        if lane is not None:
            waiting = self.lanes[lane]
            waiting.popleft()
            if waiting:
                self._start(waiting[0], now)
            else:
                del self.lanes[lane]

    def _start(self, number: int, now: float) -> None:
        self.start_s[number] = now
        self._schedule(now + self.steps[number].seconds, number, self._end_part)
        at_once = []
        for stream in range(self.first_stream[number], self.first_stream[number + 1]):
            if self.streams[stream].after_s:
                self._schedule(now + self.streams[stream].after_s, stream, self._send)
            else:
                at_once.append(stream)
        self._carried(self.links.activate(at_once).tolist(), now)

    def _send(self, stream: int, now: float) -> None:
        self._carried(self.links.activate([stream]).tolist(), now)

    def _carried(self, streams: Sequence[int], now: float) -> None:
        """Let the last bytes of streams arrive, each after its stream's latency."""
        for stream in streams:
            if self.streams[stream].latency_s:
                instant = now + self.streams[stream].latency_s
                self._schedule(instant, stream, self._arrive)
            else:
                self._arrive(stream, now)

    def _arrive(self, stream: int, now: float) -> None:
        self.stream_ends_s[stream] = now
        self._end_part(self.step_of[stream], now)

    def _end_part(self, number: int, now: float) -> None:
        self.parts[number] -= 1
        if self.parts[number]:
            return
        self.end_s[number] = now
        self._leave(number, now)
        for follower in self.followers[number]:
            self.waits[follower] -= 1
            if not self.waits[follower]:
                self._release(follower, now)
