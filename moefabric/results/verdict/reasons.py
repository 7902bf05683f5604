"""Reasons for a verdict: bounds and words of each.

A new reason is an entry here, its measurement (`moefabric.results.verdict.measurements`, or where
its value arises) and its use in `moefabric.results.verdict.verdict`.

The bounds for `transport: tcp` and for idle CPU follow the literature on emulation (Mininet-HiFi,
CoNEXT'12: completion times within 10 % in the median and 20 % in the 95th percentile; 35 % idle
CPU).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal, NamedTuple

from moefabric.core.units import round_up
from moefabric.results.model import Verdict, VerdictFinding

MOST_NAMES: Final = 3
"""Places of one kind that reasons name."""
OUTLIER: Final = 0.5
"""Error above which a sample counts by itself: it took 1.5 times its prediction.

In honest runs on two busy cores whose 95th percentile is within its bounds, no collective takes
over 1.25 times.
"""
TCP_OUTLIER: Final = 1.0
"""The same for `transport: tcp`: it took twice its prediction.

Greedy flows share a link unevenly. In 20 honest runs on quiet cores, 2 to 4 of 308 flows took 1.5
to 1.66 times their prediction; the bound was set after these.
"""
OUTLIER_DEVIATIONS: Final = 10.0
"""Standard deviations, by the median of absolute deviations, within which no sample is an outlier:
times under TCP vary more than those of paced flows."""
GROSS_OUTLIER: Final = 2.0
"""Error of an outlier that took three times its prediction."""
GROSS_SHARE: Final = 0.01
"""Share of such outliers above which two or more invalidate a run."""

_MARGIN: Final = 1.1
"""Share by which a remedy goes beyond what brings a value to its bound."""
_MOST_SLOWDOWN: Final = 4.0
"""Factor by which one remedy increases the dilation at most: a run takes as much longer."""

ITERATIONS: Final = "training.iterations"
BYTES, DILATION = "scale.bytes", "scale.dilation"
"""Keys of an experiment that remedies set."""
Change = Literal["", "iterations", "scale"]
"""What a remedy changes by a number."""
Bounds = tuple[float | None, float | None]
"""Values beyond which a run is degraded and invalid; None if no value is."""


class RunSetting(NamedTuple):
    """Scale and length of a run, which users can change.

    Attributes:
        option: The option that slows the run down, instead of its scale.
        wall_s: Wall seconds that the option sets.
        measured_control: Whether requests for circuits take the time that controllers need.
    """

    bytes_scale: float = 1.0
    dilation: float = 1.0
    iterations: int = 1
    option: str = ""
    wall_s: float = 0.0
    measured_control: bool = False

    def changed(self, change: Change, excess: float) -> dict[str, float]:
        """Return settings that should bring a value within its bound, by their keys.

        Args:
            excess: Factor by which the value exceeds the bound of a pass.
        """
        slowdown = min(excess * _MARGIN, _MOST_SLOWDOWN)
        if change == "iterations":
            return {ITERATIONS: ceil(self.iterations * excess)}
        if change == "scale" and self.option:
            return {self.option: round_up(self.wall_s * slowdown)}
        if change == "scale":
            return {BYTES: self.bytes_scale, DILATION: round_up(self.dilation * slowdown)}
        return {}


def settings_text(settings: Mapping[str, float]) -> str:
    """Return settings as users write them: `scale: {bytes: 50, dilation: 280}`, `--wall 8`."""
    match settings:
        case {"scale.bytes": factor, "scale.dilation": dilation}:
            return f"scale: {{bytes: {factor:g}, dilation: {dilation:g}}}"
        case {"training.iterations": iterations}:
            return f"{ITERATIONS}: {iterations:.0f}"
    return " ".join(f"{option} {value:g}" for option, value in settings.items())


UNSCALED: Final = RunSetting()


class RunFinding(VerdictFinding):
    """A finding whose remedy has no numbers yet."""

    change: Change = ""
    """What the remedy changes by a number."""
    excess: float = 1.0
    """Factor by which the value exceeds the bound of a pass."""


def with_remedies(findings: Sequence[RunFinding], setting: RunSetting) -> list[VerdictFinding]:
    """Return findings for the JSON; findings with the same remedy share the number for the worst.

    Args:
        findings: All findings on a fabric.
        setting: Scale and length of the run.
    """
    worst = defaultdict[tuple[str, Change], float](lambda: 1.0)
    for one in findings:
        worst[one.remedy, one.change] = max(one.excess, worst[one.remedy, one.change])
    shown = list[VerdictFinding]()
    for one in findings:
        fields = one.model_dump(include={"verdict", "text", "value", "limit"})
        settings = setting.changed(one.change, worst[one.remedy, one.change])
        remedy = ": ".join(filter(None, (one.remedy, settings_text(settings))))
        shown.append(VerdictFinding(**fields, remedy=remedy, settings=settings))
    return shown


class LabelledError(NamedTuple):
    """Relative error of a measurement, and the name of the measured quantity."""

    label: str
    error: float

    def __str__(self) -> str:
        return f"{self.label} {self.error:+.1%}"


@dataclass(frozen=True)
class Reason:
    """A reason for a verdict other than a pass.

    Attributes:
        text: Its words, a format string. The fields `value` and `limit` are the measured value and
            the bound that it exceeds; `place` and others come with the measurement.
        bounds: The bounds of the value. By default, any value above 0 degrades a run.
        tcp: Other bounds for runs without pacing.
        is_least: Whether values below the bounds are wrong, rather than those above.
        remedy: What to change about the run, in words; without a change, empty if nothing but the
            fault's cause helps.
        change: What of the run to change by a number (`RunSetting.changed`).

    Example:
        A reason with two bounds, and the finding on a value::

            LOSS = Reason("{place} lost {value:.1%} of its frames, over {limit:.0%}", (0.01, 0.1))
            findings = list(LOSS.judge(0.02, place="s0/e0"))
    """

    text: str
    bounds: Bounds = (0.0, None)
    tcp: Bounds | None = None
    is_least: bool = False
    remedy: str = ""
    change: Change = ""

    def judge(
        self, value: float | None = None, *, paced: bool = True, **words: object
    ) -> Iterator[RunFinding]:
        """Yield the finding on a value, unless it passes.

        Args:
            value: The measured value. The default is a circumstance that is present.
            paced: Whether flows were paced.
            words: Further fields of the text.
        """
        bounds = self.bounds if paced or self.tcp is None else self.tcp
        figure = 1.0 if value is None else value
        for verdict, limit in zip((Verdict.INVALID, Verdict.DEGRADED), bounds[::-1], strict=True):
            if limit is not None and (figure < limit if self.is_least else figure > limit):
                text = self.text.format(value=value, limit=limit, **words)
                passes = limit if bounds[0] is None else bounds[0]
                yield RunFinding(
                    verdict=verdict,
                    text=text,
                    value=value,
                    limit=value and limit,
                    remedy=self.remedy,
                    change=self.change,
                    excess=self._excess(figure, passes),
                )
                return

    def _excess(self, value: float, passes: float) -> float:
        """Return the factor between a value and the bound of a pass, at least 1.

        Of a share that must be left, what is used counts: 30 % idle where 65 % may be busy.
        """
        if not self.is_least:
            more, less = value, passes
        elif passes < 1:
            more, less = 1 - value, 1 - passes
        else:
            more, less = passes, value
        return max(1.0, more / max(less, 1e-3))

    def judge_each(self, places: Iterable[str], most: int | None = None) -> Iterator[RunFinding]:
        """Yield the findings on places where something is wrong: all, or the first and a count."""
        listed = list(places)
        for place in listed[:most]:
            yield from self.judge(place=place)
        if most is not None:
            yield from MORE.judge(len(listed) - most)


ALONE: Final = "run it with nothing else on the machine"
"""Remedy of what follows from a busy machine."""
_SLOWER: Final = f"{ALONE}, or slow it down"
"""The same with a slower scale."""
FIXED_CONTROL: Final = f"{ALONE}, or with controllers of a fixed speed: control_time: 25ms"
"""Remedy of times that controllers disturb: they cost model time one to one in slower runs, too."""


def _excess(
    share: str, bounds: Bounds, tcp: Bounds | None = None, place: str = " (worst: {place})"
) -> Reason:
    """Return the reason for a share over its bounds, which less speed mends."""
    text = f"{share} {{value:.1%}} is over {{limit:.0%}}{place}"
    return Reason(text, bounds, tcp, remedy=_SLOWER, change="scale")


_ANY_INVALID: Final[Bounds] = (None, 0.0)
_AGAINST: Final = "of {kind} times against their predictions"

# --- times and rates of iterations ---------------------------------------------------------------

MEDIAN_ERROR: Final = _excess(f"median error {_AGAINST}", (0.02, 0.10), (0.10, 0.20))
P95_ERROR: Final = _excess(f"95th percentile error {_AGAINST}", (0.05, 0.20), (0.20, 0.40))
_BIAS: Final = f"bias (signed median {{median:+.1%}}) {_AGAINST}"
BIAS: Final = _excess(_BIAS, (0.01, 0.05), (0.10, 0.20), "")
_OUTLIER_TEXT: Final = (
    "{value} of {count} {kind} are over {share:.0%} too long, or {short:.0%} too short ({place})"
)
FEW_OUTLIERS: Final = Reason(_OUTLIER_TEXT, remedy=ALONE)
MANY_OUTLIERS: Final = Reason(_OUTLIER_TEXT, _ANY_INVALID)
_GOODPUT: Final = "goodput of a full link against the planned one: error"
LINK_GOODPUT: Final = _excess(_GOODPUT, (0.02, 0.10), (0.10, 0.25), " ({place})")
_LATENESS: Final = "95th percentile of how late agents start, as a share of the collective,"
LATENESS: Final = _excess(_LATENESS, (0.05, 0.15))
# The largest values of honest runs on two cores under a load of 5 to 17, none idle: starts 6.1 %,
# reports 1.4 %, arrivals 2.1 %.
_STARTS: Final = (
    "95th percentile of how late the first agent starts after its order's instant, as a share of "
    "the collective,"
)
STARTS: Final = _excess(_STARTS, (0.10, 0.25))
_REPORTS: Final = (
    "median of how long agents take from a collective's last byte to their report, as a share of "
    "the collective,"
)
REPORTS: Final = _excess(_REPORTS, (0.10, 0.50))
ARRIVALS: Final = Reason(
    "senders contradict {place}, which says that bytes arrived earlier or later: median "
    "{value:.1%} of the collective is over {limit:.0%}",
    (0.05, 0.15),
    (0.20, 0.60),  # greedy senders let acknowledgements wait in full queues: 7.4 % in an incast
    remedy=_SLOWER,
    change="scale",
)
DARK_TIME: Final = _excess("error of the dark time of reconfigurations", (0.05, 0.50))
DARK_MEAN: Final = Reason(
    "mean dark time of {place} is {mean:+.1%} off its profile's, {value:.1%} more than four "
    "standard errors explain, over {limit:.0%}",
    (0.05, 0.50),
)
DARK_SPREAD: Final = Reason(
    "dark times of {place} vary {ratio:.2g} times as much as those of its profile", (3.0, None)
)

# --- programs ------------------------------------------------------------------------------------

WRONG_NUMBERS: Final = Reason("{value} numbers of the results are wrong", _ANY_INVALID)
OTHER_BYTES: Final = Reason(
    "bytes by {place}: {counted:.3g} counted, {planned:.3g} planned", _ANY_INVALID
)
REPLAY_ERROR: Final = Reason(
    "the replay's error against its prediction, {error:+.1%}, is over {limit:.0%}",
    (0.05, None),
    remedy=_SLOWER,
    change="scale",
)

# --- samples -------------------------------------------------------------------------------------

NO_ITERATION: Final = Reason("no iteration ended", _ANY_INVALID)
STOPPED: Final = Reason("the fabric was stopped after {value} of {planned} iterations")
NO_COLLECTIVE: Final = Reason("no collective was measured", _ANY_INVALID)
FEW_COLLECTIVES: Final = Reason(
    "{value} collectives were judged; a 95th percentile needs {limit}",
    (20, None),
    is_least=True,
    change="iterations",
)
DISTURBED: Final = Reason(
    "share of collectives not judged (failures, CPU steal) {value:.1%} is over {limit:.0%}",
    (0.10, 0.50),
    change="iterations",
)

# --- machine -------------------------------------------------------------------------------------

NO_CPU_SAMPLE: Final = Reason("no CPU sample was taken while packets were under way")
_IDLE: Final = "least idle share of the CPU {value:.1%} is under {limit:.0%}"
BUSY: Final = Reason(_IDLE, (0.35, None), is_least=True, remedy=_SLOWER, change="scale")
TOO_SLOW: Final = "the machine was too slow"
_STARVED: Final = f"{_IDLE} and times are wrong: {TOO_SLOW}"
STARVED: Final = Reason(_STARVED, (None, 0.10), is_least=True, remedy=_SLOWER, change="scale")
LATE_LINKS: Final = Reason(
    "99th percentile of how late links pass packets on, {late}, is over {bound} (most: {most})"
)
LATE_RELAY: Final = Reason("{value} packets were lost because the relay of links was too late")
FAST_NICS: Final = Reason(
    "the planned traffic needs {needed:.2g} of {cores} cores: increase scale.bytes or "
    "scale.dilation",
    (1.0, None),  # nothing of the machine is idle
)
LONG_FRAMES: Final = Reason(
    "a frame takes {value:.1%} of the shortest transfer, more than {limit:.0%}: decrease "
    "scale.bytes or scale.frame, or increase scale.dilation",
    (0.10, None),
)
SHORT_TRANSFERS: Final = Reason(
    "the shortest transfer takes {shortest_ms:.3g} ms, too little for the start of agents: "
    "increase scale.dilation to {dilation}",
    (0.0625, None),  # of the proposed duration: the start is 8 % of what is measured
    is_least=True,
)
SHORT_DARK_TIME: Final = Reason(
    "circuits are dark for {value:.2g} ms, less than the {limit:g} ms that software keeps to 5 %: "
    "increase scale.dilation to {dilation}",
    (2.0, None),  # of 1 to 100 ms, errors are 0.1 ms (`tests/bench/bench_ocs.py`)
    is_least=True,
)
UNCERTAIN_CLOCK: Final = Reason(
    "the clock of {place} is known to {error_ms:.2f} ms only, {value:.1%} of a collective, over "
    "{limit:.0%}: raise the dilation, or bring the host closer",
    (0.02, None),  # completion times may be wrong by as much before a run is degraded
)

# --- control and testbed -------------------------------------------------------------------------

FAILED_CHANGES: Final = Reason("{value} of {count} reconfigurations failed ({place})")
ALL_REFUSED: Final = Reason(
    "{place}: none of {value} requests for circuits was granted: the policy had no light",
    _ANY_INVALID,
)
DARK_CHANGES: Final = Reason("{value} of {count} reconfigurations left circuits dark ({place})")
LOST_LIGHT: Final = Reason(
    "circuits lost their light {value} times though their controller had moved nothing ({place})"
)
SLOW_CONTROL: Final = Reason(
    "the control plane is slower than control_time {allowed_ms:g} ms: {value} of {count} needed up "
    "to {most_ms:.1f} ms; raise the dilation"
)
LATE_CONTROL: Final = Reason(
    "the controller of {place} takes {value:.1f} times the expected time in the median, over "
    "{limit:g}",
    (5.0, 15.0),  # honest ones take up to 3 times on two cores under a load of 16
    remedy=ALONE,
)
OTHER_CIRCUITS: Final = Reason("{place}", _ANY_INVALID)
"""A request for another demand than the layer's, or circuits that the policy doesn't choose."""
LOST_HOST: Final = Reason("{place} was lost")
CIRCUMSTANCE: Final = Reason("{place}")
"""A circumstance of the run that its owner words: a policy's failure, a setting of the kernel."""
WRONG_TESTBED: Final = Reason("{place}", _ANY_INVALID)
"""A circumstance that contradicts the testbed: a link off its rate, a process that ended."""

# --- bytes ---------------------------------------------------------------------------------------

REPETITIONS: Final = Reason(
    "{segments} TCP segments were sent again, most {place}: a queue or link dropped frames",
    (1e-3, None),  # paced flows overload no queue: links lose no frame
    # TCP sends 1.4 to 1.7 % again in the incast of `examples/incast.yaml`, into queues of 20
    # packets, and 0.02 % where queues have no limit.
    (0.05, 0.20),
    remedy="`moefabric doctor` shows whether a core's backlog drops frames; else enlarge "
    "wiring.queue",
)
UNCOUNTED: Final = Reason(
    "no port counted bytes: agents alone say how many went, and nobody whether they went by light"
)
MISROUTED: Final = Reason("{place}", _ANY_INVALID)
CONTRADICTION: Final = Reason("{place}", _ANY_INVALID)
MORE: Final = Reason("and {value} more such faults", _ANY_INVALID)
UNEQUAL_BYTES: Final = Reason("{sent} bytes were sent and {received} received", _ANY_INVALID)
CORRUPT: Final = Reason("{value} transfers arrived changed", _ANY_INVALID)
LOST_TRANSFERS: Final = Reason("{value} transfers did not arrive", _ANY_INVALID)
_BEHIND_TEXT: Final = (
    "background flows fell behind the model: {figure} of their rates {error:+.1%}, "
    "more than {limit:.0%}"
)
BACKGROUND_BEHIND: Final = Reason(_BEHIND_TEXT, (0.03, None))
BACKGROUND_BEHIND_P5: Final = Reason(_BEHIND_TEXT, (0.15, None))
