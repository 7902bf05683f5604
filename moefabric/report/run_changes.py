"""Changes from earlier runs of an experiment to a later one, fabric by fabric.

Iterations and collectives are compared with the same ones of the other run; the change of a time is
the geometric mean of their ratios. A change counts if it is larger than a threshold and than the
spread: the largest change that runs of the same thing show in 95 % of all cases (Student's t). With
several earlier runs, the spread is that of the runs. With one, it is estimated from how much the
ratios differ within the two runs, and knows nothing of what slows down a whole run.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from statistics import fmean, median, stdev
from typing import Final, Literal

from moefabric.core.errors import SpecError
from moefabric.report.formatting import printable
from moefabric.report.remarks import circuit_lines
from moefabric.report.summary import FabricSummary, summaries
from moefabric.results.circuit_use import measured_use
from moefabric.results.comparison import collective_key
from moefabric.results.model import RunResult, Verdict
from moefabric.results.parts import Json

Outcome = Literal[
    "regression", "improvement", "same", "within spread", "not measured", "invalid run"
]
"""Verdict on a figure: `within spread` is a change beyond the threshold that may be chance.

A figure of an `invalid run` is shown and not judged.
"""
THRESHOLD: Final = 0.02
"""Change that is no regression yet: 2 % of a time, or 2 points of a share."""
_CONFIDENCE: Final = 0.975
"""Quantile of Student's t for two-sided bounds of 95 %."""


@dataclass(frozen=True)
class FigureChange:
    """Change of one figure of a fabric.

    Attributes:
        figure: `iteration`, `all-to-all` or `optical share`.
        before: Median of an earlier run in seconds, or a share of 1, and of several runs the median
            of these; None if not measured.
        after: The same of the later run.
        change: Relative change of a time, or difference of shares; positive is more.
        spread: Change that repetition alone explains; None if there are too few samples.
        samples: Number of iterations or collectives that all runs have.
        outcome: What the change means.
    """

    figure: str
    before: float | None
    after: float | None
    change: float | None
    spread: float | None
    samples: int
    outcome: Outcome

    @property
    def exceeds_spread(self) -> bool | None:
        """True if the change is larger than the spread; None if that is unknown."""
        if self.change is None or self.spread is None:
            return None
        return abs(self.change) > self.spread


@dataclass(frozen=True)
class FabricChange:
    """Changes of one fabric.

    Attributes:
        fabric: Name of the fabric.
        before: Worst verdict of the earlier runs; None if the fabric is new.
        after: Verdict of the later run; None if the fabric is missing.
        figures: The figures; empty if the fabric is new or missing.
    """

    fabric: str
    before: Verdict | None
    after: Verdict | None
    figures: tuple[FigureChange, ...] = ()

    @property
    def is_regression(self) -> bool:
        """True if the fabric is missing, or its verdict or a figure has become worse."""
        if self.before is None:
            return False
        order = list(Verdict)
        worse = self.after is None or order.index(self.after) > order.index(self.before)
        return worse or any(figure.outcome == "regression" for figure in self.figures)


@dataclass(frozen=True)
class RunChanges:
    """Changes of all fabrics.

    Attributes:
        fabrics: The fabrics of the earlier runs, then new ones.
        threshold: Change that is no regression yet.
        earlier: Number of earlier runs.
        remarks: Why the runs may not be comparable, and which fabrics had the same circuits.
    """

    fabrics: tuple[FabricChange, ...]
    threshold: float
    earlier: int
    remarks: tuple[str, ...] = ()

    @property
    def is_regression(self) -> bool:
        """True if any fabric has become worse."""
        return any(fabric.is_regression for fabric in self.fabrics)

    @property
    def is_invalid(self) -> bool:
        """True if any figure comes from measurements that can't be trusted."""
        return any(Verdict.INVALID in (f.before, f.after) for f in self.fabrics)

    def to_json(self) -> Json:
        """Return the changes as a JSON object."""
        document: Json = {
            "regression": self.is_regression,
            "threshold": self.threshold,
            "earlier_runs": self.earlier,
            "remarks": list(self.remarks),
            "fabrics": [],
        }
        for fabric in self.fabrics:
            entry = asdict(fabric) | {"regression": fabric.is_regression}
            for written, figure in zip(entry["figures"], fabric.figures, strict=True):
                written["exceeds_spread"] = figure.exceeds_spread
            document["fabrics"].append(entry | {"figures": list(entry["figures"])})
        return document


@dataclass(frozen=True)
class _Figure:
    """A figure that is compared.

    Attributes:
        value: Its value in a run: a median or a share.
        samples: Measurements of the figure, by keys that are equal in every run: shares, or
            logarithms of times.
        is_share: Whether it is a share, of which less is worse, instead of a time.
    """

    name: str
    value: Callable[[FabricSummary], float | None]
    samples: Callable[[FabricSummary], Mapping[object, float]]
    is_share: bool = False


def _iterations(fabric: FabricSummary) -> dict[object, float]:
    iterations = enumerate(fabric.result.iterations)
    return {(k, i.job, i.iteration): math.log(i.measured_s) for k, i in iterations if i.measured_s}


def _all_to_alls(fabric: FabricSummary) -> dict[object, float]:
    measured = (c for c in fabric.all_to_alls if c.measured_s > 0)
    return {collective_key(c): math.log(c.measured_s) for c in measured}


def _shares(fabric: FabricSummary) -> dict[object, float]:
    light = {collective_key(c): c.bytes_by_light or 0 for c in fabric.counted}
    return {
        key: light[key] / total
        for c in fabric.counted
        if (total := light[(key := collective_key(c))] + (c.bytes_by_eps or 0))
    }


_FIGURES: Final = (
    _Figure("iteration", lambda fabric: fabric["iteration_s"], _iterations),
    _Figure("all-to-all", lambda fabric: fabric["all_to_all_s"], _all_to_alls),
    _Figure("optical share", lambda fabric: fabric["optical_share"], _shares, is_share=True),
)


def run_changes(
    earlier: Sequence[RunResult], later: RunResult, threshold: float = THRESHOLD
) -> RunChanges:
    """Compare a run with earlier ones; fabrics are matched by their names.

    Args:
        earlier: One run, or several of the same thing, which show how much runs differ.
        later: The run that may have changed.
        threshold: Change that is no regression yet: part of a time, points of a share.

    Raises:
        SpecError: If there is no earlier run, or no fabric is in all of them.
    """
    if not earlier:
        raise SpecError([("compare", "an earlier run is needed")])
    before = [{s.result.fabric: s for s in summaries(run)} for run in earlier]
    after = {s.result.fabric: s for s in summaries(later)}
    names = [name for name in before[0] if all(name in run for run in before)]
    if not names:
        raise SpecError([("compare", "the earlier runs have no fabric in common")])
    changes = list[FabricChange]()
    for name in dict.fromkeys((*names, *after)):
        was, now = [run[name] for run in before] if name in names else [], after.get(name)
        figures = [_figure_change(f, was, now, threshold) for f in _FIGURES if was and now]
        worst = max((fabric.verdict for fabric in was), key=list(Verdict).index, default=None)
        changes.append(FabricChange(name, worst, now.verdict if now else None, tuple(figures)))
    return RunChanges(tuple(changes), threshold, len(earlier), tuple(_remarks(earlier, later)))


def _figure_change(
    figure: _Figure, before: Sequence[FabricSummary], after: FabricSummary, threshold: float
) -> FigureChange:
    values = [value for fabric in before if (value := figure.value(fabric)) is not None]
    former, now = median(values) if values else None, figure.value(after)
    runs = [figure.samples(fabric) for fabric in (*before, after)]
    keys = set(runs[0]).intersection(*runs[1:])
    *earlier, later = ([samples[key] for key in keys] for samples in runs)
    if former is None or now is None or not keys:
        return FigureChange(figure.name, former, now, None, None, len(keys), "not measured")
    spread = _spread_between(earlier) if len(earlier) > 1 else _spread_within(earlier[0], later)
    change = now - former
    if not figure.is_share:
        change = math.expm1(fmean(later) - fmean(map(fmean, earlier)))
        spread = None if spread is None else math.expm1(spread)
    outcome = _outcome(-change if figure.is_share else change, spread, threshold)
    if any(fabric.is_invalid for fabric in (*before, after)):
        outcome = "invalid run"
    return FigureChange(figure.name, former, now, change, spread, len(keys), outcome)


def _outcome(worse_by: float, spread: float | None, threshold: float) -> Outcome:
    if abs(worse_by) <= threshold:
        return "same"
    if spread is not None and abs(worse_by) <= spread:
        return "within spread"
    return "regression" if worse_by > 0 else "improvement"


def _spread_between(runs: Sequence[Sequence[float]]) -> float | None:
    """Return how much one more run differs from the mean of earlier ones, given their samples."""
    values = list(map(fmean, runs))
    return student(len(values) - 1) * stdev(values) * math.sqrt(1 + 1 / len(values))


def _spread_within(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return how much the means of two runs of the same thing differ, given paired samples."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if len(differences) < 2:
        return None
    return student(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))


def student(degrees: int) -> float:
    """Return the quantile of Student's t for two-sided bounds of 95 %."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, _CONFIDENCE))


def _scale_text(run: RunResult) -> str:
    wirings = [result.wiring for result in run.results]
    scales = [f"{w.bytes_scale:g} x {w.dilation:g}" for w in wirings if w.bytes_scale]
    return ", ".join(dict.fromkeys(scales)) or "unknown"


_CIRCUMSTANCES: Final[Mapping[str, Callable[[RunResult], object]]] = {
    "experiments": attrgetter("experiment"),
    "versions": attrgetter("version"),
    "machines": attrgetter("manifest.host"),
    "kernels": attrgetter("manifest.kernel"),
    "datapaths": attrgetter("manifest.datapath"),
    "transports": attrgetter("manifest.transport"),
    "seeds": attrgetter("manifest.seed"),
    "scales": _scale_text,
}


def _remarks(earlier: Sequence[RunResult], later: RunResult) -> Iterator[str]:
    """Yield the differences of the runs that may explain changes."""
    for name, of in _CIRCUMSTANCES.items():
        before = list(dict.fromkeys(printable(of(run)) for run in earlier))
        after = printable(of(later))
        if before != [after]:
            yield f"the {name} differ: {', '.join(before)} before, {after} now"
    yield from _other_inputs(earlier, later)
    yield from circuit_lines(later.results)
    yield from _same_circuits(earlier[-1], later)


def _same_circuits(earlier: RunResult, later: RunResult) -> Iterator[str]:
    """Yield the fabrics whose circuits are the same in both runs although the policy is another."""
    before = {fabric.fabric: fabric for fabric in earlier.results}
    for now in later.results:
        was = before.get(now.fabric)
        if was is None or was.policy == now.policy:
            continue
        use = measured_use(now)
        if any(use.values()) and measured_use(was) == use:
            policies = f"{printable(was.policy)} before and {printable(now.policy)} now"
            yield f"{printable(now.fabric)}: the same circuits in all all-to-alls by {policies}"


def _other_inputs(earlier: Sequence[RunResult], later: RunResult) -> Iterator[str]:
    """Yield the inputs of a run that aren't those of each earlier one, as far as both are known."""
    now = {digest.key: digest for digest in later.manifest.inputs or ()}
    for run in earlier:
        for was in run.manifest.inputs or ():
            digest = now.get(was.key)
            if digest is not None and digest.sha256 != was.sha256:
                digests = f"{was.sha256[:12]} before, {digest.sha256[:12]} now"
                yield f"the inputs differ: {printable(was.key)} {printable(was.file)} is {digests}"
