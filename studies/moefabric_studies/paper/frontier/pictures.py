"""Pictures of the frontier study: small charts side by side, as SVG files."""

from collections.abc import Mapping, Sequence
from typing import Final

from moefabric import rate_text
from moefabric.api.charts import Axis, Panel, curve, document_picture, plot
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
from moefabric_studies.paper.frontier.results import FrontierResults, Point, efficient

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


Points = Sequence[tuple[float, float, str]]
"""Points of a curve with their tooltips."""


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
    across, panels = Axis(8e3, 160e3, prices, "USD a server", logarithmic=True), []
    for model in results.models:
        points = results.select(model=model, servers=servers)
        best_s = min(point.iteration_s for point in points if point.policy == EPS.name)
        best = {p: efficient([q for q in points if q.policy == p.name]) for p in policies}
        curves = {
            policy: [(p.usd, p.iteration_s / best_s, _tooltip(policy, p)) for p in best[policy]]
            for policy in policies
        }
        panels.append(_policies(model, across, curves, None))
    title = (
        f"Regions of {servers} servers: iteration time (best EPS = 1) against cost, "
        "100 to 800 Gb/s, every A+E"
    )
    return document_picture(title, panels, columns=3, legend=_legend(policies))


def _tooltip(policy: FrontierPolicy, point: Point) -> str:
    return (
        f"{policy.title}, {point.optical}+{point.electrical} at {rate_text(point.rate_bps)}: "
        f"{point.usd:,.0f} USD, {point.iteration_s:.3g} s"
    )


def all_to_alls(results: FrontierResults) -> str:
    """Draw the time of an all-to-all, the longest of the models, by the split of the NICs."""
    policies = (MIXNET, SPILL, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP)
    splits = {float(n): f"{n}+{NICS - n}" for n in optical_nics(MULTIHOP)}
    across, panels = Axis(1, NICS - 1, splits, "circuits + electrical NICs"), []
    for servers in results.region_sizes:
        curves = {
            policy: [
                (optical, value, f"{policy.title}, {optical}+{NICS - optical}: {value:.2f}")
                for optical in optical_nics(policy)
                for value in [_slowest(results, policy, servers, optical)]
            ]
            for policy in policies
        }
        panels.append(_policies(f"{servers} servers", across, curves))
    title = "All-to-all relative to a non-blocking EPS of eight NICs, the slowest of the models"
    return document_picture(title, panels, columns=3, legend=_legend(policies))


def _slowest(results: FrontierResults, policy: FrontierPolicy, servers: int, optical: int) -> float:
    points = results.select(servers=servers, policy=policy.name, optical=optical)
    return max(point.all_to_all for point in points)


def efficiency(results: FrontierResults) -> str:
    """Draw performance per dollar at the best split of the NICs, by the NIC rate."""
    policies = (TAPERED, MIXNET, JOINT, MOVED_MULTIHOP, MULTIHOP, EVEN_SPILL)
    rates = {float(n): f"{rate / 1e9:g}" for n, rate in enumerate(results.rates)}
    across, up = Axis(0, len(rates) - 1, rates, "NIC rate, Gb/s"), Axis.numbers(0, 3.5, most=7)
    panels = []
    for servers in results.region_sizes:
        curves = {
            policy: [
                (n, value, f"{policy.title}, {optical}+{NICS - optical}, {text}: {value:.2f}")
                for n, rate in enumerate(results.rates)
                for text in [rate_text(rate)]
                for optical, value in [results.best_split(policy.name, servers, rate)]
            ]
            for policy in policies
        }
        panels.append(_policies(f"{servers} servers", across, curves, up=up))
    title = "Performance per dollar relative to a non-blocking EPS, best A+E, mean of the models"
    return document_picture(title, panels, columns=3, legend=_legend(policies))


def capacity(results: FrontierResults) -> str:
    """Draw the time of an all-to-all by the rate at which a server forwards."""
    panels = []
    for servers in results.region_sizes:
        limits = [limit for limit in results.limits if limit.servers == servers]
        labels = list(limits[0].by_nics)
        names = {float(n): label.removeprefix("0") or "0" for n, label in enumerate(labels)}
        across = Axis(0, len(labels) - 1, names, "NICs' worth that a server forwards")
        curves = [
            [
                (n, value, f"{limit.model}, {label} NICs: {value:.2f}")
                for n, (label, value) in enumerate(limit.by_nics.items())
            ]
            for limit in limits
        ]
        drawn = [curve(n, points) for n, points in enumerate(curves, 1)]
        panels.append(plot(f"{servers} servers", across, _log_axis(curves), drawn, 1.0))
    title = (
        "All-to-all at 7+1 NICs by forwarding rate; 0 is the null model, spill without forwarding"
    )
    return document_picture(title, panels, columns=3, legend=_model_legend(results))


def latency(results: FrontierResults) -> str:
    """Draw the time of an all-to-all by the latency of a server that forwards."""
    times = {1e-6: "1 µs", 1e-5: "10 µs", 1e-4: "0.1 ms", 1e-3: "1 ms", 1e-2: "10 ms"}
    across = Axis(1e-6, 1e-2, times, "latency of a server that forwards", logarithmic=True)
    panels = []
    for servers in results.region_sizes:
        curves = list[Points]()
        for limit in (limit for limit in results.limits if limit.servers == servers):
            curves.append(
                [(s, limit.with_latency(s, LATENCY_RATE_BPS), "") for s in _HOP_LATENCIES_S]
            )
            curves.append([(s, limit.by_nics["0"], "") for s in _HOP_LATENCIES_S])
        drawn = (
            curve(n // 2 + 1, points, dashed=n % 2 == 1, marks=False)
            for n, points in enumerate(curves)
        )
        panels.append(plot(f"{servers} servers", across, _log_axis(curves), drawn, 1.0))
    title = (
        "All-to-all at 7+1 NICs of 400 Gb/s by latency; dashed: the null model, without forwarding"
    )
    return document_picture(title, panels, columns=3, legend=_model_legend(results))


def permutation(results: FrontierResults) -> str:
    """Draw the time of an all-to-all whose demand approaches a permutation."""
    policies = (MIXNET, JOINT, MOVED_MULTIHOP, EVEN_SPILL, MULTIHOP)
    shares = {n / 4: f"{25 * n} %" for n in range(5)}
    across, panels = Axis(0, 1, shares, "bytes between partners"), []
    for servers in results.region_sizes:
        mixes = [m for m in results.mixes if m.servers == servers and m.kind == "exchange"]
        curves = {
            policy: [
                (mix.share, value, f"{policy.title}, {mix.share:.0%}: {value:.2f}")
                for mix in mixes
                for value in [mix.all_to_all[policy.name]]
            ]
            for policy in policies
        }
        panels.append(_policies(f"{servers} servers", across, curves))
    title = (
        "All-to-all at 7+1 NICs relative to a non-blocking EPS: from MoE demand to a permutation"
    )
    return document_picture(title, panels, columns=3, legend=_legend(policies))


def trace(results: FrontierResults) -> str:
    """Draw the distribution of times over the all-to-alls of a recorded training run."""
    policies = (MIXNET, JOINT, EVEN_SPILL, MULTIHOP)
    times = {n: f"{n:g}" for n in (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)}
    across = Axis(0.98, 8, times, "relative to the EPS", logarithmic=True)
    up, panels = Axis(0, 1, {n / 4: f"{25 * n} %" for n in range(5)}), []
    for recorded in results.traces:
        curves = {
            policy: [
                (value, (n + 1) / len(recorded.all_to_all[policy.name]), "")
                for n, value in enumerate(sorted(recorded.all_to_all[policy.name]))
            ]
            for policy in policies
        }
        heading = f"{recorded.servers} servers"
        panels.append(_policies(heading, across, curves, None, up, marks=False))
    title = "All-to-alls of a recorded training run at 7+1 NICs, cumulative share"
    return document_picture(title, panels, columns=3, legend=_legend(policies))


# --- drawing -------------------------------------------------------------------------------------


def _policies(
    heading: str, across: Axis, curves: Mapping[FrontierPolicy, Points],
    reference: float | None = 1.0, up: Axis | None = None, *, marks: bool = True,
) -> Panel:  # fmt: skip
    """Return a panel with a curve for each policy; the null model's is dashed."""
    drawn = (
        curve(_COLOURS[policy], points, dashed=policy == EVEN_SPILL, marks=marks)
        for policy, points in curves.items()
    )
    return plot(heading, across, up or _log_axis(list(curves.values())), drawn, reference)


def _log_axis(curves: Sequence[Points]) -> Axis:
    """Return a logarithmic axis from just below 1, with ticks that its length has room for."""
    steps = (1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 30.0)
    high = max(1.02, *(y for points in curves for _, y, _ in points)) * 1.02
    ticks = {step: f"{step:g}" for step in reversed(steps) if step <= high}
    return Axis(high**-0.04, high, ticks, logarithmic=True)


def _legend(policies: Sequence[FrontierPolicy]) -> list[tuple[str, str]]:
    return [(f"t{_COLOURS[policy]}", policy.title) for policy in policies]


def _model_legend(results: FrontierResults) -> list[tuple[str, str]]:
    return [(f"t{n}", model) for n, model in enumerate(results.models, 1)]
