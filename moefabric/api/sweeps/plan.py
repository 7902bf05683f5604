"""Plan of a sweep: its runs, whose experiments have all been checked."""

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from moefabric.api.sweeps.engine import RunTask
from moefabric.api.sweeps.spec import Point, SweepSpec
from moefabric.config.code_inputs import code_digests
from moefabric.config.experiment import ExperimentSpec
from moefabric.config.file_kinds import read_kind
from moefabric.config.input_file import change_keys
from moefabric.config.inputs import named_paths
from moefabric.config.loader import resolve_paths
from moefabric.config.training_program import NO_PROGRAM
from moefabric.config.validation import validate
from moefabric.core.errors import SpecError, UnreadableError
from moefabric.core.resource_needs import ResourceNeeds, fabric_needs, region_needs, total_needs
from moefabric.core.units import Scale

_PROGRAM: Final = "train.program"
_RANK_BYTES: Final = 400_000_000
"""Memory of a rank with PyTorch and a small model."""
_PREDICTION: Final = ResourceNeeds(1, 500_000_000)
"""Needs of a prediction."""
_AUTO_CORES: Final = 2
"""Cores of a run whose scale is chosen for its cores."""
_ID_DIGITS: Final = 12
_FILE_DIGITS: Final = 16
"""Hexadecimal digits of the digest of a file."""
_SHOWN_FAULTS: Final = 20


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep.

    Attributes:
        point: The combination of values with which it runs.
        repetition: Its number among runs with the same point and seed, from 0.
        task: The work to carry out.
    """

    point: Point
    seed: int
    repetition: int
    task: RunTask


@dataclass(frozen=True)
class SweepPlan:
    """All runs of a sweep.

    Attributes:
        runs: The runs by id, in order.
        archives: Archives of input files by digest.
    """

    spec: SweepSpec
    runs: Mapping[str, PlannedRun]
    archives: Mapping[str, bytes]


def plan_sweep(spec: SweepSpec, folder: Path) -> SweepPlan:
    """Return the runs of a sweep, after each of its experiments has been checked.

    Args:
        folder: Folder of the sweep's file; relative paths start there.

    Raises:
        SpecError: With the faults of all experiments, each with the values that it comes from.
    """
    planner = _Planner(spec, folder.resolve())
    faults = defaultdict[tuple[str, str], list[Point]](list)
    runs: dict[str, PlannedRun] = {}
    seeds: list[int | None] = [*spec.seeds] or [None]
    for point in spec.points():
        for seed in seeds:
            try:
                planned = list(planner.runs(point, seed))
            except SpecError as error:
                for fault in error.errors:
                    faults[fault].append(point)
                continue
            for run in planned:
                if (other := runs.get(run.task.id)) is not None:
                    faults["", f"is the same as {other.point}"].append(point)
                runs[run.task.id] = run
    _check(faults)
    if spec.baseline is not None and spec.baseline not in planner.fabrics:
        known = ", ".join(planner.fabrics)
        raise SpecError([("baseline", f"{spec.baseline!r} is not one of the fabrics: {known}")])
    return SweepPlan(spec, runs, planner.archives)


class _Planner:
    """Plans the runs of points.

    Attributes:
        archives: Input files and folders of all runs, by the digests of their contents.
        fabrics: Names of the fabrics of all runs, as keys.
    """

    def __init__(self, spec: SweepSpec, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self.archives: dict[str, bytes] = {}
        self.fabrics: dict[str, None] = {}
        self._digests: dict[Path, str] = {}
        self._version = version("moefabric")
        if isinstance(spec.experiment, Path):
            path = folder / spec.experiment
            try:
                self._folder, self._document = path.parent, read_kind(path, "experiment")
            except UnreadableError as error:
                raise SpecError([("experiment", str(error))]) from error
        else:
            self._document = spec.experiment

    def runs(self, point: Point, seed: int | None) -> Iterator[PlannedRun]:
        """Yield the repetitions of a point with a seed; None is the seed of the experiment.

        Raises:
            SpecError: With the faults of the experiment.
        """
        document = deepcopy(self._document)
        change_keys(document, {**point.changes, **({} if seed is None else {"seed": seed})})
        resolve_paths(document, self._folder)
        experiment = validate(ExperimentSpec, document)
        self.fabrics |= dict.fromkeys(choice.name for choice in experiment.fabrics)
        program = self._program(experiment) if self._spec.mode == "train" else None
        inputs = []
        for place, path in named_paths(experiment):
            if program is not None and place == _PROGRAM:
                # The program stays among the files that it imports and reads.
                change_keys(document, {place: str(self._folder / path)})
                continue
            digest, archived = self._packed(self._folder / path)
            change_keys(document, {place: archived})
            inputs.append(digest)
        needs, mode = run_needs(self._spec, experiment), self._spec.mode
        digests, code = tuple(dict.fromkeys(inputs)), code_digests(experiment)
        for repetition in range(self._spec.repetitions):
            title = f"{point}, seed {experiment.seed}"
            if self._spec.repetitions > 1:
                title += f", repetition {repetition}"
            id_ = self._digest(document, repetition, program, code)
            task = RunTask(id_, title, mode, document, digests, needs, self._version)
            yield PlannedRun(point, experiment.seed, repetition, task)

    def _packed(self, path: Path) -> tuple[str, str]:
        """Return the digest of a file or a folder, and its path where it is unpacked.

        Raises:
            SpecError: If it can't be read.
        """
        path = path.resolve()
        if path not in self._digests:
            archive = _archive(path)
            self._digests[path] = digest = sha256(archive).hexdigest()[:_FILE_DIGITS]
            self.archives[digest] = archive
        digest = self._digests[path]
        return digest, f"{digest}/{path.name}"

    def _program(self, experiment: ExperimentSpec) -> bytes:
        """Return the text of the program that trains.

        Raises:
            SpecError: If the experiment has none, or it can't be read.
        """
        if experiment.train is None:
            raise SpecError([("train", NO_PROGRAM)])
        try:
            return (self._folder / experiment.train.program).read_bytes()
        except OSError as error:
            raise SpecError([(_PROGRAM, f"{error.filename}: {error.strerror}")]) from error

    def _digest(
        self,
        document: Mapping[str, Any],
        repetition: int,
        program: bytes | None,
        code: Sequence[tuple[str, str, str]],
    ) -> str:
        content = [self._spec.mode, self._version, repetition, document, *code]
        if program is not None:
            content.append(sha256(program).hexdigest())
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_ID_DIGITS]


def _check(points_of: Mapping[tuple[str, str], Sequence[Point]]) -> None:
    """Raise an error that has each fault once, with the first point that has it.

    Raises:
        SpecError: If there are any faults.
    """
    faults = []
    for (place, message), points in points_of.items():
        further = len({point.number for point in points}) - 1
        where = f"{points[0]}" + (f" and {further} more" if further else "")
        faults.append((f"{where}: {place}" if place else where, message))
    if len(faults) > _SHOWN_FAULTS:
        more = len(faults) - _SHOWN_FAULTS
        faults[_SHOWN_FAULTS:] = [("", f"and {more} more faults")]
    if faults:
        raise SpecError(faults)


def run_needs(spec: SweepSpec, experiment: ExperimentSpec) -> ResourceNeeds:
    """Return the whole cores and the memory that are reserved for a run.

    Without `cores` or `memory` in the sweep, these are the needs of the largest fabric at the
    experiment's scale.
    """
    if spec.mode == "predict":
        needs = _PREDICTION
    else:
        scale = experiment.given_scale()
        assumed = scale or Scale()
        fabrics = [experiment.build_fabric(c, "needs", assumed) for c in experiment.fabrics]
        totals = [total_needs(fabric_needs(fabric).values()) for fabric in fabrics]
        # Cores that carry the bytes of all NICs of a region carry them through the EPS too.
        carried = [total_needs(region_needs(f, region) for region in f.regions) for f in fabrics]
        cores = _AUTO_CORES if scale is None else max(ceil(needs.cores) for needs in carried)
        memory = max(total.memory_bytes for total in totals)
        if spec.mode == "train":
            memory += experiment.training.ep * _RANK_BYTES
        needs = ResourceNeeds(cores, memory)
    return ResourceNeeds(spec.cores or needs.cores, spec.memory or needs.memory_bytes)


def _archive(path: Path) -> bytes:
    """Return an archive of a file or a folder; equal contents give equal archives."""
    stream = io.BytesIO()
    try:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        with ZipFile(stream, "w", ZIP_DEFLATED) as archive:
            for file in files:  # entries without a date
                archive.writestr(ZipInfo(str(file.relative_to(path.parent))), file.read_bytes())
    except OSError as error:
        raise UnreadableError(path, error) from error
    return stream.getvalue()
