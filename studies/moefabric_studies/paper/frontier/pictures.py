"""Pictures of the frontier study: small charts side by side, as SVG files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from moefabric import rate_text
from moefabric.api.charts import Axis, curve, document_picture, plot
from moefabric_studies.paper.frontier.networks import (
    EPS,
    EVEN_SPILL,
    JOINT,
    MIXNET,
    MOVED_MULTIHOP,
    MULTIHOP,
    NICS,
    SPILL,
    TAPERED,
    FrontierPolicy,
    optical_nics,
)
from moefabric_studies.paper.frontier.results import FrontierResults, Limit, efficient

_COLOURS: Final[Mapping[FrontierPolicy, int]] = {
    EPS: 7,
    TAPERED: 0,
    MIXNET: 4,
    SPILL: 5,
    JOINT: 3,
    MOVED_MULTIHOP: 1,
    EVEN_SPILL: 6,
    MULTIHOP: 2,
}
_HOP_LATENCIES_S: Final = tuple(10 ** (-6 + step / 8) for step in range(33))
LATENCY_RATE_BPS: Final = 400e9
"""NIC rate of the picture of latencies."""
_QUARTERS: Final = {n / 4: f"{25 * n} %" for n in range(5)}

Point = tuple[float, float, str]
"""A point of a curve with its tooltip."""
Points = Iterable[Point]


def pictures(results: FrontierResults) -> dict[str, str]:
    """Return the pictures of the page by file name."""
    return {
        **{
            f"frontier-{servers}.svg": frontier(results, servers)
            for servers in results.region_sizes
        },
        "frontier-all-to-all.svg": all_to_alls(results),
        "frontier-efficiency.svg": efficiency(results),
        "frontier-capacity.svg": capacity(results),
        "frontier-latency.svg": latency(results),
        "frontier-permutation.svg": permutation(results),
        "frontier-trace.svg": trace(results),
    }


def frontier(results: FrontierResults, servers: int) -> str:
    """Draw iteration time against the price of a server's network, a chart for each model."""
    policies = (EPS, TAPERED, MIXNET, JOINT, MOVED_MULTIHOP, MULTIHOP, EVEN_SPILL)
    prices = {1e4: "10k", 2e4: "20k", 5e4: "50k", 1e5: "100k"}
    across = Axis(8e3, 160e3, prices, "USD a server", logarithmic=True)

    def points(model: str, policy: FrontierPolicy) -> Points:
        base = results.select(model=model, servers=servers, policy=EPS.name)
        best_s = min(point.iteration_s for point in base)
        for p in efficient(results.select(model=model, servers=servers, policy=policy.name)):
            text = (
                f"{policy.title}, {p.optical}+{p.electrical} at {rate_text(p.rate_bps)}: "
                f"{p.usd:,.0f} USD, {p.iteration_s:.3g} s"
            )
            yield p.usd, p.iteration_s / best_s, text

    title = (
        f"Regions of {servers} servers: iteration time (best EPS = 1) against cost, "
        "100 to 800 Gb/s, every A+E"
    )
    charts = {model: partial(points, model) for model in results.models}
    return _drawn(title, across, policies, charts, reference=None)


def all_to_alls(results: FrontierResults) -> str:
    """Draw the time of an all-to-all, the longest of the models, by the split of the NICs."""
    policies = (MIXNET, SPILL, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP)
    splits = {float(n): f"{n}+{NICS - n}" for n in optical_nics(MULTIHOP)}
    across = Axis(1, NICS - 1, splits, "circuits + electrical NICs")

    def points(servers: int, policy: FrontierPolicy) -> Points:
        for optical in optical_nics(policy):
            models = results.select(servers=servers, policy=policy.name, optical=optical)
            value = max(point.all_to_all for point in models)
            yield optical, value, f"{policy.title}, {optical}+{NICS - optical}: {value:.2f}"

    title = "All-to-all relative to a non-blocking EPS of eight NICs, the slowest of the models"
    return _drawn(title, across, policies, _regions(results.region_sizes, points))


def efficiency(results: FrontierResults) -> str:
    """Draw performance per dollar at the best split of the NICs, by the NIC rate."""
    policies = (TAPERED, MIXNET, JOINT, MOVED_MULTIHOP, MULTIHOP, EVEN_SPILL)
    rates = {float(n): f"{rate / 1e9:g}" for n, rate in enumerate(results.rates)}
    across, up = Axis(0, len(rates) - 1, rates, "NIC rate, Gb/s"), Axis.numbers(0, 3.5, most=7)

    def points(servers: int, policy: FrontierPolicy) -> Points:
        for n, rate in enumerate(results.rates):
            optical, value = results.best_split(policy.name, servers, rate)
            network = f"{policy.title}, {optical}+{NICS - optical}, {rate_text(rate)}"
            yield n, value, f"{network}: {value:.2f}"

    title = "Performance per dollar relative to a non-blocking EPS, best A+E, mean of the models"
    return _drawn(title, across, policies, _regions(results.region_sizes, points), up)


def permutation(results: FrontierResults) -> str:
    """Draw the time of an all-to-all whose demand approaches a permutation."""
    policies = (MIXNET, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP)

    def points(servers: int, policy: FrontierPolicy) -> Points:
        for mix in results.mixes:
            if mix.servers == servers and mix.kind == "exchange":
                value = mix.all_to_all[policy.name]
                yield mix.share, value, f"{policy.title}, {mix.share:.0%}: {value:.2f}"

    title = (
        "All-to-all at 7+1 NICs relative to a non-blocking EPS: from MoE demand to a permutation"
    )
    across = Axis(0, 1, _QUARTERS, "bytes between partners")
    return _drawn(title, across, policies, _regions(results.region_sizes, points))


def trace(results: FrontierResults) -> str:
    """Draw the distribution of times over the all-to-alls of a recorded training run."""
    policies, runs = (MIXNET, JOINT, EVEN_SPILL, MULTIHOP), {t.servers: t for t in results.traces}
    times = {n: f"{n:g}" for n in (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)}
    across = Axis(0.98, 8, times, "relative to the EPS", logarithmic=True)

    def points(servers: int, policy: FrontierPolicy) -> Points:
        values = sorted(runs[servers].all_to_all[policy.name])
        return ((value, (n + 1) / len(values), "") for n, value in enumerate(values))

    title = "All-to-alls of a recorded training run at 7+1 NICs, cumulative share"
    charts = _regions(runs, points)
    return _drawn(title, across, policies, charts, Axis(0, 1, _QUARTERS), None, marks=False)


def capacity(results: FrontierResults) -> str:
    """Draw the time of an all-to-all by the rate at which a server forwards."""
    labels = list(results.limits[0].by_nics)
    names = {float(n): label.removeprefix("0") or "0" for n, label in enumerate(labels)}
    across = Axis(0, len(labels) - 1, names, "NICs' worth that a server forwards")

    def curves(limit: Limit) -> Iterator[list[Point]]:
        yield [
            (n, value, f"{limit.model}, {label} NICs: {value:.2f}")
            for n, (label, value) in enumerate(limit.by_nics.items())
        ]

    title = (
        "All-to-all at 7+1 NICs by forwarding rate; 0 is the null model, spill without forwarding"
    )
    return _drawn_limits(title, across, results, curves)


def latency(results: FrontierResults) -> str:
    """Draw the time of an all-to-all by the latency of a server that forwards."""
    times = {1e-6: "1 µs", 1e-5: "10 µs", 1e-4: "0.1 ms", 1e-3: "1 ms", 1e-2: "10 ms"}
    across = Axis(1e-6, 1e-2, times, "latency of a server that forwards", logarithmic=True)

    def curves(limit: Limit) -> Iterator[list[Point]]:
        yield [(s, limit.with_latency(s, LATENCY_RATE_BPS), "") for s in _HOP_LATENCIES_S]
        yield [(s, limit.by_nics["0"], "") for s in _HOP_LATENCIES_S]

    title = (
        "All-to-all at 7+1 NICs of 400 Gb/s by latency; dashed: the null model, without forwarding"
    )
    return _drawn_limits(title, across, results, curves, marks=False)


# --- drawing -------------------------------------------------------------------------------------


def _regions(
    sizes: Iterable[int], points: Callable[[int, FrontierPolicy], Points]
) -> dict[str, Callable[[FrontierPolicy], Points]]:
    """Return the points of each region's chart by its heading."""
    return {f"{servers} servers": partial(points, servers) for servers in sizes}


def _drawn(
    title: str, across: Axis, policies: Sequence[FrontierPolicy],
    charts: Mapping[str, Callable[[FrontierPolicy], Points]], up: Axis | None = None,
    reference: float | None = 1.0, *, marks: bool = True,
) -> str:  # fmt: skip
    """Draw charts with a curve for each policy; the null model's is dashed."""
    panels = []
    for heading, points in charts.items():
        curves = {policy: list(points(policy)) for policy in policies}
        drawn = (
            curve(_COLOURS[policy], own, dashed=policy == EVEN_SPILL, marks=marks)
            for policy, own in curves.items()
        )
        panels.append(plot(heading, across, up or _log_axis(curves.values()), drawn, reference))
    legend = [(f"t{_COLOURS[policy]}", policy.title) for policy in policies]
    return document_picture(title, panels, columns=3, legend=legend)


def _drawn_limits(
    title: str, across: Axis, results: FrontierResults,
    curves: Callable[[Limit], Iterable[list[Point]]], *, marks: bool = True,
) -> str:  # fmt: skip
    """Draw a chart for each region with curves for each model, of which the second is dashed."""
    panels = []
    for servers in results.region_sizes:
        models = [list(curves(one)) for one in results.limits if one.servers == servers]
        drawn = (
            curve(n, points, dashed=dashed > 0, marks=marks)
            for n, own in enumerate(models, 1)
            for dashed, points in enumerate(own)
        )
        up = _log_axis(points for own in models for points in own)
        panels.append(plot(f"{servers} servers", across, up, drawn, 1.0))
    legend = [(f"t{n}", model) for n, model in enumerate(results.models, 1)]
    return document_picture(title, panels, columns=3, legend=legend)


def _log_axis(curves: Iterable[Points]) -> Axis:
    """Return a logarithmic axis from just below 1, with ticks that its length has room for."""
    steps = (1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 30.0)
    high = max(1.02, *(y for points in curves for _, y, _ in points)) * 1.02
    ticks = {step: f"{step:g}" for step in reversed(steps) if step <= high}
    return Axis(high**-0.04, high, ticks, logarithmic=True)
