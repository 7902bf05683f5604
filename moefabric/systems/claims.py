"""Published claims, with bands that are fixed before anything is measured, and their verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal

from pydantic import Field

from moefabric.config.section import Section
from moefabric.paper.rows import Bounds, contains

Method = Literal["emulated", "executed", "simulated", "computed", "untested"]
"""How the value of a claim arises.

* `emulated`: packets on an emulated fabric, counted at its ports.
* `executed`: programs and codecs that really ran, without a fabric.
* `simulated`: a flow-level or fluid simulation.
* `computed`: a formula.
* `untested`: not at all; the claim needs what this testbed lacks.
"""

HELD: Final = "held"
"""Inside the band, and the null model's value isn't."""
NULL_FITS: Final = "null fits too"
"""Inside the band, and so is the null model's value."""
MISSED: Final = "missed"
"""Outside the band."""
INVALID: Final = "invalid"
"""The measurement is invalid, so that the claim has no value."""
REPORTED: Final = "reported"
"""Measured; nothing was published, or no band was set."""
UNTESTED: Final = "not tested"


class ClaimSpec(Section):
    """A claim of a system's authors, or a question to which they give no answer."""

    id: str = Field(pattern=r"[A-Z][0-9]+[a-z]?")
    """Number of the claim, for example B1."""
    claim: str
    """What is claimed, in one sentence."""
    published: str = ""
    """The published value and its place in the paper; empty for a question of our own."""
    band: list[float | None] | None = Field(default=None, min_length=2, max_length=2)
    """Lowest and highest value that agree with the claim; null is an open end."""
    null_value: float | None = None
    """Value of a model that knows nothing of the system, for example 1 for a ratio of times."""
    measure: str = ""
    """Name of the measure among those of the study; empty if the claim isn't tested."""
    unit: str = ""
    """Unit of the values; x for ratios."""
    method: Method
    """How the value arises."""
    why: str = ""
    """Reason for the band; why a claim isn't tested."""


@dataclass(frozen=True)
class Measure:
    """A measured value.

    Attributes:
        value: The value that is judged; None if the measurement is invalid.
        samples: The values from which it was taken, in the order in which they arose.
        note: What a reader must know to interpret the value.
    """

    value: float | None
    samples: tuple[float, ...] = ()
    note: str = ""

    @classmethod
    def median_of(cls, samples: Sequence[float], note: str = "") -> "Measure":
        """Return the measure whose value is the median of samples; invalid without samples."""
        return cls(median(samples) if samples else None, tuple(samples), note)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, its measured value and the verdict."""

    spec: ClaimSpec
    measure: Measure = field(default_factory=lambda: Measure(None))

    @property
    def verdict(self) -> str:
        """The verdict on the measured value."""
        spec, value = self.spec, self.measure.value
        if spec.method == "untested":
            return UNTESTED
        if value is None:
            return INVALID
        if spec.band is None:
            return REPORTED
        band: Bounds = spec.band[0], spec.band[1]
        if not contains(band, value):
            return MISSED
        fits = spec.null_value is not None and contains(band, spec.null_value)
        return NULL_FITS if fits else HELD

    def to_json(self) -> dict[str, Any]:
        """Return the claim as JSON types."""
        measure = {**vars(self.measure), "samples": list(self.measure.samples)}
        return {**self.spec.model_dump(mode="json"), **measure, "verdict": self.verdict}
