"""What a verdict rests on, by iteration: it fits into a journal, and adds up over iterations.

Every error is kept, eight bytes each, so that medians and percentiles are exact. Labels are kept
only of the errors that a reason may name.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Self

from pydantic import Field, model_validator

from moefabric.runner.fidelity import ErrorSamples, LabelledError, Observation
from moefabric.runner.result_model import Integrity
from moefabric.runner.result_parts import ResultPart

_MOST_ERRORS: Final = 3
"""Different errors of reconfigurations that a reason lists."""
_RETRANSMIT_SHARE: Final = 1e-3
"""Share of segments sent again above which a paced run is degraded: its links lose no frame."""


class NamedErrors(ResultPart):
    """Relative errors of one kind."""

    values: list[float] = Field(default_factory=list)
    """All errors."""
    named: list[tuple[str, float]] = Field(default_factory=list)
    """Labels and errors of the extremes."""

    @model_validator(mode="after")
    def _name_extremes(self) -> Self:
        if self.values and not self.named:
            raise ValueError("errors without a name of the greatest")
        return self

    @classmethod
    def of(cls, errors: Sequence[LabelledError]) -> Self:
        """Return labelled errors without the labels that no reason names."""
        samples = ErrorSamples.of(errors)
        named = [(item.label, item.error) for item in samples.named]
        return cls(values=samples.values.tolist(), named=named)

    def add_to(self, samples: ErrorSamples) -> None:
        """Add these errors to others."""
        samples.add(self.values, [LabelledError(label, error) for label, error in self.named])


class Evidence(ResultPart):
    """What one iteration contributes to the verdict."""

    errors: dict[str, NamedErrors] = Field(default_factory=dict)
    """Measured / predicted - 1 by kind."""
    links: dict[str, list[float]] = Field(default_factory=dict)
    """Measured / planned goodput - 1 of full links."""
    lateness: NamedErrors = NamedErrors()
    """How late the last server of each collective started."""
    settling: NamedErrors = NamedErrors()
    """Measured / specified dark time - 1."""
    misrouted: list[str] = Field(default_factory=list)
    """Flows that took another path than planned."""
    violations: list[str] = Field(default_factory=list)
    """Other contradictions between records, counters and demand."""
    refused: list[str] = Field(default_factory=list)
    """Why reconfigurations failed."""
    dark: list[str] = Field(default_factory=list)
    """Reconfigurations that left circuits dark."""
    changes: int = 0
    """Number of reconfigurations."""
    retransmits: int = 0
    """TCP segments that judged collectives sent again."""
    judged_bytes: int = 0
    """Emulated bytes of judged collectives."""
    worst_retransmits: int = 0
    """Segments that one flow sent again, at most."""
    worst_flow: str = ""
    """That flow."""
    collectives: int = 0
    """Number of collectives."""
    judged: int = 0
    """Number of collectives that are judged."""


class EvidenceSum:
    """Evidence of many iterations."""

    def __init__(self) -> None:
        self._errors = defaultdict[str, ErrorSamples](ErrorSamples)
        self._links = defaultdict[str, "array[float]"](lambda: array("d"))
        self._lateness, self._settling = ErrorSamples(), ErrorSamples()
        self._misrouted, self._violations = list[str](), list[str]()
        self._refused, self._dark = list[str](), list[str]()
        self._changes = self._retransmits = self._judged_bytes = 0
        self._worst = 0, ""
        self._collectives = self._judged = 0

    def add(self, evidence: Evidence) -> None:
        """Add the evidence of an iteration."""
        for kind, errors in evidence.errors.items():
            errors.add_to(self._errors[kind])
        for link, values in evidence.links.items():
            self._links[link].extend(values)
        evidence.lateness.add_to(self._lateness)
        evidence.settling.add_to(self._settling)
        self._misrouted += evidence.misrouted
        self._violations += evidence.violations
        self._refused += evidence.refused
        self._dark += evidence.dark
        self._changes += evidence.changes
        self._retransmits += evidence.retransmits
        self._judged_bytes += evidence.judged_bytes
        if evidence.worst_retransmits > self._worst[0]:
            self._worst = evidence.worst_retransmits, evidence.worst_flow
        self._collectives += evidence.collectives
        self._judged += evidence.judged

    def observation(
        self,
        mtu: int,
        integrity: Integrity,
        *,
        cpu_idle: Sequence[float],
        remarks: Sequence[str],
        failures: bool,
        paced: bool,
    ) -> Observation:
        """Return what the verdict on one fabric rests on.

        Args:
            mtu: MTU of the NICs in bytes.
            integrity: Conservation of bytes.
            cpu_idle: Idle shares of the machine while packets were under way, one per sample.
            remarks: Reasons for which the run is degraded whatever was measured.
            failures: Whether failures were injected.
            paced: Whether flows were paced.
        """
        return Observation(
            errors=dict(self._errors),
            link_rate_errors=self._links,
            cpu_idle=cpu_idle,
            lateness=self._lateness,
            integrity=integrity,
            settle_errors=self._settling,
            misrouted=self._misrouted,
            violations=self._violations,
            remarks=[
                *remarks,
                *(() if failures else self._refusals()),
                *(self._repetitions(mtu) if paced else ()),
            ],
            disturbed=1 - self._judged / self._collectives if self._collectives else 0.0,
            paced=paced,
        )

    def _refusals(self) -> Iterator[str]:
        """Yield the reconfigurations that failed, or left circuits dark.

        The run knows which failures it injected, but not why anything else happens.
        """
        if self._refused:
            distinct = list(dict.fromkeys(self._refused))
            more = len(distinct) - _MOST_ERRORS
            named = "; ".join(distinct[:_MOST_ERRORS]) + (f"; and {more} more" if more > 0 else "")
            yield f"{len(self._refused)} of {self._changes} reconfigurations failed ({named})"
        if self._dark:
            dark = f"{len(self._dark)} of {self._changes} reconfigurations left circuits dark"
            yield f"{dark} ({self._dark[0]})"

    def _repetitions(self, mtu: int) -> Iterator[str]:
        if self._retransmits * mtu > _RETRANSMIT_SHARE * self._judged_bytes:
            worst, flow = self._worst
            yield (
                f"{self._retransmits} TCP segments were sent again, most {flow} ({worst}): "
                "a queue or link dropped frames"
            )
