"""Reasons and remedies as a run shows them: consequences counted, remedies for all fabrics."""

from collections.abc import Mapping, Sequence

from moefabric.core.units import round_up
from moefabric.report.formatting import printable
from moefabric.report.summary import FabricSummary
from moefabric.results.model import VerdictFinding
from moefabric.results.verdict.reasons import (
    ALONE,
    BYTES,
    DILATION,
    ITERATIONS,
    TOO_SLOW,
    settings_text,
)
from moefabric.results.verdict.verdict import worst_verdict


def shown_findings(fabric: FabricSummary) -> list[VerdictFinding]:
    """Return the reasons for a fabric's verdict; those that follow from a busy CPU are counted.

    They follow from it if the remedy is the same: nothing else on the machine.
    """
    findings = fabric.findings
    causes = [one for one in findings if one.text.endswith(TOO_SLOW)]
    follow = [one for one in findings if one.remedy.startswith(ALONE) and one not in causes]
    if not causes or len(follow) < 2:
        return findings
    verdict = worst_verdict(one.verdict for one in follow)
    text = f"{len(follow)} more reasons that follow from this are in .fidelity.findings of the JSON"
    counted = VerdictFinding(verdict=verdict, text=text)
    return [*causes, counted, *(one for one in findings if one not in (*causes, *follow))]


def shared_remedies(fabrics: Sequence[FabricSummary]) -> Mapping[str, list[str]]:
    """Return the remedies of a run, each with the names of the fabrics that need it.

    A file has one scale and one number of iterations, so remedies have those that serve every
    fabric: transfers last at least as long, at rates that are at most as high, and no fewer bytes
    are sent.
    """
    verdicts = {fabric.name: fabric.result.fidelity for fabric in fabrics}
    settings = {one.remedy: one.settings for own in verdicts.values() for one in own.findings}
    shared: dict[str, list[str]] = {}
    for name, fidelity in verdicts.items():
        listed = fidelity.remedies
        for remedy in listed:
            if remedy == ALONE and any(one.startswith(f"{ALONE},") for one in listed):
                continue
            own, text = settings[remedy], remedy
            if own:
                common = _common([one for one in settings.values() if one.keys() == own.keys()])
                text = remedy.replace(settings_text(own), common)
            shared.setdefault(printable(text), []).append(name)
    return shared


def _common(settings: Sequence[Mapping[str, float]]) -> str:
    """Return the settings that serve each of these: the most iterations, or a common scale.

    The scale is at least as slow as each of them, with the most bytes of them.
    """
    first = settings[0]
    if ITERATIONS in first:
        return settings_text({ITERATIONS: max(one[ITERATIONS] for one in settings)})
    if BYTES not in first:
        return settings_text(first)
    factor, dilation = min(s[BYTES] for s in settings), max(s[DILATION] for s in settings)
    slowest = max(one[BYTES] * one[DILATION] for one in settings)
    if slowest > factor * dilation:
        dilation = round_up(slowest / factor)
    serves = ", which serves all fabrics" if any(one != first for one in settings) else ""
    return settings_text({BYTES: factor, DILATION: dilation}) + serves
