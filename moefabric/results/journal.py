"""Journal of a run: a file to which results are appended while they arise, one JSON object a line.

A header comes first, then a line for each fabric that begins, each iteration that has ended and
each fabric that is finished. The line of an iteration replaces earlier lines of this and of later
iterations of its job. The last line may be cut off: readers ignore it, and `--resume` goes on
after the line before.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from moefabric.config.inputs import EXPERIMENT
from moefabric.core.errors import JournalInUseError, SpecError, UnreadableError
from moefabric.results.comparison import with_ratios
from moefabric.results.model import FabricResult, Manifest, RunResult, Verdict, WiringSummary
from moefabric.results.parts import ResultPart
from moefabric.results.verdict import reasons
from moefabric.results.verdict.fabric_result import summed_outcomes
from moefabric.results.verdict.iteration_outcome import ROW_LISTS, IterationOutcome, joined_rows
from moefabric.results.verdict.verdict import worst_verdict
from moefabric.runtime.atomic_file import append_whole, output_error

JOURNAL_SUFFIX: Final = ".jsonl"
"""Suffix of the names of journals."""

_MACHINE: Final = ("kernel", "cores", "scale", "congestion_control")
"""Circumstances on which measurements depend."""


class HeaderLine(ResultPart):
    """First line: which experiment runs, and where."""

    type: Literal["run"] = "run"
    run_id: str
    """Random name of the run."""
    experiment: str
    """Name of the experiment."""
    version: str
    """Version of moefabric."""
    manifest: Manifest
    """Circumstances of the run at its start."""
    spec: dict[str, Any]
    """The experiment."""
    fabrics: list[str] = Field(default_factory=list)
    """Names of all fabrics."""
    flows: bool = False
    """Whether iterations list every flow."""
    trains: bool = False
    """Whether a program trains."""


class SegmentLine(ResultPart):
    """A run that was stopped goes on."""

    type: Literal["segment"] = "segment"
    started: str
    """When it went on (ISO 8601, UTC)."""
    host: str
    """Name of the machine."""


class FabricLine(ResultPart):
    """A fabric begins."""

    type: Literal["fabric"] = "fabric"
    fabric: str
    """Name of the fabric in the experiment."""
    policy: str
    """Policy that chooses the circuits."""
    iterations: int = 0
    """Number of iterations that it will run."""
    wiring: WiringSummary = WiringSummary()
    """Servers, NICs and switches."""
    paced: bool = True
    """Whether flows are paced."""


class IterationLine(IterationOutcome):
    """An iteration has ended."""

    type: Literal["iteration"] = "iteration"
    fabric: str
    """Name of the fabric in the experiment."""


class ResultLine(ResultPart):
    """A fabric is finished; rows of its result are on the lines of its iterations."""

    type: Literal["result"] = "result"
    result: FabricResult
    """The result without its rows."""


Line = HeaderLine | SegmentLine | FabricLine | IterationLine | ResultLine
_LINE: Final = TypeAdapter[Line](Annotated[Line, Field(discriminator="type")])


@dataclass
class FabricLines:
    """Lines about one fabric.

    Attributes:
        begin: The line with which it began.
        places: Offset and length of each iteration's line, by job and number.
        result: Its result without rows; None if it isn't finished.
    """

    begin: FabricLine
    places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    result: FabricResult | None = None

    def place(self, job: int, iteration: int, offset: int, length: int) -> None:
        """Record the place of an iteration's line; it replaces those of later iterations."""
        for known in [(j, n) for j, n in self.places if j == job and n >= iteration]:
            del self.places[known]
        self.places[job, iteration] = offset, length


class JournalReader:
    """The lines of a journal, which may end in the middle of one.

    Attributes:
        header: Its first line.
        segments: When the run went on.
        fabrics: The lines about each fabric that began, in order.
        size: Bytes of the whole lines.

    Raises:
        SpecError: If the file can't be read, isn't a journal, or has a wrong line before its end.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        self.segments: list[SegmentLine] = []
        self.fabrics: dict[str, FabricLines] = {}
        header: HeaderLine | None = None
        try:
            with path.open("rb") as file:
                for number, text in enumerate(file, 1):
                    if not text.endswith(b"\n"):
                        break
                    line = self._parsed(text, number)
                    if header is not None:
                        self._take(line, number, len(text))
                    elif isinstance(line, HeaderLine):
                        header = line
                    else:
                        break
                    self.size += len(text)
        except OSError as error:
            raise UnreadableError(path, error) from error
        if header is None:
            raise SpecError([(str(path), "is no journal: it has no header")])
        self.header = header

    def resumed_manifest(self, last: Manifest) -> Manifest:
        """Return the manifest of the run, whose last segment has this one."""
        resumed = [*(segment.started for segment in self.segments), last.started]
        return last.model_copy(update={"started": self.header.manifest.started, "resumed": resumed})

    def result(self, fabric: str) -> FabricResult | None:
        """Return the result of a finished fabric, with its rows; None if it isn't finished."""
        lines = self.fabrics.get(fabric)
        if lines is None or lines.result is None:
            return None
        return lines.result.model_copy(update=joined_rows(self.outcomes(fabric)))

    def iterations(self, fabric: str) -> list[tuple[int, int]]:
        """Return job and number of the iterations of a fabric that have ended, in order."""
        return list(self.fabrics[fabric].places) if fabric in self.fabrics else []

    def outcomes(self, fabric: str) -> Iterator[IterationOutcome]:
        """Yield the iterations of a fabric that have ended; one at a time is in memory."""
        try:
            with self.path.open("rb") as file:
                for place in self.iterations(fabric):
                    offset, length = self.fabrics[fabric].places[place]
                    file.seek(offset)
                    line = self._parsed(file.read(length), 0)
                    assert isinstance(line, IterationLine)
                    yield line
        except OSError as error:
            raise UnreadableError(self.path, error) from error

    def _parsed(self, text: bytes, number: int) -> Line:
        try:
            return _LINE.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"].startswith("union_tag"):
                fault = "is no journal of a run, which `moefabric run --json` writes"
                if number > 1:
                    fault = f"line {number} is of no type that a journal has"
                raise SpecError([(str(self.path), fault)]) from error
            steps = ".".join(str(step) for step in first["loc"][1:])
            place = f"{self.path}: line {number}" + (f": {steps}" if steps else "")
            raise SpecError([(place, first["msg"])]) from error

    def _take(self, line: Line, number: int, length: int) -> None:
        match line:
            case FabricLine():
                self.fabrics.setdefault(line.fabric, FabricLines(line))
            case IterationLine():
                self._of(line.fabric, number).place(*line.place, self.size, length)
            case ResultLine():
                self._of(line.result.fabric, number).result = line.result
            case SegmentLine():
                self.segments.append(line)
            case HeaderLine():
                raise SpecError([(f"{self.path}: line {number}", "a second header")])

    def _of(self, fabric: str, number: int) -> FabricLines:
        if fabric not in self.fabrics:
            raise SpecError([(f"{self.path}: line {number}", f"fabric {fabric!r} hasn't begun")])
        return self.fabrics[fabric]


def read_journal(path: Path) -> RunResult:
    """Return the result of a run from its journal.

    Fabrics that were not finished have the iterations that ended, and are degraded at best. The
    field `incomplete` says what is missing.

    Raises:
        SpecError: If the file can't be read, or is no journal.
    """
    reader = JournalReader(path)
    header, manifest = reader.header, reader.header.manifest
    if resumed := [segment.started for segment in reader.segments]:
        manifest = manifest.model_copy(update={"resumed": resumed})
    results = [reader.result(fabric) or _unfinished(reader, fabric) for fabric in reader.fabrics]
    verdicts = [result.fidelity.verdict for result in results] or [Verdict.INVALID]
    run = RunResult(
        experiment=header.experiment,
        version=header.version,
        verdict=worst_verdict(verdicts),
        manifest=manifest,
        results=with_ratios(results),
    )
    missing = "; ".join(_missing(reader))
    return run.model_copy(update={"incomplete": missing}) if missing else run


def _missing(reader: JournalReader) -> Iterator[str]:
    """Yield the missing parts of the experiment."""
    for fabric, lines in reader.fabrics.items():
        if lines.result is None:
            ended = f"{_ended(lines)} of {lines.begin.iterations} iterations"
            yield f"{fabric} was stopped after {ended}"
    if absent := [name for name in reader.header.fabrics if name not in reader.fabrics]:
        yield f"{', '.join(absent)} did not begin"


def _ended(lines: FabricLines) -> int:
    return len({number for _, number in lines.places})


def _unfinished(reader: JournalReader, fabric: str) -> FabricResult:
    """Return the result of a fabric that was stopped."""
    lines, outcomes = reader.fabrics[fabric], list(reader.outcomes(fabric))
    begun = lines.begin
    stopped = reasons.STOPPED.judge(_ended(lines), planned=begun.iterations)
    result = summed_outcomes(
        begun.wiring, fabric, begun.policy, outcomes, list(stopped), paced=begun.paced
    )
    return result.model_copy(update={"circuits": outcomes[-1].circuits if outcomes else []})


class Journal:
    """Appends lines to a journal.

    Each line is in the kernel's hands when `append` returns, so that it survives the process. A
    thread writes it to the disk (fdatasync(2)), so that it survives the machine soon after.

    Args:
        size: Bytes of the file that stay; later ones are removed. If none stay, `PATH.old` gets
            the file of the earlier run.
        shown: What errors call it. Default: its path.

    Raises:
        JournalInUseError: If another run writes to the file.
        OutputError: If the file can't be written.
    """

    def __init__(self, path: Path, size: int = 0, shown: Path | None = None) -> None:
        self.path, self._shown = path, shown or path
        try:
            self._file = FileIO(path, "a")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if size == 0 and self._file.tell():
                shutil.copyfile(path, f"{path}.old")
            self._file.truncate(size)
        except BlockingIOError as error:
            self._file.close()
            remedy = "another run writes to it; give another --json"
            raise JournalInUseError(f"{self.path}: {remedy}") from error
        except OSError as error:
            raise output_error(self._shown, error) from error
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._sync: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.submit(os.fdatasync, self._file)
        self._disk.shutdown()
        self._file.close()

    def append(self, *lines: Line) -> None:
        """Append lines, whole or not at all.

        Raises:
            OutputError: If there is no room; the journal is what it was before.
        """
        try:
            append_whole(self._file, b"".join(map(_json_line, lines)))
        except OSError as error:
            raise output_error(self._shown, error) from error
        if self._sync is None or self._sync.done():
            self._sync = self._disk.submit(os.fdatasync, self._file)


def is_in_use(path: Path) -> bool:
    """Return whether a run writes to a journal."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _json_line(line: Line) -> bytes:
    document = line.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps({"type": line.type, **document}, separators=(",", ":")).encode() + b"\n"


def without_rows(result: FabricResult) -> FabricResult:
    """Return a fabric's result without the rows that the lines of its iterations hold."""
    fields = {n: getattr(result, n) for n in result.model_fields_set if n not in ROW_LISTS}
    return FabricResult.model_construct(set(fields), **fields)


def resumable(path: Path, header: HeaderLine) -> JournalReader | None:
    """Return the journal of a stopped run that may go on; None if it stopped before its header.

    Args:
        path: The journal.
        header: The header of a run that would begin now.

    Raises:
        SpecError: If there is no journal, or experiment, version or machine differ; it names the
            differences.
    """
    if not path.is_file():
        raise SpecError([(str(path), "there is no run to resume: leave out --resume")])
    try:
        with path.open("rb") as file:
            if not file.readline().endswith(b"\n"):
                return None
    except OSError as error:
        raise UnreadableError(path, error) from error
    reader = JournalReader(path)
    faults = list(_differences(reader.header, header))
    if faults:
        fault = "differs from the run that was stopped"
        lines = [(f"{path}: {at}", f"{fault} ({was} there, {now} here)") for at, was, now in faults]
        remedy = "undo the change, or begin anew: another --json, without --resume"
        raise SpecError([*lines, (str(path), remedy)])
    return reader


def _differences(was: HeaderLine, now: HeaderLine) -> Iterator[tuple[str, object, object]]:
    """Yield place and values of each difference."""
    yield from _different("experiment", was.spec, now.spec)
    for name in ("version", "flows", "trains"):
        yield from _different(name, getattr(was, name), getattr(now, name))
    for name in _MACHINE:
        yield from _different(name, getattr(was.manifest, name), getattr(now.manifest, name))
    yield from _different("inputs", _file_digests(was), _file_digests(now))


def _file_digests(header: HeaderLine) -> dict[str, str]:
    """Return names and digests of the files that decide an experiment's figures, by key."""
    inputs = header.manifest.inputs or ()
    return {one.key: f"{one.file} {one.sha256}" for one in inputs if one.key != EXPERIMENT}


def _different(place: str, was: Any, now: Any) -> Iterator[tuple[str, object, object]]:
    if isinstance(was, ResultPart) and isinstance(now, ResultPart):
        was, now = was.to_json(), now.to_json()
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted({*was, *now}):
            yield from _different(f"{place}.{key}", was.get(key), now.get(key))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, pair in enumerate(zip(was, now, strict=True)):
            yield from _different(f"{place}[{number}]", *pair)
    elif was != now:
        yield place, was, now
