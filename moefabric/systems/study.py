"""A study: one system's claims as data, and the code that measures them on this testbed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from pydantic import Field

from moefabric.config.experiment import ExperimentSpec
from moefabric.config.input_file import read_yaml
from moefabric.config.loader import experiment_of
from moefabric.config.plugins import STUDIES, load_plugin
from moefabric.config.section import Document, Fault, Section
from moefabric.config.validation import validate
from moefabric.core.errors import SpecError
from moefabric.paper.rows import Grid
from moefabric.runner.prediction import predict_fabrics
from moefabric.runner.progress import ProgressReporter
from moefabric.runner.result_model import ExperimentPrediction, RunResult, Verdict
from moefabric.runner.run import run
from moefabric.systems.claims import ClaimSpec, JudgedClaim, Measure


class Objection(Section):
    """What the authors of a system would object to, and the answer."""

    objection: str
    """The objection."""
    answer: str
    """The answer."""


class StudySpec(Document):
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

    def faults(self) -> Iterator[Fault]:
        """Yield the claims that have one number, or whose value can't arise."""
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
    """What a study has measured.

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
    """The place of a study, and its means to emulate fabrics.

    Attributes:
        folder: Folder of the study's file; relative paths start there.
        reporter: Shows progress.
    """

    folder: Path
    reporter: ProgressReporter

    def experiment(self, document: Mapping[str, Any]) -> ExperimentSpec:
        """Return the experiment that a mapping describes, as in a file of this folder.

        Raises:
            SpecError: With all faults of the mapping.
        """
        return experiment_of(document)

    def run(self, document: Mapping[str, Any], *, flows: bool = False) -> RunResult:
        """Run an experiment with packets on emulated fabrics. Needs root.

        Args:
            document: The experiment.
            flows: Whether the result keeps the record of every flow.

        Raises:
            MoefabricError: The experiment can't run.
        """
        return run(self.experiment(document), self.folder, self.reporter, flows=flows)

    def predict(self, document: Mapping[str, Any]) -> ExperimentPrediction:
        """Return what the fluid model predicts for an experiment, without packets."""
        return predict_fabrics(self.experiment(document), self.folder)


class Study(Protocol):
    """Measures the claims of one system."""

    @property
    def setup(self) -> type[Section]:
        """The section of sizes and rates."""

    def measure(self, setup: Any, context: StudyContext) -> Outcome:
        """Measure everything that the claims name.

        Args:
            setup: The values of the section.
            context: The place of the study.

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
    spec = validate(StudySpec, read_yaml(path, settings), path)
    study: Study = load_plugin(STUDIES, spec.system, Study)
    try:
        return spec, study, validate(study.setup, spec.setup)
    except SpecError as error:
        faults = [(f"{path}: setup.{place}", message) for place, message in error.faults]
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
