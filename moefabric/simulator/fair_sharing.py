"""Max-min fair sharing of links by streams of bytes, each with its own size, route and pace.

A stream's rate rises until a link of its route is full and no stream on that link is faster, or
until it has reached the stream's own greatest rate (progressive filling; Bertsekas and Gallager,
Data Networks, section 6.5.2). No stream's rate depends on streams that share no link with it,
directly or through others, so that a start or an end changes the rates of its component alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.routes import Link

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RateChange = tuple[float, float]
"""An instant in seconds from the beginning, and a rate from then on in bits per second."""

_ROUNDING: Final = 1e-9
"""Relative excess of a link, or relative remainder of a stream, that counts as rounding error."""


@dataclass(frozen=True)
class Stream:
    """Bytes that cross one or more links.

    Attributes:
        bytes: Payload bytes of the model.
        links: The links that it crosses.
        max_rate_bps: Greatest payload rate in bits per second: its pace, or infinite.
        after_s: Seconds from the start of its step to its own start.
        latency_s: Seconds from when the links have carried its last byte until that byte has
            arrived (`moefabric.simulator.fluid.route_latency_s`).
    """

    bytes: float
    links: tuple[Link, ...]
    max_rate_bps: float = inf
    after_s: float = 0.0
    latency_s: float = 0.0


class SharedLinks:
    """The links of a simulation, and the rates of the streams that are active on them."""

    def __init__(
        self,
        streams: Sequence[Stream],
        goodput_bps: Mapping[Link, float],
        recorded: Collection[Link] = frozenset(),
    ) -> None:
        """Start without an active stream.

        Args:
            streams: All streams of the simulation; methods name them by position.
            goodput_bps: Payload rate of each link, in bits per second.
            recorded: Links; the rates of the streams that cross one of them are recorded.
        """
        known = frozenset(recorded)
        self._recorded = np.array([not known.isdisjoint(s.links) for s in streams], dtype=bool)
        self.rate_changes: dict[int, list[RateChange]] = {}
        """Changes of rate of each recorded stream that has started."""
        crossed = dict.fromkeys(link for stream in streams for link in stream.links)
        positions = {link: number for number, link in enumerate(crossed)}
        self._capacity: Floats = np.array([goodput_bps[link] / 8 for link in positions] + [inf])
        most = max((len(stream.links) for stream in streams), default=1)
        self._links: Ints = np.full((len(streams), most), len(positions), dtype=np.int64)
        hops = np.array([len(stream.links) for stream in streams], dtype=np.int64)
        self._links[np.arange(most) < hops[:, None]] = [
            positions[link] for stream in streams for link in stream.links
        ]
        self._component = _components(self._links, len(positions))
        self._remaining: Floats = np.array([stream.bytes for stream in streams], dtype=float)
        self._max_rates: Floats = np.array([s.max_rate_bps / 8 for s in streams], dtype=float)
        self._rates: Floats = np.zeros(len(streams))
        self._active: Ints = np.empty(0, dtype=np.int64)
        self._changed: Ints = self._active
        """Streams that have started or ended since the rates were last computed."""

    @property
    def busy(self) -> bool:
        """True if any stream is active."""
        return bool(len(self._active))

    def activate(self, streams: Sequence[int]) -> Ints:
        """Start streams; return the empty ones, which end at once."""
        started = np.array(streams, dtype=np.int64)
        full = self._remaining[started] > 0
        if full.any():
            self._active = np.concatenate((self._active, started[full]))
            self._changed = np.concatenate((self._changed, started[full]))
        return started[~full]

    def advance(self, now: float, until: float) -> tuple[Ints, float]:
        """Let time pass until an instant, or until a stream ends if that is sooner.

        Returns:
            The streams that ended, and the time.
        """
        if not len(self._active):
            return self._active, until
        if len(self._changed):
            self._share()
            self._record(now)
        rates = self._rates[self._active]
        needed = self._remaining[self._active] / rates
        seconds = min(float(needed.min()), until - now)
        self._remaining[self._active] -= rates * seconds
        over = needed <= seconds + _ROUNDING * max(seconds, 1e-3)
        if not over.any():
            return self._active[:0], until
        ended = self._active[over]
        self._remaining[ended] = 0.0
        self._active, self._changed = self._active[~over], ended
        return ended, now + seconds

    def _record(self, now: float) -> None:
        for stream in self._active[self._recorded[self._active]].tolist():
            changes, rate_bps = self.rate_changes.setdefault(stream, []), 8 * self._rates[stream]
            if not changes or abs(rate_bps - changes[-1][1]) > _ROUNDING * rate_bps:
                changes.append((now, float(rate_bps)))

    def _share(self) -> None:
        """Share the links anew among the streams of each component that has changed.

        The end of a stream changes no rate below its own, as that stream has no part in the links
        that were full before it stopped rising.
        """
        changed, self._changed = self._changed, self._active[:0]
        slowest = np.full(len(self._capacity), inf)
        np.minimum.at(slowest, self._component[changed], self._rates[changed])
        least = slowest[self._component[self._active]]
        concerned = self._rates[self._active] >= least * (1 - _ROUNDING)
        others = self._active[~concerned]
        used = self._load(others, self._rates[others])
        self._fill(self._active[concerned], np.maximum(self._capacity - used, 0.0))

    def _fill(self, streams: Ints, capacity: Floats) -> None:
        """Share a capacity of each link among streams."""
        rates, links = self._max_rates[streams], self._links[streams]
        overloaded = self._load(streams, rates) > capacity * (1 + _ROUNDING)
        limited = overloaded[links].any(axis=1)
        if limited.any():
            unlimited = len(capacity) - 1
            crossed = np.where(overloaded[links[limited]], links[limited], unlimited)
            rates[limited] = max_min_rates(crossed, rates[limited], capacity)
        self._rates[streams] = rates

    def _load(self, streams: Ints, rates: Floats) -> Floats:
        return _per_link(self._links[streams], rates, len(self._capacity))


def _components(links: Ints, unlimited: int) -> Ints:
    """Return a number for each stream; streams with equal numbers may influence each other."""
    label: Ints = np.arange(unlimited + 1)
    while True:
        lowest: Ints = np.where(links == unlimited, unlimited, label[links]).min(
            axis=1, initial=unlimited
        )
        lower = label.copy()
        np.minimum.at(lower, links.ravel(), np.repeat(lowest, links.shape[1]))
        lower[unlimited] = unlimited
        lower = lower[lower]
        if np.array_equal(lower, label):
            return lowest
        label = lower


def max_min_rates(links: Ints, max_rates: Floats, capacity: Floats) -> Floats:
    """Return max-min fair rates.

    Progressive filling, with many levels at a time. The share of a link among the streams whose
    rates aren't known yet only grows as others become known. So a stream whose greatest rate is
    within the least share of its links has that rate. And a link is full at its share if no stream
    on it has a lesser share elsewhere: it determines the rates of all its streams.

    Args:
        links: Positions in `capacity` of the links of each stream [stream, hop].
        max_rates: Greatest rate of each stream.
        capacity: Rate of each link; infinite for a position that stands for no link.

    Returns:
        The rate of each stream.
    """
    rates, left = np.zeros(len(max_rates)), capacity.copy()
    unknown = np.arange(len(max_rates))
    while len(unknown):
        crossed, greatest = links[unknown], max_rates[unknown]
        sharers = np.bincount(crossed.ravel(), minlength=len(capacity))
        share = np.full(len(capacity), inf)
        np.divide(left, sharers, out=share, where=(sharers > 0) & np.isfinite(left))
        shares = share[crossed]
        least = shares.min(axis=1)
        level = np.minimum(least, greatest)
        lesser = np.bincount(
            crossed[level[:, None] < shares * (1 - _ROUNDING)], minlength=len(capacity)
        )
        determined = (lesser[crossed] == 0) & np.isfinite(shares)
        known = determined.any(axis=1) | (greatest <= least)
        rates[unknown[known]] = level[known]
        left = np.maximum(left - _per_link(crossed[known], level[known], len(capacity)), 0.0)
        unknown = unknown[~known]
    return rates


def _per_link(links: Ints, values: Floats, count: int) -> Floats:
    """Return the sum of the streams' values on each link."""
    repeated = np.repeat(values, links.shape[1])
    return np.bincount(links.ravel(), repeated, count).astype(np.float64, copy=False)
