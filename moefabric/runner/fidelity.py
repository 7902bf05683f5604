"""Verdict on a run: whether its measurements can be trusted.

`pass` means that paced collectives took their predicted time within 2 % in the median and 5 % in
the 95th percentile, that every byte arrived intact by its planned path, and that nothing else
disturbed the run. The bounds for `transport: tcp` and for idle CPU follow the literature on
emulation (Mininet-HiFi, CoNEXT'12: completion times within 10 % in the median and 20 % in the 95th
percentile; 35 % idle CPU). Each reason names the culprit: a collective, a flow, a link or a server.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.runner.result_model import ErrorSummary, FidelityResult, Integrity, Verdict

CPU_STEAL_LIMIT: Final = 0.03
"""CPU steal share above which a collective is reported but excluded from the verdict."""
MIN_COLLECTIVES: Final = 20
"""Judged collectives below which a 95th percentile says nothing."""
OUTLIER: Final = 2.0
"""Error above which a sample counts by itself: it took three times its prediction."""
_OUTLIER_SHARE: Final = 0.01
"""Share of outliers above which two or more invalidate a run."""
_IDLE: Final = 0.35
_STARVED: Final = 0.10
"""Idle share of the CPU below which any error of completion times invalidates a run."""
_MOST_NAMES: Final = 3
_QUANTILES: Final = 41
"""Points of a distribution's curve, however many samples it has."""

_ORDER: Final = tuple(Verdict)
Finding = tuple[Verdict, str]
"""A verdict and its reason."""


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of the verdicts; a pass if there are none."""
    return max(verdicts, key=_ORDER.index, default=Verdict.PASS)


@dataclass(frozen=True)
class LabelledError:
    """Relative error of a measurement, with the name of what was measured."""

    label: str
    error: float

    def __str__(self) -> str:
        return f"{self.label} {self.error:+.1%}"


class ErrorSamples:
    """Errors of one kind, eight bytes each; those that a reason may name keep their labels."""

    def __init__(self) -> None:
        self._values = array("d")
        self.named: list[LabelledError] = []
        """The error of the greatest magnitude, and the greatest outliers, in order of arrival."""

    @classmethod
    def of(cls, errors: "Sequence[LabelledError] | ErrorSamples") -> "ErrorSamples":
        """Return the samples with these labels."""
        if isinstance(errors, ErrorSamples):
            return errors
        samples = cls()
        samples.add((item.error for item in errors), errors)
        return samples

    def add(self, values: Iterable[float], named: Sequence[LabelledError]) -> None:
        """Add errors; `named` holds those of them with a label, at least the extremes."""
        self._values.extend(values)
        if not named:
            return
        candidates = [*self.named, *named]
        worst = max(range(len(candidates)), key=lambda n: abs(candidates[n].error))
        outliers = [n for n, item in enumerate(candidates) if item.error > OUTLIER]
        outliers.sort(key=lambda n: -candidates[n].error)
        self.named = [candidates[n] for n in sorted({worst, *outliers[:_MOST_NAMES]})]

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> NDArray[np.float64]:
        """All errors, in order of arrival."""
        return np.array(self._values, np.float64)

    @property
    def worst(self) -> LabelledError:
        """The error of the greatest magnitude."""
        return max(self.named, key=lambda item: abs(item.error))

    @property
    def outliers(self) -> list[LabelledError]:
        """The greatest outliers, greatest first; reasons name no more."""
        found = sorted((e for e in self.named if e.error > OUTLIER), key=lambda e: -e.error)
        return found[:_MOST_NAMES]


LabelledErrors = Sequence[LabelledError] | ErrorSamples


@dataclass(frozen=True)
class Bound:
    """Limits of a figure: up to `degraded` it passes, above `invalid` it invalidates the run."""

    what: str
    degraded: float
    invalid: float

    def judge(self, value: float, culprit: str = "") -> Iterator[Finding]:
        """Yield the verdict on a value and its reason, unless it is a pass."""
        if value > self.degraded:
            is_invalid = value > self.invalid
            limit = self.invalid if is_invalid else self.degraded
            suffix = f" ({culprit})" if culprit else ""
            verdict = Verdict.INVALID if is_invalid else Verdict.DEGRADED
            yield verdict, f"{self.what} {value:.1%} is over {limit:.0%}{suffix}"


@dataclass(frozen=True)
class TimingBounds:
    """Bounds on the relative errors of times and rates; pairs of (degraded, invalid).

    Attributes:
        p50: Of the median of the absolute errors.
        p95: Of the 95th percentile of the absolute errors.
        bias: Of the absolute value of the signed median.
        link: Of the absolute value of each full link's signed median.
    """

    p50: tuple[float, float]
    p95: tuple[float, float]
    bias: tuple[float, float]
    link: tuple[float, float]


PACED: Final = TimingBounds((0.02, 0.10), (0.05, 0.20), (0.01, 0.05), (0.02, 0.10))
TCP: Final = TimingBounds((0.10, 0.20), (0.20, 0.40), (0.10, 0.20), (0.10, 0.25))
LATENESS_P95: Final = Bound(
    "95th percentile of how late agents start, as a share of the collective,", 0.05, 0.15
)
DISTURBED: Final = Bound("share of collectives not judged (failures, CPU steal)", 0.10, 0.50)
SETTLE: Final = Bound("error of the dark time of reconfigurations", 0.05, 0.50)


@dataclass(frozen=True)
class Observation:
    """Measurements of one fabric on which its verdict rests.

    Attributes:
        errors: Measured / predicted - 1 by kind: `flow`, `collective`, `iteration`, `transfer`
            and `all-reduce`.
        link_rate_errors: Measured / planned goodput - 1 of full links, labelled by link or listed
            by link.
        cpu_idle: Idle share of the machine, one per sample.
        lateness: How late the last server of each collective starts, as a share of the collective,
            labelled by server.
        integrity: Conservation of bytes.
        settle_errors: Measured / specified dark time - 1, labelled by region.
        misrouted: Flows that took another path than planned; each invalidates the run.
        violations: Other contradictions between records, counters and demand; each invalidates.
        remarks: Circumstances that degrade the run.
        disturbed: Share of collectives that are left out: a failure was present, or the hypervisor
            gave the CPU to other machines.
        paced: Whether flows were paced.
    """

    errors: Mapping[str, LabelledErrors]
    link_rate_errors: Sequence[LabelledError] | Mapping[str, Sequence[float]]
    cpu_idle: Sequence[float]
    lateness: LabelledErrors
    integrity: Integrity
    settle_errors: LabelledErrors = ()
    misrouted: Sequence[str] = ()
    violations: Sequence[str] = ()
    remarks: Sequence[str] = field(default_factory=tuple)
    disturbed: float = 0.0
    paced: bool = True


def judge(observation: Observation) -> FidelityResult:
    """Judge one fabric's measurements."""
    bounds = PACED if observation.paced else TCP
    errors = {kind: ErrorSamples.of(listed) for kind, listed in observation.errors.items()}
    links = _by_link(observation.link_rate_errors)
    lateness = ErrorSamples.of(observation.lateness)
    summaries = {kind: summarise(samples.values) for kind, samples in errors.items() if samples}
    timing = [
        *(f for kind in summaries for f in _timing(kind, errors[kind], summaries[kind], bounds)),
        *_links(links, bounds),
    ]
    findings = [
        *timing,
        *_samples(observation),
        *_tail(LATENESS_P95, lateness),
        *_tail(SETTLE, ErrorSamples.of(observation.settle_errors)),
        *_cpu(observation.cpu_idle, timing),
        *((Verdict.DEGRADED, remark) for remark in observation.remarks),
        *((Verdict.INVALID, reason) for reason in _losses(observation.integrity)),
        *((Verdict.INVALID, reason) for reason in _shortened(observation.misrouted)),
        *((Verdict.INVALID, reason) for reason in _shortened(observation.violations)),
    ]
    collectives = summaries.get("collective")
    rates = np.concatenate([np.asarray(listed) for listed in links.values()] or [np.zeros(0)])
    return FidelityResult(
        verdict=worst_verdict(verdict for verdict, _ in findings),
        reasons=[reason for _, reason in findings],
        link_rate_error_p95=_abs_p95(rates),
        cpu_idle_min=float(min(observation.cpu_idle)) if observation.cpu_idle else None,
        completion_error_p50=collectives.abs_p50 if collectives else None,
        completion_error_p95=collectives.abs_p95 if collectives else None,
        completion_errors=summaries,
        start_lateness_p95=_abs_p95(lateness.values),
        disturbed=observation.disturbed,
    )


def summarise(signed: NDArray[np.float64]) -> ErrorSummary:
    """Return the distribution of signed errors; there is at least one."""
    p5, p50, p95 = (float(value) for value in np.percentile(signed, (5, 50, 95)))
    abs_p50, abs_p95 = (float(value) for value in np.percentile(np.abs(signed), (50, 95)))
    return ErrorSummary(
        n=len(signed),
        min=float(signed.min()),
        p5=p5,
        p50=p50,
        p95=p95,
        max=float(signed.max()),
        abs_p50=abs_p50,
        abs_p95=abs_p95,
        quantiles=np.percentile(signed, np.linspace(0, 100, _QUANTILES)).tolist(),
    )


def _timing(
    kind: str, errors: ErrorSamples, summary: ErrorSummary, bounds: TimingBounds
) -> Iterator[Finding]:
    """Yield what is wrong with the times of one kind: median, tail, bias and outliers."""
    worst = f"worst: {errors.worst}"
    against = f"of {kind} times against their predictions"
    yield from Bound(f"median error {against}", *bounds.p50).judge(summary.abs_p50, worst)
    yield from Bound(f"95th percentile error {against}", *bounds.p95).judge(summary.abs_p95, worst)
    yield from Bound(f"bias (signed median {summary.p50:+.1%}) {against}", *bounds.bias).judge(
        abs(summary.p50)
    )
    if outliers := int(np.count_nonzero(errors.values > OUTLIER)):
        many = outliers > 1 and outliers > _OUTLIER_SHARE * len(errors)
        names = "; ".join(map(str, errors.outliers))
        count = f"{outliers} of {len(errors)} {kind} times"
        reason = f"{count} are over three times their prediction ({names})"
        yield Verdict.INVALID if many else Verdict.DEGRADED, reason


def _by_link(
    errors: Sequence[LabelledError] | Mapping[str, Sequence[float]],
) -> Mapping[str, Sequence[float]]:
    if isinstance(errors, Mapping):
        return errors
    by_link: defaultdict[str, list[float]] = defaultdict(list)
    for item in errors:
        by_link[item.label].append(item.error)
    return by_link


def _links(by_link: Mapping[str, Sequence[float]], bounds: TimingBounds) -> Iterator[Finding]:
    """Yield the links whose median goodput differs from the planned one."""
    medians = [LabelledError(link, float(np.median(rates))) for link, rates in by_link.items()]
    bound = Bound("goodput of a full link against the planned one: error", *bounds.link)
    for worst in sorted(medians, key=lambda item: -abs(item.error))[:_MOST_NAMES]:
        yield from bound.judge(abs(worst.error), str(worst))


def _samples(observation: Observation) -> Iterator[Finding]:
    """Yield what is wrong with the number of judged collectives."""
    judged = len(observation.errors.get("collective", ()))
    if not judged:
        yield Verdict.INVALID, "no collective was measured"
    elif judged < MIN_COLLECTIVES:
        yield (
            Verdict.DEGRADED,
            f"{judged} collectives were judged; a 95th percentile needs {MIN_COLLECTIVES}",
        )
    yield from DISTURBED.judge(observation.disturbed)


def _tail(bound: Bound, errors: ErrorSamples) -> Iterator[Finding]:
    if (p95 := _abs_p95(errors.values)) is not None:
        yield from bound.judge(p95, f"worst: {errors.worst}")


def _cpu(idle: Sequence[float], timing: Sequence[Finding]) -> Iterator[Finding]:
    """Yield what is wrong with the machine's idle time; starvation with errors is invalid."""
    if not idle:
        yield Verdict.DEGRADED, "no CPU sample was taken while packets were under way"
        return
    share = f"least idle share of the CPU {min(idle):.1%}"
    if min(idle) < _STARVED and timing:
        reason = f"{share} is under {_STARVED:.0%} and times are wrong: the machine was too slow"
        yield Verdict.INVALID, reason
    elif min(idle) < _IDLE:
        yield Verdict.DEGRADED, f"{share} is under {_IDLE:.0%}"


def _losses(integrity: Integrity) -> Iterator[str]:
    sent, received = integrity.bytes_sent, integrity.bytes_received
    if sent != received:
        yield f"{sent} bytes were sent and {received} received"
    if integrity.corrupt:
        yield f"{integrity.corrupt} transfers arrived changed"
    if integrity.lost_transfers:
        yield f"{integrity.lost_transfers} transfers did not arrive"


def _shortened(reasons: Sequence[str]) -> list[str]:
    """Return the first reasons, and how many more there are."""
    more = len(reasons) - _MOST_NAMES
    return [*reasons[:_MOST_NAMES], *([f"and {more} more such faults"] if more > 0 else [])]


def _abs_p95(values: NDArray[np.float64]) -> float | None:
    return float(np.percentile(np.abs(values), 95)) if len(values) else None
