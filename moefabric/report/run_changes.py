"""Changes from earlier runs of an experiment to a later one, fabric by fabric.

Iterations and collectives are compared with the same ones of the other run: times before and after
are geometric means over those that all runs have, so that their ratio is the change. A change
counts if it is larger than a threshold and than the spread: the largest change that runs of the
same thing show in 95 % of all cases (Student's t). With several earlier runs, the spread is that of
the runs. With one, it is estimated from how much the ratios differ within the two runs, and knows
nothing of what slows down a whole run.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from operator import attrgetter
from statistics import fmean, geometric_mean, stdev
from typing import Final, Literal

from moefabric.core.errors import SpecError
from moefabric.report.formatting import printable
from moefabric.report.remarks import circuit_lines
from moefabric.report.summary import FabricSummary, summaries
from moefabric.results.circuit_use import measured_use, with_circuit_use
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
        before: Over the samples that all runs have, the geometric mean in seconds or the share of
            1, and of several earlier runs the mean of these; without such samples, over all that
            there are; None if not measured.
        after: The same of the later run.
        change: Relative change of a time, or difference of shares; positive is more.
        spread: Change that repetition alone explains; None if there are too few samples.
        samples: Number of iterations or collectives that all runs have.
        outcome: What the change means.
        samples_before: The most that an earlier run has.
        samples_after: Those that the later run has.
    """

    figure: str
    before: float | None
    after: float | None
    change: float | None
    spread: float | None
    samples: int
    outcome: Outcome
    samples_before: int
    samples_after: int

    @property
    def is_judged(self) -> bool:
        """True if the change means something."""
        return self.outcome not in ("not measured", "invalid run")

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

    @property
    def figures(self) -> list[FigureChange]:
        """The figures of all fabrics that earlier runs and the later one have."""
        return [figure for fabric in self.fabrics for figure in fabric.figures]

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


Samples = Mapping[object, float]
"""Measurements of a figure by keys that are equal in every run: shares, or logarithms of times."""


@dataclass(frozen=True)
class _Figure:
    """A figure that is compared.

    Attributes:
        samples: Its measurements in a run.
        mean: Its value over the samples with some keys.
        is_share: Whether it is a share, of which less is worse, instead of a time.
    """

    name: str
    samples: Callable[[FabricSummary], Samples]
    mean: Callable[[FabricSummary, Collection[object]], float]
    is_share: bool = False


def _iterations(fabric: FabricSummary) -> dict[object, float]:
    iterations = enumerate(fabric.result.iterations)
    return {(k, i.job, i.iteration): math.log(i.measured_s) for k, i in iterations if i.measured_s}


def _all_to_alls(fabric: FabricSummary) -> dict[object, float]:
    measured = (c for c in fabric.all_to_alls if c.measured_s > 0)
    return {collective_key(c): math.log(c.measured_s) for c in measured}


def _shares(fabric: FabricSummary) -> dict[object, float]:
    return {key: light / total for key, (light, total) in _counted_bytes(fabric).items()}


def _counted_bytes(fabric: FabricSummary) -> dict[object, tuple[int, int]]:
    """Return the bytes by light and in all of each collective that has sent any."""
    return {
        collective_key(c): (light, total)
        for c in fabric.counted
        if (total := (light := c.bytes_by_light or 0) + (c.bytes_by_eps or 0))
    }


def _geometric_mean(
    samples: Callable[[FabricSummary], Samples],
) -> Callable[[FabricSummary, Collection[object]], float]:
    def mean(fabric: FabricSummary, keys: Collection[object]) -> float:
        measured = samples(fabric)
        return math.exp(fmean([measured[key] for key in keys]))

    return mean


def _whole_share(fabric: FabricSummary, keys: Collection[object]) -> float:
    counted = [count for key, count in _counted_bytes(fabric).items() if key in keys]
    return sum(light for light, _ in counted) / sum(total for _, total in counted)


_FIGURES: Final = (
    _Figure("iteration", _iterations, _geometric_mean(_iterations)),
    _Figure("all-to-all", _all_to_alls, _geometric_mean(_all_to_alls)),
    _Figure("optical share", _shares, _whole_share, is_share=True),
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
        SpecError: If there is no earlier run, or no fabric is in all runs.
    """
    if not earlier:
        raise SpecError([("compare", "an earlier run is needed")])
    before = [{s.result.fabric: s for s in summaries(run)} for run in earlier]
    after = {s.result.fabric: s for s in summaries(later)}
    names = [name for name in before[0] if all(name in run for run in before)]
    if not names:
        raise SpecError([("compare", "the earlier runs have no fabric in common")])
    if not after.keys() & names:
        former, latter = (", ".join(map(printable, run)) for run in (names, after))
        fault = f"the runs have no fabric in common ({former} before, {latter} now)"
        remedy = "fabrics are matched by their names: give runs of one experiment"
        raise SpecError([("compare", f"{fault}: {remedy}")])
    changes = list[FabricChange]()
    for name in dict.fromkeys((*names, *after)):
        was, now = [run[name] for run in before] if name in names else [], after.get(name)
        figures = [_figure_change(f, was, now, threshold) for f in _FIGURES if was and now]
        worst = max((fabric.verdict for fabric in was), key=list(Verdict).index, default=None)
        changes.append(FabricChange(name, worst, now.verdict if now else None, tuple(figures)))
    return RunChanges(tuple(changes), threshold, len(earlier), tuple(_remarks(earlier, later)))


def fabric_changes(
    run: RunResult, before: str, after: str, threshold: float = THRESHOLD
) -> RunChanges:
    """Compare two fabrics of a run, iteration by iteration, as if they were one of two runs.

    Args:
        before: Name of the fabric that is compared with.
        after: Name of the other one.
        threshold: Change that is no regression yet: part of a time, points of a share.

    Raises:
        SpecError: If a fabric isn't one of the run's, or is given twice.
    """
    if before == after:
        raise SpecError([("fabrics", f"{before} is given twice: name two fabrics of the run")])
    entries = {entry.fabric: entry for entry in run.results}
    if unknown := [name for name in (before, after) if name not in entries]:
        known = ", ".join(map(printable, entries))
        fault = f"{', '.join(unknown)} is not one of the fabrics of the run: {known}"
        raise SpecError([("fabrics", fault)])
    pair, name = [entries[before], entries[after]], f"{before} to {after}"
    if any(entry.reconfigurations for entry in pair):
        pair = with_circuit_use(pair, [*map(measured_use, pair)])
    renamed = [entry.model_copy(update={"fabric": name}) for entry in pair]
    was, now = (run.model_copy(update={"results": [entry]}) for entry in renamed)
    scales = [_scale_text(was), _scale_text(now)]
    remarks = [] if scales[0] == scales[1] else [f"the scales differ: {' and '.join(scales)}"]
    changes = run_changes([was], now, threshold)
    return replace(changes, remarks=(*remarks, *circuit_lines(pair)))


def _figure_change(
    figure: _Figure, before: Sequence[FabricSummary], after: FabricSummary, threshold: float
) -> FigureChange:
    *earlier, later = [figure.samples(fabric) for fabric in (*before, after)]
    keys = set(later).intersection(*earlier)
    counts = max(map(len, earlier)), len(later)
    if not keys:
        means = [figure.mean(f, s) for f, s in zip(before, earlier, strict=True) if s]
        former = fmean(means) if means else None
        now = figure.mean(after, later) if later else None
        return FigureChange(figure.name, former, now, None, None, 0, "not measured", *counts)
    *pasts, present = [[samples[key] for key in keys] for samples in (*earlier, later)]
    spread = _spread_between(pasts) if len(pasts) > 1 else _spread_within(pasts[0], present)
    means, now = [figure.mean(fabric, keys) for fabric in before], figure.mean(after, keys)
    former = fmean(means) if figure.is_share else geometric_mean(means)
    change = now - former
    if not figure.is_share:
        change = now / former - 1
        spread = None if spread is None else math.expm1(spread)
    outcome = _outcome(-change if figure.is_share else change, spread, threshold)
    if any(fabric.is_invalid for fabric in (*before, after)):
        outcome = "invalid run"
    return FigureChange(figure.name, former, now, change, spread, len(keys), outcome, *counts)


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
    """Yield the differences of the runs that may explain changes, or that there can be none."""
    if any(one == other for one, other in combinations((*earlier, later), 2)):
        yield "a run is compared with itself: the files have the same results"
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
            if digest is None or digest == was:
                continue
            before, after = was.sha256[:12], digest.sha256[:12]
            if digest.file != was.file:
                after = f"{printable(digest.file)} {after}"
            named = f"{printable(was.key)} {printable(was.file)}"
            yield f"the inputs differ: {named} is {before} before, {after} now"
