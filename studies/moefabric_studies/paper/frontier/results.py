"""Results of the frontier study, as JSON and as figures derived from them."""

from collections.abc import Iterable, Sequence
from math import exp, inf, log
from statistics import mean, median
from typing import Final

from moefabric.api.results import Provenance
from moefabric_studies.paper.network import nic_bytes_s
from moefabric_studies.raw_tables import FrozenPart

SMALLEST: Final = 8
"""Servers of the smallest region."""
ALL_TO_ALLS: Final = 4
"""All-to-alls of a layer: dispatch and combine, forward and backward."""
_CORNER: Final = 7
"""Circuit NICs of the networks that are kept as raw results."""
_EQUAL: Final = 1e-6
"""Relative difference of times that counts as none."""


class Point(FrozenPart):
    """A job on a network."""

    model: str
    """Name of the model."""
    servers: int
    """Servers of a region."""
    rate_bps: float
    """Rate of a NIC."""
    policy: str
    """Name of the policy."""
    optical: int
    """NICs of a server on an OCS or patch panel; of a tapered EPS, NICs without uplinks."""
    electrical: int
    """NICs of a server that carry transfers between regions."""
    usd: float
    """Price of a server's part of the network."""
    all_to_all_s: float
    """Mean time of a layer's dispatch."""
    iteration_s: float
    """Time of an iteration if circuits move in no time."""
    settling_iteration_s: float
    """Time of an iteration with an OCS of 25 ms."""
    transfers_s: float
    """Part of the iteration for pipeline and data-parallel transfers."""
    forwarded: float
    """Part of the bytes of all-to-alls that servers forward."""
    all_to_all: float
    """Time of the dispatch, relative to the non-blocking EPS."""
    iteration: float
    """Time of the iteration, relative to the non-blocking EPS at this rate."""
    efficiency: float
    """Performance per dollar, relative to the non-blocking EPS at this rate."""
    is_efficient: bool = False
    """True if no cheaper network of this model and region is as fast."""


class Limit(FrozenPart):
    """An all-to-all at 7+1 NICs with limited forwarding, relative to the non-blocking EPS."""

    model: str
    """Name of the model."""
    servers: int
    """Servers of a region."""
    by_nics: dict[str, float]
    """Times by the rate at which a server forwards, in NICs."""
    unlimited: float
    """Time with any rate of forwarding."""
    relays: int
    """Servers that forward on the longest path with any rate."""
    dispatch_nic_bytes: float
    """Time of the dispatch on the non-blocking EPS, as bytes of a NIC."""

    def with_latency(self, hop_s: float, rate_bps: float) -> float:
        """Return the time if the last byte is late by `hop_s` for each server that forwards it.

        All paths of a split are as late as the longest one. Nothing is forwarded if that is faster.

        Args:
            hop_s: Latency of a server that forwards, in seconds.
            rate_bps: Rate of a NIC.
        """
        late = hop_s * nic_bytes_s(rate_bps) / self.dispatch_nic_bytes
        return min(self.by_nics["0"], self.unlimited + self.relays * late)


class Mix(FrozenPart):
    """A demand between that of a model and a permutation, at 7+1 NICs."""

    servers: int
    """Servers of a region."""
    kind: str
    """`exchange` if partners send to each other, `cycle` if each server sends to the next."""
    share: float
    """Part of the busiest server's bytes that belong to the permutation."""
    all_to_all: dict[str, float]
    """Completion time by policy, relative to the non-blocking EPS."""


class Move(FrozenPart):
    """A demand for which circuits move or stay, in a region of the smallest size.

    Times are those of an all-to-all, relative to the non-blocking EPS.
    """

    optical: int
    """Circuit NICs of a server."""
    share: float
    """Part of the busiest server's bytes that partners exchange."""
    policy: str
    """Policy that moves circuits."""
    waits: bool
    """True if a first all-to-all waits for its circuits, rather than starting over the EPS."""
    moved: float
    """Time over circuits that were moved for the demand."""
    fixed: float
    """Time with the same split over even circuits, which never move."""
    eps: float
    """Time over the electrical NICs alone."""

    @property
    def break_even(self) -> float:
        """Time to light circuits at which moving them for a layer costs what it saves.

        It is relative to an all-to-all of the non-blocking EPS; 0 if moving saves nothing, infinite
        if moving pays however long it takes. Moving shortens the four all-to-alls of a layer and
        delays the first of them.
        """
        saved = ALL_TO_ALLS * (self.fixed - self.moved)
        if saved <= _EQUAL * self.fixed:
            return 0.0
        if self.waits:
            return saved
        lost = self.eps - self.moved  # of the whole all-to-all over the EPS
        return inf if saved >= lost else self.eps * saved / lost


class TraceTimes(FrozenPart):
    """All-to-alls of a recorded training run at 7+1 NICs."""

    servers: int
    """Servers of a region."""
    all_to_all: dict[str, tuple[float, ...]]
    """Completion times by policy, relative to the non-blocking EPS."""
    forwarded: tuple[float, ...]
    """Parts of the bytes that are forwarded with `multihop`."""


class GpuSpeed(FrozenPart):
    """Iterations of the smallest region at 7+1 NICs, by the speed of GPUs."""

    gpu: str
    """The speed."""
    rate_bps: float
    """Rate of a NIC."""
    model: str
    """Name of the model."""
    all_to_all_share: float
    """Part of the iteration in which all-to-alls of the non-blocking EPS move bytes."""
    iteration: float
    """Time with `multihop`, relative to the non-blocking EPS."""


class FrontierResults(FrozenPart):
    """Everything that the study computes."""

    points: tuple[Point, ...]
    limits: tuple[Limit, ...]
    mixes: tuple[Mix, ...]
    moves: tuple[Move, ...]
    traces: tuple[TraceTimes, ...]
    gpu_speeds: tuple[GpuSpeed, ...]
    cpu_s: float
    """Seconds of CPU that the study took."""
    provenance: Provenance | None = None
    """Source of the figures, and the jobs."""

    @property
    def rows(self) -> list[dict[str, object]]:
        """Networks of 7+1 NICs, and the range of a recorded training run on them.

        Times and performance per dollar are relative to the non-blocking EPS.
        """
        columns = (
            "model", "servers", "rate_gbps", "policy", "all_to_all", "iteration", "efficiency",
        )  # fmt: skip
        networks = [
            (p.model, p.servers, f"{p.rate_bps / 1e9:g}", p.policy, p.all_to_all, p.iteration,
             p.efficiency)
            for p in self.select(optical=_CORNER)
        ]  # fmt: skip
        recorded = [
            (f"recorded run, {name}", trace.servers, "", policy, figure(times), "", "")
            for trace in self.traces
            for policy, times in trace.all_to_all.items()
            for name, figure in (("least", min), ("median", median), ("most", max))
        ]
        return [dict(zip(columns, row, strict=True)) for row in (*networks, *recorded)]

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, in order."""
        return tuple(dict.fromkeys(point.model for point in self.points))

    @property
    def region_sizes(self) -> tuple[int, ...]:
        """Servers of the regions, in order."""
        return tuple(dict.fromkeys(point.servers for point in self.points))

    @property
    def rates(self) -> tuple[float, ...]:
        """NIC rates in bits per second, in order."""
        return tuple(dict.fromkeys(point.rate_bps for point in self.points))

    def select(
        self,
        *,
        model: str | None = None,
        servers: int | None = None,
        rate_bps: float | None = None,
        policy: str | None = None,
        optical: int | None = None,
    ) -> list[Point]:
        """Return the points with these properties."""
        return [
            point
            for point in self.points
            if model in {None, point.model}
            and servers in {None, point.servers}
            and rate_bps in {None, point.rate_bps}
            and policy in {None, point.policy}
            and optical in {None, point.optical}
        ]

    def best_split(self, policy: str, servers: int, rate_bps: float) -> tuple[int, float]:
        """Return the split of the NICs with most performance per dollar, in the mean of the models.

        Args:
            policy: Name of the policy.
            servers: Servers of a region.
            rate_bps: Rate of a NIC.

        Returns:
            The number of optical NICs, and the geometric mean of the performance per dollar.
        """
        points = self.select(policy=policy, servers=servers, rate_bps=rate_bps)
        means = {
            optical: geometric_mean(p.efficiency for p in points if p.optical == optical)
            for optical in sorted({point.optical for point in points})
        }
        best = max(means, key=means.__getitem__)
        return best, means[best]


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive values."""
    return exp(mean(log(value) for value in values))


def efficient(points: Sequence[Point]) -> list[Point]:
    """Return the points to which no other is both as cheap and as fast, the cheapest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.usd, point.iteration_s)):
        if not best or point.iteration_s < best[-1].iteration_s * (1 - 1e-9):
            best.append(point)
    return best


def marked(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return points with `is_efficient` set, each model and region for itself."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.model, point.servers), []).append(point)
    best = {id(point) for group in groups.values() for point in efficient(group)}
    return tuple(point.model_copy(update={"is_efficient": id(point) in best}) for point in points)
