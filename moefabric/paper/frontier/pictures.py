"""Pictures of the frontier study: small charts side by side, as SVG files."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from moefabric.core.units import rate_text
from moefabric.paper.frontier.networks import (
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
from moefabric.paper.frontier.results import FrontierResults, Point, efficient
from moefabric.report.small_charts import Axis, Chart, Curve, charts_picture

_COLOURS: Final[Mapping[FrontierPolicy, str]] = {
    EPS: "7",
    TAPERED: "0",
    MIXNET: "4",
    SPILL: "5",
    JOINT: "3",
    MOVED_MULTIHOP: "1",
    EVEN_SPILL: "6",
    MULTIHOP: "2",
}
_MODEL_COLOURS: Final = ("1", "2", "3", "4", "5")
_HOP_LATENCIES_S: Final = tuple(10 ** (-6 + step / 8) for step in range(33))
LATENCY_RATE_BPS: Final = 400e9
"""NIC rate of the picture of latencies."""


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
    charts = []
    for model in results.models:
        points = results.select(model=model, servers=servers)
        best_s = min(point.iteration_s for point in points if point.policy == EPS.name)
        drawn = [p for p in points if p.policy in {policy.name for policy in policies}]
        highest = max(
            point.iteration_s / best_s
            for policy in policies
            for point in efficient([p for p in drawn if p.policy == policy.name])
        )
        curves = [
            Curve(
                _COLOURS[policy],
                [
                    (point.usd, point.iteration_s / best_s, _tooltip(policy, point))
                    for point in efficient([p for p in drawn if p.policy == policy.name])
                ],
                is_null=policy == EVEN_SPILL,
            )
            for policy in policies
        ]
        across = Axis(
            8e3, 160e3, {1e4: "10k", 2e4: "20k", 5e4: "50k", 1e5: "100k"}, True, "USD a server"
        )
        charts.append(Chart(model, across, _log_axis(highest), curves, None))
    title = (
        f"Regions of {servers} servers: iteration time (best EPS = 1) against cost, "
        "100 to 800 Gb/s, every A+E"
    )
    return charts_picture(title, charts, _legend(policies))


def _tooltip(policy: FrontierPolicy, point: Point) -> str:
    return (
        f"{policy.title}, {point.optical}+{point.electrical} at {rate_text(point.rate_bps)}: "
        f"{point.usd:,.0f} USD, {point.iteration_s:.3g} s"
    )


def all_to_alls(results: FrontierResults) -> str:
    """Draw the time of an all-to-all, the longest of the models, by the split of the NICs."""
    policies = (MIXNET, SPILL, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP)
    charts = []
    for servers in results.region_sizes:
        curves = [
            Curve(
                _COLOURS[policy],
                [
                    (optical, value, f"{policy.title}, {optical}+{NICS - optical}: {value:.2f}")
                    for optical in optical_nics(policy)
                    for value in [_slowest(results, policy, servers, optical)]
                ],
                is_null=policy == EVEN_SPILL,
            )
            for policy in policies
        ]
        splits = {float(n): f"{n}+{NICS - n}" for n in optical_nics(MULTIHOP)}
        across = Axis(1, NICS - 1, splits, title="circuits + electrical NICs")
        charts.append(Chart(f"{servers} servers", across, _log_axis(_highest(curves)), curves))
    title = "All-to-all relative to a non-blocking EPS of eight NICs, the slowest of the models"
    return charts_picture(title, charts, _legend(policies))


def _slowest(results: FrontierResults, policy: FrontierPolicy, servers: int, optical: int) -> float:
    points = results.select(servers=servers, policy=policy.name, optical=optical)
    return max(point.all_to_all for point in points)


def efficiency(results: FrontierResults) -> str:
    """Draw performance per dollar at the best split of the NICs, by the NIC rate."""
    policies = (TAPERED, MIXNET, JOINT, MOVED_MULTIHOP, MULTIHOP, EVEN_SPILL)
    charts = []
    for servers in results.region_sizes:
        curves = []
        for policy in policies:
            points = []
            for position, rate in enumerate(results.rates):
                optical, value = results.best_split(policy.name, servers, rate)
                text = f"{policy.title}, {optical}+{NICS - optical}, {rate_text(rate)}: {value:.2f}"
                points.append((float(position), value, text))
            curves.append(Curve(_COLOURS[policy], points, is_null=policy == EVEN_SPILL))
        rates = {float(n): f"{rate / 1e9:g}" for n, rate in enumerate(results.rates)}
        across = Axis(0, len(rates) - 1, rates, title="NIC rate, Gb/s")
        up = Axis(0, 3.5, {n / 2: f"{n / 2:g}" for n in range(8)})
        charts.append(Chart(f"{servers} servers", across, up, curves))
    title = "Performance per dollar relative to a non-blocking EPS, best A+E, mean of the models"
    return charts_picture(title, charts, _legend(policies))


def capacity(results: FrontierResults) -> str:
    """Draw the time of an all-to-all by the rate at which a server forwards."""
    charts = []
    for servers in results.region_sizes:
        limits = [limit for limit in results.limits if limit.servers == servers]
        labels = list(limits[0].by_nics)
        curves = [
            Curve(
                colour,
                [
                    (float(n), limit.by_nics[label], f"{limit.model}, {label} NICs: {value:.2f}")
                    for n, label in enumerate(labels)
                    for value in [limit.by_nics[label]]
                ],
            )
            for colour, limit in zip(_MODEL_COLOURS, limits, strict=True)
        ]
        across = Axis(
            0,
            len(labels) - 1,
            {float(n): label.removeprefix("0") or "0" for n, label in enumerate(labels)},
            title="NICs' worth that a server forwards",
        )
        charts.append(Chart(f"{servers} servers", across, _log_axis(_highest(curves)), curves))
    title = (
        "All-to-all at 7+1 NICs by forwarding rate; 0 is the null model, spill without forwarding"
    )
    return charts_picture(title, charts, _model_legend(results))


def latency(results: FrontierResults) -> str:
    """Draw the time of an all-to-all by the latency of a server that forwards."""
    charts = []
    for servers in results.region_sizes:
        curves = []
        limits = [limit for limit in results.limits if limit.servers == servers]
        for colour, limit in zip(_MODEL_COLOURS, limits, strict=True):
            points = [
                (
                    second,
                    limit.with_latency(second, LATENCY_RATE_BPS),
                    f"{limit.model}, {second:g} s",
                )
                for second in _HOP_LATENCIES_S
            ]
            null = [(second, limit.by_nics["0"], "null model") for second in _HOP_LATENCIES_S]
            curves.append(Curve(colour, points, marks=False))
            curves.append(Curve(colour, null, is_null=True, marks=False))
        times = {1e-6: "1 µs", 1e-5: "10 µs", 1e-4: "0.1 ms", 1e-3: "1 ms", 1e-2: "10 ms"}
        across = Axis(1e-6, 1e-2, times, True, "latency of a server that forwards")
        charts.append(Chart(f"{servers} servers", across, _log_axis(_highest(curves)), curves))
    title = (
        "All-to-all at 7+1 NICs of 400 Gb/s by latency; dashed: the null model, without forwarding"
    )
    return charts_picture(title, charts, _model_legend(results))


def permutation(results: FrontierResults) -> str:
    """Draw the time of an all-to-all whose demand approaches a permutation."""
    policies = (MIXNET, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP)
    charts = []
    for servers in results.region_sizes:
        mixes = [m for m in results.mixes if m.servers == servers and m.kind == "exchange"]
        curves = [
            Curve(
                _COLOURS[policy],
                [
                    (mix.share, value, f"{policy.title}, {mix.share:.0%}: {value:.2f}")
                    for mix in mixes
                    for value in [mix.all_to_all[policy.name]]
                ],
                is_null=policy == EVEN_SPILL,
            )
            for policy in policies
        ]
        across = Axis(
            0, 1, {n / 4: f"{25 * n} %" for n in range(5)}, title="bytes between partners"
        )
        charts.append(Chart(f"{servers} servers", across, _log_axis(_highest(curves)), curves))
    title = (
        "All-to-all at 7+1 NICs relative to a non-blocking EPS: from MoE demand to a permutation"
    )
    return charts_picture(title, charts, _legend(policies))


def trace(results: FrontierResults) -> str:
    """Draw the distribution of times over the all-to-alls of a recorded training run."""
    policies = (MIXNET, JOINT, EVEN_SPILL, MULTIHOP)
    charts = []
    for times in results.traces:
        curves = []
        for policy in policies:
            values = sorted(times.all_to_all[policy.name])
            points = [(value, (n + 1) / len(values), "") for n, value in enumerate(values)]
            curves.append(
                Curve(_COLOURS[policy], points, is_null=policy == EVEN_SPILL, marks=False)
            )
        across = Axis(
            0.98,
            8,
            {n: f"{n:g}" for n in (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)},
            True,
            "relative to the EPS",
        )
        up = Axis(0, 1, {n / 4: f"{25 * n} %" for n in range(5)})
        charts.append(Chart(f"{times.servers} servers", across, up, curves, None))
    title = "All-to-alls of a recorded training run at 7+1 NICs, cumulative share"
    return charts_picture(title, charts, _legend(policies))


# --- drawing -------------------------------------------------------------------------------------


def _highest(curves: Sequence[Curve]) -> float:
    return max(y for curve in curves for _, y, _ in curve.points)


def _log_axis(highest: float) -> Axis:
    """Return a logarithmic axis from just below 1, with ticks that its length has room for."""
    steps = (1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 30.0)
    high = max(highest, 1.02) * 1.02
    low = high**-0.04
    room = 0.09 * math.log(high / low)
    ticks, last = dict[float, str](), -math.inf
    for step in steps:
        if step <= high and math.log(step) >= last + room:
            ticks[step], last = f"{step:g}", math.log(step)
    return Axis(low, high, ticks, logarithmic=True)


def _legend(policies: Sequence[FrontierPolicy]) -> list[tuple[str, str]]:
    return [(f"t{_COLOURS[policy]}", policy.title) for policy in policies]


def _model_legend(results: FrontierResults) -> list[tuple[str, str]]:
    return [
        (f"t{colour}", model) for colour, model in zip(_MODEL_COLOURS, results.models, strict=True)
    ]
