"""Reasons and remedies as a run shows them: consequences counted, remedies for all fabrics."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from moefabric.core.units import round_up
from moefabric.report.formatting import printable
from moefabric.report.summary import FabricSummary
from moefabric.results.model import VerdictFinding
from moefabric.results.verdict.reasons import ALONE, TOO_SLOW
from moefabric.results.verdict.verdict import worst_verdict

_SCALE: Final = re.compile(
    r"scale: \{bytes: (?P<bytes>[\d.e+]+), dilation: (?P<dilation>[\d.e+]+)\}"
)
_ITERATIONS: Final = re.compile(r"training\.iterations: (?P<count>\d+)")


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
    remedies = {fabric.name: [*map(printable, fabric.remedies)] for fabric in fabrics}
    texts = [text for listed in remedies.values() for text in listed]
    scales = [(float(m["bytes"]), float(m["dilation"])) for m in map(_SCALE.search, texts) if m]
    counts = [int(match["count"]) for match in map(_ITERATIONS.search, texts) if match]
    shared: dict[str, list[str]] = {}
    for name, listed in remedies.items():
        for text in listed:
            if text == ALONE and any(one.startswith(f"{ALONE},") for one in listed):
                continue
            common = _ITERATIONS.sub(lambda _: f"training.iterations: {max(counts)}", text)
            common = _SCALE.sub(lambda _: _common_scale(scales), common)
            shared.setdefault(common, []).append(name)
    return shared


def _common_scale(scales: Sequence[tuple[float, float]]) -> str:
    """Return the scale that is at least as slow as each of these, with the most bytes of them."""
    factor = min(factor for factor, _ in scales)
    dilation = max(dilation for _, dilation in scales)
    if any(one * slower > factor * dilation for one, slower in scales):
        dilation = round_up(max(one * slower for one, slower in scales) / factor)
    serves = ", which serves all fabrics" if len(set(scales)) > 1 else ""
    return f"scale: {{bytes: {factor:g}, dilation: {dilation:g}}}{serves}"
