"""Claims of stored results, judged again by the present rules, and the pages that show them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moefabric.api.results import Verdict, stored_lines
from moefabric_studies.systems.page import page_text
from moefabric_studies.systems.study import (
    ClaimSpec,
    JudgedClaim,
    Measure,
    Outcome,
    RunVerdict,
    StudyResult,
    load_study,
    stored_claims,
)

_CLAIMS: Final = "## Claims\n"
_TAILS: Final = ("\n## Changes after the first measurement", "\n## What the authors would object")


@dataclass(frozen=True)
class StoredStudy(StudyResult):
    """A study's file, and claims whose values were stored."""

    stored: Mapping[str, Any] = field(default_factory=dict)
    """The stored result."""

    @property
    def claims(self) -> list[JudgedClaim]:
        """The claims with their stored values."""
        known = {one["id"]: one for one in self.stored["claims"]}
        return [self._judged(spec, known.get(spec.id, {})) for spec in self.spec.claims]

    @property
    def run_verdicts(self) -> list[RunVerdict]:
        """Verdict of each fabric that was emulated."""
        runs = self.stored.get("runs", ())
        return [RunVerdict(one["fabric"], Verdict(one["verdict"])) for one in runs]

    def _judged(self, spec: ClaimSpec, known: Mapping[str, Any]) -> JudgedClaim:
        value = Measure(known.get("value"), tuple(known.get("samples", ())), known.get("note", ""))
        trust = known.get("runs_verdict")
        runs = [RunVerdict("stored", Verdict(trust))] if trust else []
        return JudgedClaim(spec, value, runs)


def redraw(file: Path, stored: Path, page: Path) -> bool:
    """Judge stored claims again, and draw the parts of the page that show them.

    Tables and pictures of the measurement stay as they are.

    Returns:
        Whether the page or the stored result has changed.
    """
    spec, _, _ = load_study(file)
    document = json.loads(stored.read_text())
    result = StoredStudy(spec, Outcome({}), 0.0, document)
    old = page.read_text()
    name = re.findall(r"`moefabric system (\S+)`", old)[0]
    texts = {
        stored: stored_lines({**document, "claims": stored_claims(result)}),
        page: _spliced(old, page_text(result, Path(name))),
    }
    changed = [path for path, text in texts.items() if path.read_text() != text]
    for path in changed:
        path.write_text(texts[path])
    return bool(changed)


def _spliced(old: str, new: str) -> str:
    """Return an old page with the claims, the changes and the objections of a new one."""
    head, _, old_body = old.partition(_CLAIMS)
    body = new.partition(_CLAIMS)[2]
    return (
        head
        + _CLAIMS
        + body[: _end(body)]
        + old_body[_end(old_body) : _tail(old_body)]
        + (body[_tail(body) :])
    )


def _end(body: str) -> int:
    """Return where the claims end: at the first picture, or at the next section."""
    return min(place for mark in ("\n![", "\n## ") if (place := body.find(mark)) >= 0)


def _tail(body: str) -> int:
    """Return where changes and objections begin, which follow all tables."""
    places = [place for mark in _TAILS if (place := body.find(mark)) >= 0]
    return min(places, default=len(body))
