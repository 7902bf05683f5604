"""The page `docs/frontier.md`, in Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import isinf
from pathlib import Path
from statistics import median
from typing import Any, Final

from moefabric import rate_text
from moefabric.api.charts import MISSING, percentage, ratio, usd
from moefabric_studies.markdown import page_of
from moefabric_studies.paper.frontier.networks import (
    EPS,
    EVEN_SPILL,
    JOINT,
    MIXNET,
    MOVED_MULTIHOP,
    MULTIHOP,
    NICS,
    POLICIES,
    SPILL,
    TAPERED,
    FrontierPolicy,
)
from moefabric_studies.paper.frontier.pictures import LATENCY_RATE_BPS
from moefabric_studies.paper.frontier.results import (
    SMALLEST,
    FrontierResults,
    Limit,
    Move,
    Point,
    efficient,
)
from moefabric_studies.paper.frontier.study import CORNER, SETTLE_S
from moefabric_studies.result_blocks import StoredResults, filled

Row = Sequence[str]

_NEAR: Final = 1.03
"""Iteration time, relative to the non-blocking EPS, that counts as equal."""
_NEAR_RATES: Final = (100e9, 400e9)
_LATENCIES_S: Final = (1e-6, 10e-6, 100e-6, 1e-3)
_EFFICIENCY: Final = "efficiency"
_LARGE_REGION: Final = 1.10
_ENOUGH: Final = 0.01
"""An all-to-all this much longer than with unlimited forwarding counts as equal."""

CORNERS: Final = tuple(
    f"forwarding-{name}"
    for name in ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1", "16")
)
"""Stored results of the corner points with packets, by name."""
_MEASURED: Final = (
    "experiment", "fabric", "nics", "vs_eps", "iteration_vs_eps", "iteration_s",
    "perf_per_dollar_vs_eps", "verdict",
)  # fmt: skip
"""Columns of their table."""


def page_text(results: FrontierResults, page: Path, stored: Path) -> str:
    """Return the page. Equal results give equal pages.

    Args:
        results: What was predicted.
        page: File of the page, where links start.
        stored: Folder of stored results of the experiments with packets.
    """
    return page_of(
        "paper/frontier/frontier.md.j2",
        results=results,
        networks=f"{_networks(results):,}",
        large=results.region_sizes[1:] or results.region_sizes,
        near=f"{100 * (_NEAR - 1):.0f} %",
        settle=f"{SETTLE_S * 1e3:.0f} ms",
        latency_rate=rate_text(LATENCY_RATE_BPS),
        table=_table,
        spans=_Spans(results),
        targets=list(_targets(results)),
        frontier=list(_frontier_shares(results)),
        cheapest=list(_cheapest(results)),
        corner=list(_corner(results)),
        efficiency=list(_efficiency(results)),
        transfers=list(_transfers(results)),
        gpus=list(_gpus(results)),
        capacity=list(_capacity(results)),
        latency=list(_latency(results)),
        permutation=list(_permutation(results)),
        moves=list(_moves(results)),
        recorded={policy.name: _recorded_moves(results, policy) for policy in (MIXNET, JOINT)},
        trace=list(_trace(results)),
        settling=list(_settling(results)),
        measured=_measured(page, StoredResults(stored)),
    )


def text_lines(results: FrontierResults) -> Iterator[str]:
    """Yield the targets and their requirements, for a terminal."""
    yield f"{_networks(results)} networks, each with {len(results.models)} models"
    for subject, target, value, _, verdict in _targets(results):
        yield f"  {subject:<62}{target:>12}{value:>22}  {verdict}"


def _networks(results: FrontierResults) -> int:
    """Return the number of networks; each has a point for each model."""
    return len(results.points) // len(results.models)


def _table(header: str, rows: Iterable[Row]) -> str:
    """Return a table; `header` has its columns, divided by `|`."""
    columns = [column.strip() for column in header.split("|")]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _range(values: Iterable[float], digits: int = 2) -> str:
    """Return the least and the largest value, once if they look alike."""
    listed = sorted(values)
    low, high = f"{listed[0]:.{digits}f}", f"{listed[-1]:.{digits}f}"
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class _Spans:
    """Ranges over the models at 7+1 NICs, as text."""

    results: FrontierResults

    def all_to_all(self, policy: str, *servers: int) -> str:
        """Return the range of all-to-alls in regions of these sizes."""
        return _range(point.all_to_all for point in self._points(policy, servers))

    def forwarded(self, *servers: int) -> str:
        """Return the range of the part of the bytes that is forwarded."""
        parts = [100 * point.forwarded for point in self._points(MULTIHOP.name, servers)]
        return f"{_range(parts, 0)} %"

    def iteration(self, *servers: int) -> str:
        """Return the range of iterations with `multihop` at all rates."""
        return _range(point.iteration for point in self._points(MULTIHOP.name, servers))

    def efficiency(self, policy: str, rate_bps: float, *servers: int) -> str:
        """Return the range of the performance per dollar at a NIC rate."""
        points = self._points(policy, servers)
        return _range(point.efficiency for point in points if point.rate_bps == rate_bps)

    def trace(self, policy: str) -> str:
        """Return the median and the largest time of the training run on 8 servers."""
        values = self.results.traces[0].all_to_all[policy]
        return f"{median(values):.2f} in the median, {max(values):.2f} at most"

    def _points(self, policy: str, servers: Sequence[int]) -> list[Point]:
        points = self.results.select(policy=policy, optical=CORNER)
        return [point for point in points if point.servers in servers]


def _split(optical: int) -> str:
    return f"{optical}+{NICS - optical}"


def _targets(results: FrontierResults) -> Iterator[Row]:
    """Yield the targets of fixed circuits with forwarding, and how near the null model comes."""
    fabric = f"{SMALLEST} servers, {_split(CORNER)}"
    small: dict[str, Any] = {"servers": SMALLEST, "optical": CORNER}
    cases: list[tuple[str, str, float, dict[str, Any]]] = [
        (f"all-to-all, {fabric}", "all_to_all", 1.02, small),
        (f"iteration, {fabric}, all rates", "iteration", 1.03, small),
    ]
    for rate, least in ((100e9, 2.0), (400e9, 3.0)):
        subject = f"performance per dollar, {fabric}, {rate_text(rate)}"
        cases.append((subject, _EFFICIENCY, least, small | {"rate_bps": rate}))
    for servers in results.region_sizes[1:]:
        for optical in (CORNER, CORNER - 1, CORNER - 2):
            subject = f"all-to-all, {servers} servers, {_split(optical)}"
            where = small | {"servers": servers, "optical": optical}
            cases.append((subject, "all_to_all", _LARGE_REGION, where))
    for subject, figure, bound, where in cases:
        at_most = figure != _EFFICIENCY
        own, null = (
            [getattr(point, figure) for point in results.select(policy=policy.name, **where)]
            for policy in (MULTIHOP, EVEN_SPILL)
        )
        met, null_met = (
            max(values) <= bound if at_most else min(values) >= bound for values in (own, null)
        )
        target = f"at {'most' if at_most else 'least'} {bound:g}"
        verdict = "reached" + ", null fits too" * null_met if met else "missed"
        yield subject, target, _range(own), _range(null), verdict


def _frontier_shares(results: FrontierResults) -> Iterator[Row]:
    """Yield how many networks of each policy no other surpasses, by region."""
    for policy in POLICIES:
        counts = []
        for servers in results.region_sizes:
            points = results.select(servers=servers)
            best = [point for point in points if point.is_efficient]
            on_frontier = sum(point.policy == policy.name for point in best)
            counts += [f"{on_frontier} of {len(best)}", _reach(results, servers, policy)]
        yield policy.title, *counts


def _reach(results: FrontierResults, servers: int, policy: FrontierPolicy) -> str:
    """Return how much of the frontier a policy alone reaches.

    That is the mean, over the networks on the frontier, of the frontier's time, relative to the
    time of the fastest network of the policy that costs no more; 0 if none costs as little.
    """
    reached = []
    for model in results.models:
        points = results.select(model=model, servers=servers)
        efficient_points = efficient([point for point in points if point.policy == policy.name])
        for best in (point for point in points if point.is_efficient):
            limit_usd = best.usd * (1 + 1e-9)
            affordable = [point.iteration_s for point in efficient_points if point.usd <= limit_usd]
            reached.append(best.iteration_s / min(affordable) if affordable else 0.0)
    return f"{100 * sum(reached) / len(reached):.0f} %"


def _cheapest(results: FrontierResults) -> Iterator[Row]:
    """Yield the cheapest network that is as fast as the non-blocking EPS for every model."""
    for rate, policy in product(_NEAR_RATES, POLICIES):
        cells = []
        for servers in results.region_sizes:
            points = results.select(servers=servers, rate_bps=rate, policy=policy.name)
            slow = {point.optical for point in points if point.iteration > _NEAR}
            near = [point for point in points if point.optical not in slow]
            if not near:
                cells.append(MISSING)
                continue
            best = min(near, key=lambda point: point.usd)
            base = results.select(servers=servers, rate_bps=rate, policy=EPS.name)[0]
            cells.append(f"{_split(best.optical)}: {usd(best.usd)} ({best.usd / base.usd:.0%})")
        yield rate_text(rate), policy.title, *cells


def _corner(results: FrontierResults) -> Iterator[Row]:
    """Yield all-to-alls with the fewest electrical NICs, by model."""
    policies = (MIXNET, SPILL, JOINT, EVEN_SPILL, MULTIHOP)
    for servers, model in product(results.region_sizes, results.models):
        points = results.select(
            model=model, servers=servers, optical=CORNER, rate_bps=results.rates[0]
        )
        by_policy = {point.policy: point for point in points}
        cells = [ratio(by_policy[policy.name].all_to_all) for policy in policies]
        yield str(servers), model, *cells, percentage(by_policy[MULTIHOP.name].forwarded)


def _efficiency(results: FrontierResults) -> Iterator[Row]:
    """Yield performance per dollar at the best split, by region and rate."""
    for servers, rate in product(results.region_sizes, results.rates):
        cells = []
        for policy in (TAPERED, MIXNET, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP):
            optical, value = results.best_split(policy.name, servers, rate)
            cells.append(f"{value:.2f} ({_split(optical)})")
        yield str(servers), rate_text(rate), *cells


def _transfers(results: FrontierResults) -> Iterator[Row]:
    """Yield the iteration by electrical NICs, and the part for transfers between regions."""
    for optical in (7, 6, 5, 4):
        cells = []
        for rate in results.rates:
            points = results.select(
                servers=SMALLEST, policy=MULTIHOP.name, optical=optical, rate_bps=rate
            )
            slowest = max(points, key=lambda point: point.iteration)
            share = slowest.transfers_s / slowest.iteration_s
            cells.append(f"{slowest.iteration:.3f} ({slowest.model}, {percentage(share)})")
        yield _split(optical), *cells


def _gpus(results: FrontierResults) -> Iterator[Row]:
    """Yield the iteration by the speed of the GPUs."""
    for gpu in dict.fromkeys(speed.gpu for speed in results.gpu_speeds):
        cells = []
        for rate in results.rates:
            speeds = [s for s in results.gpu_speeds if s.gpu == gpu and s.rate_bps == rate]
            slowest = max(speeds, key=lambda speed: speed.iteration)
            cells.append(f"{slowest.iteration:.3f} ({slowest.model})")
        shares = [s.all_to_all_share for s in results.gpu_speeds if s.gpu == gpu]
        yield gpu, f"{min(shares):.0%} to {max(shares):.0%}", *cells


def _needed_nics(limit: Limit) -> str:
    """Return the least forwarding rate with which an all-to-all is about as fast as without."""
    least = limit.unlimited * (1 + _ENOUGH)
    return next(nics for nics, time in limit.by_nics.items() if time <= least)


def _capacity(results: FrontierResults) -> Iterator[Row]:
    for limit in results.limits:
        times = [ratio(limit.by_nics[nics]) for nics in ("0", "0.25", "0.5", "1", "2", "8")]
        yield str(limit.servers), limit.model, *times, _needed_nics(limit)


def _latency(results: FrontierResults) -> Iterator[Row]:
    for servers in results.region_sizes:
        limits = [limit for limit in results.limits if limit.servers == servers]
        cells = [
            _range(limit.with_latency(second, LATENCY_RATE_BPS) for limit in limits)
            for second in (0.0, *_LATENCIES_S)
        ]
        null = _range(limit.by_nics["0"] for limit in limits)
        relays = _range((limit.relays for limit in limits), 0)
        yield str(servers), *cells, null, relays


def _permutation(results: FrontierResults) -> Iterator[Row]:
    policies = (MIXNET, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP)
    for mix in results.mixes:
        if mix.share in (0.5, 1.0):
            cells = [ratio(mix.all_to_all[policy.name]) for policy in policies]
            yield str(mix.servers), mix.kind, f"{mix.share:.0%}", *cells


def _moves(results: FrontierResults) -> Iterator[Row]:
    """Yield the times to light circuits up to which moving them pays."""
    for (optical, share), group in groupby(results.moves, lambda move: (move.optical, move.share)):
        cells = [f"{_break_even(move)} ({move.moved:.2f}, {move.fixed:.2f})" for move in group]
        yield _split(optical), f"{share:.0%}", *cells


def _recorded_moves(results: FrontierResults, policy: FrontierPolicy) -> tuple[str, str]:
    """Return for how many all-to-alls of the training run moving pays, and the median break-even.

    The run is that of the smallest region at 7+1 NICs.
    """
    [times] = [run for run in results.traces if run.servers == SMALLEST]
    pairs = zip(times.all_to_all[policy.name], times.all_to_all[EVEN_SPILL.name], strict=True)
    moves = [
        Move(
            optical=NICS - 1,
            share=0.0,
            policy=policy.name,
            waits=policy.waits,
            moved=moved,
            fixed=fixed,
            eps=NICS,
        )
        for moved, fixed in pairs
    ]
    limits = [move.break_even for move in moves]
    return f"{sum(limit > 0 for limit in limits)} of {len(limits)}", f"{median(limits):.2f}"


def _break_even(move: Move) -> str:
    if not move.break_even:
        return "never"
    return "always" if isinf(move.break_even) else f"{move.break_even:.2f}"


def _trace(results: FrontierResults) -> Iterator[Row]:
    """Yield the distributions of the training run."""
    for times in results.traces:
        for policy in (MIXNET, SPILL, JOINT, EVEN_SPILL, MULTIHOP):
            values = times.all_to_all[policy.name]
            cells = [ratio(value) for value in (min(values), median(values), max(values))]
            parts = times.forwarded if policy == MULTIHOP else (0.0,)
            cells += [percentage(median(parts)), percentage(max(parts))]
            yield str(times.servers), policy.title, *cells


def _settling(results: FrontierResults) -> Iterator[Row]:
    """Yield the iteration with an OCS that settles, at the split of most performance per dollar."""
    rate = LATENCY_RATE_BPS
    for policy in (MIXNET, SPILL, JOINT, MOVED_MULTIHOP, MULTIHOP):
        cells = []
        for servers in results.region_sizes:
            optical, _ = results.best_split(policy.name, servers, rate)
            points = results.select(
                policy=policy.name, servers=servers, rate_bps=rate, optical=optical
            )
            free = _range(point.iteration for point in points)
            settled = _range(p.iteration * p.settling_iteration_s / p.iteration_s for p in points)
            cells.append(f"{_split(optical)}: {free}; {settled}")
        yield policy.title, *cells


def _measured(page: Path, stored: StoredResults) -> str:
    """Return the block of the corner points with packets that have stored results."""
    if not (names := stored.existing(CORNERS)):
        return "Not measured yet."
    block = f"<!-- results: {', '.join(names)} ({', '.join(_MEASURED)}) -->\n<!-- /results -->"
    return filled(block, page, stored)
