"""A study: one system's claims as data, and the code that measures them on this testbed.

Bands of claims are fixed before anything is measured; verdicts follow from them.
"""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import comb
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final, Literal, Protocol, Self, TypeVar

from pydantic import Field

from moefabric import Experiment, Result, SpecError
from moefabric.api import plugins
from moefabric.api.commands import check_writable, write_output
from moefabric.api.plugins import Section
from moefabric.api.provenance import provenance_of
from moefabric.api.results import (
    ExperimentPrediction,
    ProgressReporter,
    RunResult,
    Verdict,
    stored_lines,
)
from moefabric.api.units import Units
from moefabric_studies.grids import Grid
from moefabric_studies.paper.rows import INVALID, MISSED, NULL_FITS, REPORTED, Bounds, contains
from moefabric_studies.result_blocks import StoredResults

T = TypeVar("T")
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
NOT_ENOUGH: Final = "not enough samples"
"""Inside the band, but by fewer samples than a claim needs to hold."""
SPREAD: Final = "too much spread"
"""Inside the band, but the median of its samples, or of other ones, might not be."""
UNTESTED: Final = "not tested"
LEAST_SAMPLES: Final = 3
"""Fewest samples of a claim that holds."""
_DETERMINISTIC: Final = ("simulated", "computed")
"""Methods whose values no repetition changes."""
_DOUBT: Final = 0.05
"""Probability that the median is outside of its bounds."""


class ClaimSpec(Section):
    """A claim of a system's authors, or a question to which they give no answer."""

    id: str = Field(pattern=r"[A-Z][0-9]+[a-z]?")
    """Number of the claim, for example B1."""
    claim: str
    """The claim in one sentence."""
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
    exact: bool = False
    """True if repetition can't change the value, as of counted bytes: one sample is enough."""


@dataclass(frozen=True)
class Measure:
    """A measured value.

    Attributes:
        value: The value that is judged; None if the measurement is invalid.
        samples: The values from which it was taken, in the order in which they arose.
        note: What a reader must know to interpret the value.
        runs: Names of the runs, or of their fabrics (`occult-4x1/once`), from which it was taken.
            Default: all runs of the study, if the claim is emulated.
    """

    value: float | None
    samples: tuple[float, ...] = ()
    note: str = ""
    runs: tuple[str, ...] | None = None

    @classmethod
    def median_of(cls, samples: Sequence[float], note: str = "") -> "Measure":
        """Return the measure whose value is the median of samples; invalid without samples."""
        return cls(median(samples) if samples else None, tuple(samples), note)

    def mapped(self, function: Callable[[float], float]) -> "Measure":
        """Return the measure with a function of its value and of its samples."""
        value = None if self.value is None else function(self.value)
        return replace(self, value=value, samples=tuple(map(function, self.samples)))

    def on(self, run: str, *fabrics: str) -> "Measure":
        """Return the measure with the fabrics of a run from which it was taken; none for all."""
        names = tuple(f"{run}/{fabric}" for fabric in fabrics) or (run,)
        return replace(self, runs=(*(self.runs or ()), *names))


@dataclass(frozen=True)
class RunVerdict:
    """Verdict on one fabric that was emulated.

    Attributes:
        name: Names of the run and of the fabric: `occult-4x1/once`.
        reasons: Reasons for a verdict other than a pass.
    """

    name: str
    verdict: Verdict
    reasons: Sequence[str] = ()

    def belongs_to(self, names: Sequence[str]) -> bool:
        """Return whether the fabric, or its run, is among these names."""
        return self.name in names or self.name.partition("/")[0] in names


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, its measured value and the verdict.

    Attributes:
        runs: Verdicts of the fabrics on which the value rests.
    """

    spec: ClaimSpec
    measure: Measure = field(default_factory=lambda: Measure(None))
    runs: Sequence[RunVerdict] = ()

    @property
    def trust(self) -> Verdict | None:
        """Worst verdict of the fabrics on which the value rests; None if there are none."""
        return max((one.verdict for one in self.runs), key=list(Verdict).index, default=None)

    @property
    def value(self) -> float | None:
        """The measured value; None if the measurement or a fabric below it is invalid."""
        return None if self.trust is Verdict.INVALID else self.measure.value

    @property
    def verdict(self) -> str:
        """The verdict on the measured value."""
        spec, value = self.spec, self.value
        if spec.method == "untested":
            return UNTESTED
        if value is None:
            return INVALID
        if spec.band is None:
            return REPORTED
        band: Bounds = spec.band[0], spec.band[1]
        if not contains(band, value):
            return MISSED
        if spec.null_value is not None and contains(band, spec.null_value):
            return NULL_FITS
        return self._held(band)

    @property
    def verdict_text(self) -> str:
        """The verdict, and that of the runs if it is worse than a pass: `held (degraded)`."""
        mark = self.trust is Verdict.DEGRADED and self.verdict != UNTESTED
        return f"{self.verdict} (degraded)" if mark else self.verdict

    def _held(self, band: Bounds) -> str:
        """Return whether a value inside the band is enough evidence for the claim.

        The least or the largest sample is a bound of all. Any other value, such as a ratio of
        pooled times, is judged by its samples.
        """
        if self.spec.exact or self.spec.method in _DETERMINISTIC:
            return HELD
        samples = self.measure.samples
        if len(samples) < LEAST_SAMPLES:
            return NOT_ENOUGH
        if self.value != median(samples) and self.value in (min(samples), max(samples)):
            return HELD
        return HELD if all(contains(band, end) for end in median_interval(samples)) else SPREAD

    def to_json(self) -> dict[str, Any]:
        """Return the claim as JSON types."""
        measure = {**vars(self.measure), "samples": list(self.measure.samples)}
        measure["runs"] = [one.name for one in self.runs]
        judged = {"value": self.value, "verdict": self.verdict, "runs_verdict": self.trust}
        return {**self.spec.model_dump(mode="json"), **measure, **judged}


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return a confidence interval of 95 % for the median of the samples' distribution.

    Its bounds are two of the samples, whatever the distribution. Fewer than six samples don't
    suffice; then the bounds are the least and the largest.
    """
    ordered, n = sorted(samples), len(samples)
    outside, rank = 0.0, 0
    while (outside := outside + 2 * comb(n, rank) / 2**n) <= _DOUBT:
        rank += 1
    rank = max(1, rank)
    return ordered[rank - 1], ordered[n - rank]


class Change(Section):
    """A change of the system or the set-up after a claim was measured for the first time."""

    claim: str
    """Number of the claim."""
    first: str
    """The value that was measured first."""
    verdict: str
    """The verdict on it, by the rules of that time."""
    change: str
    """What was changed then."""
    now: str = ""
    """The value and the verdict afterwards."""


class Objection(Section):
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
    """Source of each part: the whole text, an abstract, the authors' code."""
    mechanism: str
    """What the system does, as Markdown."""
    method: str
    """How the claims are measured here, as Markdown."""
    setup: dict[str, Any] = Field(default_factory=dict)
    """Sizes and rates of the measurement; the study has a section for them."""
    claims: list[ClaimSpec] = Field(min_length=1)
    """The claims."""
    changes: list[Change] = Field(default_factory=list)
    """Changes of the system or the set-up after the first measurement."""
    objections: list[Objection] = Field(default_factory=list)
    """Objections that the authors would raise."""

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
        for number, change in enumerate(self.changes):
            if change.claim not in numbers:
                yield f"changes[{number}].claim", f"there is no claim {change.claim}"


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
    """Folder and progress of a study, its parts that have ended, and experiments on fabrics.

    Attributes:
        folder: Folder of the study's file; relative paths start there.
        reporter: Shows progress.
        file: The study's file.
        store: Folder to which results of runs are stored; None for none.
        stored: Folder of stored results, which take the place of runs; None to run.
        units: Keeps parts that have ended.
    """

    folder: Path
    reporter: ProgressReporter
    file: Path | None = None
    store: Path | None = None
    stored: Path | None = None
    units: Units = field(default_factory=Units)

    def keep(self, name: str, kind: type[T], measure: Callable[[], T]) -> T:
        """Return a part of the study, which is measured unless it has been before.

        Args:
            name: Name of the part, which no other part of the study has.
            kind: Its type, which pydantic knows.
            measure: Measures it.
        """
        return self.units.value(f"{self.file}: {name}", kind, measure)

    def run(self, document: Mapping[str, Any], *, flows: bool = False) -> Result:
        """Run an experiment with packets on emulated fabrics. Needs root.

        Args:
            document: The experiment.
            flows: Whether the result keeps the record of every flow.

        Raises:
            MoefabricError: The experiment can't run.
        """
        experiment = self._experiment(document)
        if self.file is not None:
            experiment.file, experiment.command = self.file, "system"
        name = experiment.spec.experiment
        journal, resume = self.units.journal(name)
        run = partial(experiment.run, reporter=self.reporter, journal=journal, resume=resume)
        result = Result.of(self.keep(f"run {name}", RunResult, partial(run, flows=flows)))
        if journal is not None:
            journal.unlink(missing_ok=True)
        if self.store is not None:
            result.store(self.store / f"{result.experiment}.json")
        return result

    def run_or_stored(self, document: Mapping[str, Any]) -> RunResult:
        """Return the stored result of an experiment, or run it if there is none.

        A stored result has the figures of tables and the verdicts, and no all-to-alls.

        Raises:
            MoefabricError: The experiment can't run.
        """
        results = None if self.stored is None else StoredResults(self.stored)
        name = str(document["experiment"])
        if results is not None and results.existing([name]):
            return results[name]
        return self.run(document)

    def predict(self, document: Mapping[str, Any]) -> ExperimentPrediction:
        """Return the fluid model's prediction of an experiment, without packets."""
        return self._experiment(document).predict()

    def _experiment(self, document: Mapping[str, Any]) -> Experiment:
        return Experiment.of(plugins.experiment_of(document), self.folder)


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
    """A study's file, its outcome and its judged claims.

    Attributes:
        run_verdicts: Verdict of each fabric that was emulated.
        origins: Commit of each stored run whose origin has a remark, and the remark.
    """

    spec: StudySpec
    outcome: Outcome
    seconds: float
    claims: Sequence[JudgedClaim]
    run_verdicts: Sequence[RunVerdict]
    origins: Sequence[str]

    @classmethod
    def of(cls, spec: StudySpec, outcome: Outcome, seconds: float) -> Self:
        """Return the result of measurements, and judge the claims by them."""
        verdicts = [
            RunVerdict(f"{run.experiment}/{one.fabric}", one.fidelity.verdict, one.fidelity.reasons)
            for run in outcome.runs
            for one in run.results
        ]
        none = Measure(None, note="The study has no such measure.")
        measures = {"": Measure(None), **outcome.measures}
        claims = [_judged(one, measures.get(one.measure, none), verdicts) for one in spec.claims]
        sources = (run.manifest.provenance for run in outcome.runs)
        notes = (f"commit {(s.commit or '')[:8]}; {s.remark}" for s in sources if s and s.remark)
        return cls(spec, outcome, seconds, claims, verdicts, list(dict.fromkeys(notes)))

    @classmethod
    def read(cls, path: Path, store: Path) -> Self:
        """Return the stored result of a study's file, whose pictures have no content.

        Args:
            path: The study's file.
            store: Folder of stored results.

        Raises:
            SpecError: If the file is wrong, or a claim of it isn't stored.
        """
        spec = plugins.validate(StudySpec, plugins.read_yaml(path), path)
        file = store / f"systems/{spec.system}.json"
        stored = json.loads(file.read_text())
        known = {claim["id"]: claim for claim in stored["claims"]}
        if missing := [claim.id for claim in spec.claims if claim.id not in known]:
            command = f"moefabric system {path} --store {store}"
            raise SpecError([(str(file), f"lacks {', '.join(missing)}: run {command}")])
        grids = [
            Grid("", one["title"], "", one["header"], one["rows"], one.get("note", ""))
            for one in stored.get("grids", ())
        ]
        captions = {one["name"]: one["caption"] for one in stored.get("pictures", ())}
        verdicts = [
            RunVerdict(one["fabric"], Verdict(one["verdict"]), one.get("reasons", ()))
            for one in stored.get("runs", ())
        ]
        return cls(
            spec,
            Outcome({}, dict.fromkeys(captions, ""), captions, grids),
            stored["seconds"],
            [_stored_claim(claim, known[claim.id]) for claim in spec.claims],
            verdicts,
            stored.get("origins", ()),
        )

    @property
    def is_invalid(self) -> bool:
        """True if a claim has no value, or an emulated run was invalid."""
        verdicts = {run.verdict for run in self.run_verdicts}
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
                {"fabric": run.name, "verdict": run.verdict, "reasons": list(run.reasons)}
                for run in self.run_verdicts
            ],
        }


def _judged(spec: ClaimSpec, measure: Measure, verdicts: Sequence[RunVerdict]) -> JudgedClaim:
    """Return a claim with its value, and the verdicts of the fabrics on which that rests."""
    if spec.method != "emulated":
        return JudgedClaim(spec, measure)
    names = measure.runs
    return JudgedClaim(
        spec, measure, [run for run in verdicts if names is None or run.belongs_to(names)]
    )


def _stored_claim(spec: ClaimSpec, stored: Mapping[str, Any]) -> JudgedClaim:
    value = Measure(stored.get("value"), tuple(stored.get("samples", ())), stored.get("note", ""))
    trust = stored.get("runs_verdict")
    return JudgedClaim(spec, value, [RunVerdict("", Verdict(trust))] if trust else [])


def load_study(path: Path, settings: Sequence[str] = ()) -> tuple[StudySpec, Study, Any]:
    """Return a study's file, the code that measures it, and its setup.

    Args:
        path: The YAML file.
        settings: Changes such as `setup.servers=8`.

    Raises:
        SpecError: With all faults of the file.
    """
    spec = plugins.validate(StudySpec, plugins.read_yaml(path, settings), path)
    study: Study = plugins.load_named_by_file(plugins.STUDIES, spec.system, Study)
    try:
        return spec, study, plugins.validate(study.setup, spec.setup)
    except SpecError as error:
        faults = [(f"{path}: setup.{place}", message) for place, message in error.errors]
        raise SpecError(faults) from error


def run_study(
    path: Path,
    reporter: ProgressReporter,
    settings: Sequence[str] = (),
    *,
    store: Path | None = None,
    stored: Path | None = None,
    units: Units | None = None,
) -> StudyResult:
    """Measure the claims of a study's file.

    Args:
        path: The YAML file.
        reporter: Shows progress.
        settings: Changes such as `setup.servers=8`.
        store: Folder to which results of runs are stored; None for none.
        stored: Folder of stored results, which take the place of runs; None to run.
        units: Keeps parts that have ended. Default: nothing does.

    Raises:
        MoefabricError: The file is wrong, or the testbed lacks what the study needs.
    """
    spec, study, setup = load_study(path, settings)
    if store is not None:
        check_writable(store / "systems.json")
        (store / "systems").mkdir(parents=True, exist_ok=True)
    began = monotonic()
    # Studies join paths with the folder, and experiments do so again.
    context = StudyContext(path.parent.absolute(), reporter, path, store, stored, units or Units())
    outcome = study.measure(setup, context)
    result = StudyResult.of(spec, outcome, monotonic() - began)
    if store is not None:
        write_output(store / f"systems/{spec.system}.json", stored_text(result, path, settings))
    return result


_MOST_SAMPLES: Final = 100
"""Samples of a claim that are stored."""


def stored_text(result: StudyResult, path: Path, settings: Sequence[str] = ()) -> str:
    """Return what the page of a study shows, as small as a stored result.

    Args:
        result: The study's result.
        path: The study's file.
        settings: Changes to the file.
    """
    source = provenance_of(path, settings, "system")
    started = datetime.now(UTC) - timedelta(seconds=result.seconds)
    manifest = {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "started": started.isoformat(timespec="seconds"),
        "provenance": source.to_json(),
    }
    whole, names = result.to_json(), ("id", "value", "verdict", "runs_verdict", "note")
    claims = [
        {**{name: claim[name] for name in names}, "samples": claim["samples"][:_MOST_SAMPLES]}
        for claim in whole["claims"]
    ]
    shown = ("title", "header", "rows", "note")
    return stored_lines(
        {
            "system": result.spec.system,
            "manifest": manifest,
            "seconds": round(result.seconds),
            "claims": claims,
            "grids": [{name: grid[name] for name in shown} for grid in whole["grids"]],
            "pictures": [
                {"name": name, "caption": result.outcome.captions.get(name, name)}
                for name in result.outcome.pictures
            ],
            "runs": whole["runs"],
            "origins": result.origins,
        }
    )
