"""A study: one system's claims as data, and the code that measures them on this testbed.

Bands of claims are fixed before anything is measured; verdicts follow from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final, Literal, Protocol

from pydantic import Field

from moefabric import Experiment, Result, SpecError
from moefabric.api import plugins
from moefabric.api.plugins import Section
from moefabric.api.results import ExperimentPrediction, ProgressReporter, RunResult, Verdict
from moefabric_studies.grids import Grid
from moefabric_studies.paper.rows import Bounds, contains

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


class Objection(plugins.Section):
    """An objection that a system's authors may raise, and the answer."""

    objection: str
    """The objection."""
    answer: str
    """The answer."""


class StudySpec(plugins.Document):
    """A study file: what a system's authors claim, and how it is measured here."""

    system: str = Field(pattern=r"[a-z][a-z0-9-]*")
    """Name of the system."""
    title: str
    """Title of the page."""
    paper: str
    """Title, venue and number of the paper."""
    sources: str
    """Which parts rest on which source: the whole text, an abstract, the authors' code."""
    mechanism: str
    """What the system does, as Markdown."""
    method: str
    """How the claims are measured here, as Markdown."""
    setup: dict[str, Any] = Field(default_factory=dict)
    """Sizes and rates of the measurement; the study has a section for them."""
    claims: list[ClaimSpec] = Field(min_length=1)
    """The claims."""
    objections: list[Objection] = Field(default_factory=list)
    """What the authors would object to."""

    def errors(self) -> Iterator[plugins.InputError]:
        """Yield an error for each claim whose number is taken, or that has a wrong measure."""
        numbers: set[str] = set()
        for number, claim in enumerate(self.claims):
            place = f"claims[{number}]"
            if claim.id in numbers:
                yield f"{place}.id", f"{claim.id} is taken"
            numbers.add(claim.id)
            if (claim.method == "untested") == bool(claim.measure):
                yield f"{place}.measure", "a claim has a measure unless it is untested"


@dataclass(frozen=True)
class Outcome:
    """The measurements of a study.

    Attributes:
        measures: Values by name; claims name them.
        pictures: SVG files by name; the page shows them in this order.
        captions: What each picture shows, by the picture's name.
        grids: Tables without verdicts.
        runs: Runs on emulated fabrics, whose verdicts the page shows.
    """

    measures: Mapping[str, Measure]
    pictures: Mapping[str, str] = field(default_factory=dict)
    captions: Mapping[str, str] = field(default_factory=dict)
    grids: Sequence[Grid] = ()
    runs: Sequence[RunResult] = ()


@dataclass(frozen=True)
class StudyContext:
    """Folder and progress of a study, and experiments on emulated fabrics.

    Attributes:
        folder: Folder of the study's file; relative paths start there.
        reporter: Shows progress.
    """

    folder: Path
    reporter: ProgressReporter

    def experiment(self, document: Mapping[str, Any]) -> plugins.ExperimentSpec:
        """Return the experiment that a mapping describes, as in a file of this folder.

        Raises:
            SpecError: With all faults of the mapping.
        """
        return plugins.experiment_of(document)

    def run(self, document: Mapping[str, Any], *, flows: bool = False) -> Result:
        """Run an experiment with packets on emulated fabrics. Needs root.

        Args:
            document: The experiment.
            flows: Whether the result keeps the record of every flow.

        Raises:
            MoefabricError: The experiment can't run.
        """
        return self._experiment(document).run(reporter=self.reporter, flows=flows)

    def predict(self, document: Mapping[str, Any]) -> ExperimentPrediction:
        """Return the fluid model's prediction of an experiment, without packets."""
        return self._experiment(document).predict()

    def _experiment(self, document: Mapping[str, Any]) -> Experiment:
        return Experiment.of(self.experiment(document), self.folder)


class Study(Protocol):
    """Measures the claims of one system."""

    @property
    def setup(self) -> type[plugins.Section]:
        """The section of sizes and rates."""

    def measure(self, setup: Any, context: StudyContext) -> Outcome:
        """Return a value for each measure that the claims name.

        Args:
            setup: The values of the section.
            context: Folder of the study's file, progress, and runs on emulated fabrics.

        Raises:
            MoefabricError: The testbed lacks what the study needs.
        """


@dataclass(frozen=True)
class StudyResult:
    """A study's file, its outcome and its judged claims."""

    spec: StudySpec
    outcome: Outcome
    seconds: float

    @property
    def claims(self) -> list[JudgedClaim]:
        """The claims with their values."""
        none = Measure(None, note="The study has no such measure.")
        measures = {"": Measure(None), **self.outcome.measures}
        return [JudgedClaim(spec, measures.get(spec.measure, none)) for spec in self.spec.claims]

    @property
    def run_verdicts(self) -> list[tuple[str, str, list[str]]]:
        """Name, verdict and reasons of each fabric that was emulated."""
        return [
            (f"{one.experiment}/{result.fabric}", result.fidelity.verdict, result.fidelity.reasons)
            for one in self.outcome.runs
            for result in one.results
        ]

    @property
    def is_invalid(self) -> bool:
        """Whether a claim has no value, or an emulated run was invalid."""
        verdicts = {verdict for _, verdict, _ in self.run_verdicts}
        return Verdict.INVALID in verdicts or any(c.verdict == "invalid" for c in self.claims)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "system": self.spec.system,
            "title": self.spec.title,
            "setup": self.spec.setup,
            "seconds": round(self.seconds, 1),
            "claims": [claim.to_json() for claim in self.claims],
            "grids": [grid.to_json() for grid in self.outcome.grids],
            "runs": [
                {"fabric": name, "verdict": verdict, "reasons": reasons}
                for name, verdict, reasons in self.run_verdicts
            ],
        }


def load_study(path: Path, settings: Sequence[str] = ()) -> tuple[StudySpec, Study, Any]:
    """Return a study's file, the code that measures it, and its setup.

    Args:
        path: The YAML file.
        settings: Changes such as `setup.servers=8`.

    Raises:
        SpecError: With all faults of the file.
    """
    spec = plugins.validate(StudySpec, plugins.read_yaml(path, settings), path)
    study: Study = plugins.load_plugin(plugins.STUDIES, spec.system, Study)
    try:
        return spec, study, plugins.validate(study.setup, spec.setup)
    except SpecError as error:
        faults = [(f"{path}: setup.{place}", message) for place, message in error.errors]
        raise SpecError(faults) from error


def run_study(path: Path, reporter: ProgressReporter, settings: Sequence[str] = ()) -> StudyResult:
    """Measure the claims of a study's file.

    Args:
        path: The YAML file.
        reporter: Shows progress.
        settings: Changes such as `setup.servers=8`.

    Raises:
        MoefabricError: The file is wrong, or the testbed lacks what the study needs.
    """
    spec, study, setup = load_study(path, settings)
    began = monotonic()
    outcome = study.measure(setup, StudyContext(path.parent, reporter))
    return StudyResult(spec, outcome, monotonic() - began)
