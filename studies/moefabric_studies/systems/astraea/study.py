"""Study of Astraea: staggered flows at one queue, and other congestion controls as baselines."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moefabric import FabricError
from moefabric.api.charts import Axis, Line, Panel, document_picture
from moefabric.api.links import dctcp
from moefabric.api.plugins import Section
from moefabric_studies.grids import captions, grid
from moefabric_studies.systems.astraea.decisions import OWN_WEIGHTS, Actor
from moefabric_studies.systems.astraea.flows import BIN_S, Bottleneck, Trace, trace_of
from moefabric_studies.systems.astraea.policy import DecisionTimes, governed
from moefabric_studies.systems.study import Measure, Outcome, StudyContext

_SMOOTH: Final = 5
"""Bins over which a curve is averaged."""
_COLOURS: Final = (1, 4, 2)
Rates = NDArray[np.float64]
LATE_S: Final = 5.0
"""The end of a run, in which flows are compared."""
STEADY_BIN_S: Final = 0.5
"""Time over which throughput is averaged before its deviation is taken."""
WINDOW_S: Final = 1.0
"""Time over which throughput has to be near the fair share, for a flow to have converged."""
NEAR: Final = 0.15


class AstraeaSetup(Section):
    """Sizes and rates of the study of Astraea."""

    rate_bps: float = Field(default=100e6, gt=0)
    """Rate of the bottleneck in bits per second."""
    rtt_ms: float = Field(default=30.0, gt=0)
    """Round-trip time of an empty queue in ms."""
    far_rate_bps: float = Field(default=50e6, gt=0)
    """Rate of a bottleneck at the edge of the authors' range."""
    far_rtt_ms: float = Field(default=20.0, gt=0)
    """Round-trip time of that bottleneck in ms."""
    flows: int = Field(default=3, ge=2)
    """Flows."""
    stagger_s: float = Field(default=8.0, ge=6.0)
    """Time between two starts, and from the last start to the end, in s."""
    repeats: int = Field(default=2, ge=1)
    """Runs of Astraea and of bbr at the first bottleneck."""
    late_ms: float = Field(default=20.0, gt=0)
    """Most that the link's relay may be late, at the 99th percentile, in ms."""
    weights: str = str(OWN_WEIGHTS)
    """The actor's weights."""


@dataclass
class Runs:
    """Runs of one congestion control at one bottleneck."""

    title: str
    traces: list[Trace] = field(default_factory=list)

    def late(self, statistic: Callable[[Rates], float]) -> list[float]:
        """Return a statistic of the rates that flows had of late, for each run."""
        return [statistic(late_rates(trace.rates, BIN_S)) for trace in self.traces]

    def jains(self) -> list[float]:
        """Return the index of fairness of each run."""
        return self.late(jain)

    def convergences_s(self) -> list[float]:
        """Return the time in which the last flow converged, at most the time that it had."""
        times = []
        for trace in self.traces:
            share = float(late_rates(trace.rates, BIN_S).mean())
            start_s = trace.starts_s[-1]
            converged_s = convergence_s(trace.rates[-1], BIN_S, start_s, share)
            left_s = trace.rates.shape[1] * BIN_S - start_s
            times.append(left_s if converged_s is None else converged_s)
        return times

    def deviations(self) -> list[float]:
        """Return the deviation of late throughput of each run, in Mb/s."""
        return [deviation(trace.rates, BIN_S) / 1e6 for trace in self.traces]

    def used(self) -> list[float]:
        """Return the share of the link that all flows had of late, in each run."""
        return self.late(lambda rates: float(rates.sum()) / self.traces[0].bottleneck.rate_bps)

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table of all runs."""
        rtt = np.median([np.nanmean(trace.rtt_s[:, -50:]) for trace in self.traces])
        ports = [trace.counters.ports["p1"] for trace in self.traces]
        carried = [
            port.bytes * 8 / (trace.rates.sum() * BIN_S)
            for port, trace in zip(ports, self.traces, strict=True)
        ]
        return (
            self.title,
            str(len(self.traces)),
            f"{np.median(self.jains()):.3f}",
            f"{np.median(self.convergences_s()):.1f}",
            f"{np.median(self.deviations()):.2f}",
            f"{np.median(self.used()):.2f}",
            f"{1e3 * rtt:.0f}",
            f"{np.median(carried):.3f}",
            f"{np.median([port.dropped for port in ports]):.0f}",
            f"{np.median([port.marked for port in ports]):.0f}",
            f"{max(trace.counters.lateness.p99_ns for trace in self.traces) / 1e6:.1f}",
        )


class AstraeaStudy:
    """Measures Astraea's claims."""

    setup = AstraeaSetup

    def measure(self, setup: AstraeaSetup, context: StudyContext) -> Outcome:
        """Run all congestion controls and compare them.

        Raises:
            UnsupportedError: The kernel can't load congestion controls.
            FabricError: The relay of the link was too late for the values to mean anything.
        """
        near = Bottleneck(setup.rate_bps, setup.rtt_ms / 1e3)
        far = Bottleneck(setup.far_rate_bps, setup.far_rtt_ms / 1e3)
        far_name = f"{far.rate_bps / 1e6:g} Mb/s, {setup.far_rtt_ms:g} ms"
        fair, decisions = replace(near, is_fair=True), DecisionTimes()
        with ExitStack() as undo:
            actor = Actor.load(context.folder / setup.weights)
            actor_control, times = undo.enter_context(governed(actor))
            marked = undo.enter_context(dctcp())
            plan = [
                (Runs("astraea"), near, actor_control, setup.repeats),
                (Runs("cubic"), near, "cubic", 1),
                (Runs("bbr"), near, "bbr", setup.repeats),
                (Runs("dctcp, ECN"), replace(near, has_ecn=True), marked, 1),
                (Runs("astraea, fair queues"), fair, actor_control, 1),
                (Runs("cubic, fair queues"), fair, "cubic", 1),
                (Runs(f"astraea, {far_name}"), far, actor_control, 1),
            ]
            for repeat in range(setup.repeats):
                for runs, bottleneck, control, repeats in plan:
                    if repeat < repeats:
                        name = f"{runs.title}, run {repeat + 1}"
                        context.reporter.show_message(name)
                        measure = partial(_trace, bottleneck, control, times, setup)
                        trace, lateness = context.keep(name, tuple[Trace, DecisionTimes], measure)
                        runs.traces.append(trace)
                        decisions.late_s += lateness.late_s
                        decisions.work_s += lateness.work_s
        return _outcome([runs for runs, *_ in plan], decisions, setup)


def _trace(
    bottleneck: Bottleneck, control: str, times: DecisionTimes, setup: AstraeaSetup
) -> tuple[Trace, DecisionTimes]:
    """Return the trace of a run, and the times of its decisions, to which `times` gets them."""
    times.late_s.clear()
    times.work_s.clear()
    trace = trace_of(bottleneck, control, setup.flows, setup.stagger_s)
    late_ms = trace.counters.lateness.p99_ns / 1e6
    if late_ms > setup.late_ms:
        what = f"the link's relay was {late_ms:.0f} ms late at the 99th percentile"
        raise FabricError(f"{what}, more than {setup.late_ms:g} ms: use a quiet machine")
    return trace, DecisionTimes([*times.late_s], [*times.work_s])


def _outcome(all_runs: Sequence[Runs], times: DecisionTimes, setup: AstraeaSetup) -> Outcome:
    actor, cubic, bbr, marked, fair, fair_cubic, far = all_runs
    own_s, own_deviation = np.median(actor.convergences_s()), np.median(actor.deviations())
    limit = f"A flow that never converged counts with the {setup.stagger_s:g} s that it had."
    measures = {
        "jain": Measure.median_of(actor.jains()),
        "used": Measure.median_of(actor.used(), f"cubic: {np.median(cubic.used()):.2f}."),
        "convergence": Measure.median_of([s / own_s for s in cubic.convergences_s()], limit),
        "convergence_bbr": Measure.median_of([s / own_s for s in bbr.convergences_s()], limit),
        "deviation": Measure.median_of([mbps / own_deviation for mbps in bbr.deviations()]),
        "jain_far": Measure.median_of(far.jains()),
        "fair_gain": Measure.median_of(
            fair.jains(), f"With FIFO {np.median(actor.jains()):.3f}; {_both(cubic, fair_cubic)}."
        ),
        "jain_dctcp": Measure.median_of(marked.jains()),
        "decision": Measure.median_of(
            [1e3 * float(np.median(times.work_s))],
            f"{len(times.work_s)} decisions; they began {_late(times)} ms late (p99).",
        ),
    }
    picture = throughput_picture({runs.title: runs.traces[0] for runs in all_runs})
    controls = grid("systems/astraea/controls", (runs.row() for runs in all_runs), limit=limit)
    return Outcome(measures, {"astraea": picture}, captions("systems/astraea"), [controls])


def _both(fifo: Runs, fair: Runs) -> str:
    return f"cubic: {np.median(fifo.jains()):.3f} with FIFO, {np.median(fair.jains()):.3f} with FQ"


def _late(times: DecisionTimes) -> str:
    return f"{1e3 * float(np.percentile(times.late_s, 99)):.1f}"


def throughput_picture(traces: Mapping[str, Trace]) -> str:
    """Return an SVG file with each flow's throughput over time.

    Args:
        traces: Runs by their titles.
    """
    flows = range(len(next(iter(traces.values())).starts_s))
    legend = [(f"t{_COLOURS[flow % len(_COLOURS)]}", f"flow {flow + 1}") for flow in flows]
    panels = [_panel(f"{title}, Mb/s", trace) for title, trace in traces.items()]
    title = "Throughput of staggered flows over time, in Mb/s"
    return document_picture(title, panels, columns=3, legend=legend)


def _panel(heading: str, trace: Trace) -> Panel:
    bins, most = trace.rates.shape[1], trace.bottleneck.rate_bps / 1e6
    mean, edge = np.full(_SMOOTH, 1 / _SMOOTH), _SMOOTH // 2
    marks = []
    for flow, start_s in enumerate(trace.starts_s):
        rate_mbps = np.convolve(trace.rates[flow] / 1e6, mean, mode="valid")
        points = [
            ((number + 0.5) * BIN_S, float(rate_mbps[number - edge]))
            for number in range(round(start_s / BIN_S) + edge, bins - edge)
        ]
        marks.append(Line(points, f"curve c{_COLOURS[flow % len(_COLOURS)]}"))
    x, y = Axis.seconds(0, bins * BIN_S, 4), Axis.numbers(0, most * 1.05, most=4)
    return Panel(x, y, marks, 108, heading)


def jain(rates: Rates) -> float:
    """Return Jain's index of rates: 1 if they are equal, 1/n if one of n has everything."""
    total = float(np.sum(rates))
    return total**2 / (len(rates) * float(np.sum(rates**2))) if total else 0.0


def late_rates(rates: Rates, bin_s: float) -> Rates:
    """Return each flow's mean rate at the end of a run.

    Args:
        rates: [flows, bins].
        bin_s: Length of a bin in s.
    """
    means: Rates = rates[:, -round(LATE_S / bin_s) :].mean(axis=1)
    return means


def convergence_s(rates: Rates, bin_s: float, start_s: float, share: float) -> float | None:
    """Return how long after its start a flow first has its share for a second, within 15 %.

    Args:
        rates: [bins]: The flow's rates.
        bin_s: Length of a bin in s.
        start_s: The flow's start in s.
        share: The fair share, in the rates' unit.

    Returns:
        The end of that second, in s after the start; None if there is none.
    """
    width, first = round(WINDOW_S / bin_s), round(start_s / bin_s)
    flow_rates = rates[first:]
    if len(flow_rates) < width:
        return None
    means = np.convolve(flow_rates, np.full(width, 1 / width), mode="valid")
    near = np.flatnonzero(np.abs(means - share) <= NEAR * share)
    return float((near[0] + width) * bin_s) if len(near) else None


def deviation(rates: Rates, bin_s: float) -> float:
    """Return the mean over flows of the standard deviation of their late rates.

    Args:
        rates: [flows, bins].
        bin_s: Length of a bin in s.
    """
    width = round(STEADY_BIN_S / bin_s)
    late = rates[:, -round(LATE_S / bin_s) :]
    means = late[:, : late.shape[1] // width * width].reshape(len(late), -1, width).mean(axis=2)
    return float(means.std(axis=1).mean())
