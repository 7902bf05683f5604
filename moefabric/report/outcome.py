"""Result of a run in sentences: the fastest fabric, the best per dollar, and their certainty."""

from collections.abc import Iterator, Mapping, Sequence

from moefabric.report import formatting
from moefabric.report.formatting import counted, percentage, printable
from moefabric.report.summary import FabricSummary
from moefabric.results.comparison import baseline, is_invalid
from moefabric.results.model import FabricPrediction, Verdict


def outcome(fabrics: Sequence[FabricSummary]) -> str:
    """Return the result of a run: the fastest and best per dollar, by how much, how certain.

    Invalid fabrics are not compared. Gains are compared iteration by iteration, since demands of
    iterations differ.
    """
    judged = [fabric for fabric in fabrics if not fabric.is_invalid and fabric["iteration_s"]]
    if not fabrics:
        return ""
    sentences = ["No result: no fabric has figures that can be trusted"]
    if judged:
        ranked = sorted(judged, key=lambda fabric: fabric["iteration_s"] or 0.0)
        sentences = [*_sentences(ranked, fabrics)]
    if len(judged) < 2:
        sentences += _predicted(fabrics)
    return " ".join(f"{sentence}." for sentence in sentences)


def _predicted(fabrics: Sequence[FabricSummary]) -> Iterator[str]:
    """Yield which fabric of a run is fastest by the predictions beside the measurements."""
    times_s = {fabric.name: fabric["predicted_iteration_s"] or 0.0 for fabric in fabrics}
    if len(times_s) > 1 and all(times_s.values()):
        base = next((fabric.name for fabric in fabrics if fabric.is_baseline), "")
        start = "Predicted with the control times of this run, and not measured"
        yield f"{start}: fastest is {_predicted_lead(times_s, base)}"


def _predicted_lead(times_s: Mapping[str, float], base: str) -> str:
    """Return the fastest fabric, its iteration, and its lead over the baseline or the next."""
    fastest, second, *_ = sorted(times_s, key=lambda name: times_s[name])
    other = base if base not in ("", fastest) else second
    time, others = (formatting.seconds(times_s[name], 4) for name in (fastest, other))
    less = f"{percentage(1 - times_s[fastest] / times_s[other])} less than"
    return f"{fastest}: iteration {time}, {'the same as' if time == others else less} {other}"


def predicted_outcome(fabrics: Sequence[FabricPrediction]) -> str:
    """Return the result of a prediction: the fastest and best per dollar; empty of one fabric."""
    valid = [one for one in fabrics if not is_invalid(one)]
    if len(valid) < 2:
        return ""
    base = baseline(valid)
    named = base.fabric if base else ""
    lead = _predicted_lead({one.fabric: one.iteration_s for one in valid}, named)
    buys = _best_buy({one.fabric: one.cost.perf_per_dollar_vs_eps or 0.0 for one in valid}, named)
    return " ".join(f"{printable(sentence)}." for sentence in (f"Fastest is {lead}", *buys))


def _sentences(ranked: Sequence[FabricSummary], fabrics: Sequence[FabricSummary]) -> Iterator[str]:
    fastest = ranked[0]
    lead = f"{fastest.name}: iteration {fastest.text('iteration_s')}"
    if len(ranked) == 1:
        yield f"{lead}, and no other valid fabric to compare it with"
    else:
        rival = next((one for one in ranked[1:] if one.is_baseline), ranked[1])
        yield f"Fastest is {lead}, {_gain(fastest, rival)}"
        yield from _doubt(fastest, ranked[1])
        ratios = {one.name: one["perf_per_dollar_vs_eps"] or 0.0 for one in ranked}
        yield from _best_buy(ratios, next((one.name for one in ranked if one.is_baseline), ""))
    if degraded := [one.name for one in ranked if one.verdict is Verdict.DEGRADED]:
        yield f"Degraded, so mind the reasons: {', '.join(degraded)}"
    if left := [one.name for one in fabrics if one.is_invalid]:
        yield f"Invalid, so not compared: {', '.join(left)}"


def _gains(fabric: FabricSummary, other: FabricSummary) -> list[float]:
    """Return the part of the time that a fabric saves in each iteration that both have."""
    fabric_s, other_s = (
        {
            (iteration.job, iteration.iteration, n): iteration.measured_s
            for n, iteration in enumerate(summary.result.iterations)
        }
        for summary in (fabric, other)
    )
    pairs = [(time, other_s.get(key)) for key, time in fabric_s.items()]
    return [1 - time / other_time for time, other_time in pairs if time and other_time]


def _gain(fabric: FabricSummary, other: FabricSummary) -> str:
    """Return by how much a fabric is faster than another, and in how many iterations it was."""
    whole = 1 - (fabric["iteration_s"] or 0.0) / (other["iteration_s"] or 1.0)
    gains = _gains(fabric, other)
    text = f"{percentage(whole)} less than {other.name}"
    if not gains:
        return text
    if len(gains) == 1:
        return f"{text} (1 iteration: its spread is unknown)"
    low, high = (f"{100 * gain:.1f}" for gain in (min(gains), max(gains)))
    return f"{text} ({low} to {high} % in {len(gains)} iterations)"


def _doubt(fastest: FabricSummary, second: FabricSummary) -> Iterator[str]:
    """Yield a sentence if the second fabric was as fast as the first in some iteration."""
    gains = _gains(fastest, second)
    lost = sum(gain <= 0 for gain in gains)
    if fastest.text("iteration_s") == second.text("iteration_s"):
        yield f"{second.name} is as fast"
    elif lost:
        names = f"{fastest.name} and {second.name}"
        often = f"{second.name} was in {lost} of {counted(len(gains), 'iteration')}"
        yield f"Which of {names} is faster is not certain: {often}"


def _best_buy(ratios: Mapping[str, float], base: str) -> Iterator[str]:
    """Yield the fabric with the best performance per dollar, if networks have prices."""
    best = max(ratios, key=lambda name: ratios[name])
    if not base or not ratios[best]:
        return
    if best == base:
        second = max((name for name in ratios if name != base), key=lambda name: ratios[name])
        yield f"Best per dollar is {base}; {second} has {formatting.ratio(ratios[second])} of it"
    else:
        shown = formatting.ratio(ratios[best])
        equal = [name for name, one in ratios.items() if formatting.ratio(one) == shown]
        verb = "is" if len(equal) == 1 else "are"
        yield f"Best per dollar {verb} {' and '.join(equal)}: {shown} of {base}"
