"""Folder of a sweep's results. Each result is written when its run ends.

| file | content |
|---|---|
| `runs/ID.json` | result of a run, as of `moefabric run --json` or `predict --json` |
| `runs.jsonl` | a line for each run that has ended: its values, attempts and figures |
| `table.jsonl`, `table.parquet` | a row for each fabric of each run |
| `sweep.json` | the sweep, its runs and hosts, and means with confidence intervals |
| `report.html` | page with pictures |
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from moefabric.api.sweeps.plan import PlannedRun, SweepPlan
from moefabric.api.sweeps.results import RECORDS, RunRecord, read_records, result_figures
from moefabric.api.sweeps.summary import SUMMARY
from moefabric.config.input_file import read_json
from moefabric.core.errors import OutputError, SpecError
from moefabric.runtime.atomic_file import append_lines, output_error, write_whole
from moefabric.runtime.missing_package import missing_package

_TABLE: Final = "table.jsonl"


class SweepFolder:
    """The folder of a sweep.

    Attributes:
        records: Records of the runs of the plan that have ended, by id.
        damaged: Files of results that are gone or no longer whole, whose runs are repeated.

    Args:
        path: The folder, which exists.
        resume: Whether the folder may have results, which are kept, also those of runs that aren't
            in the plan. Runs of the plan that have failed are forgotten.

    Raises:
        SpecError: If the folder has results and `resume` isn't given, or they are broken or of
            another sweep; or if there is nothing to resume.
        OutputError: If it can't be written.
    """

    def __init__(self, path: Path, plan: SweepPlan, *, resume: bool = False) -> None:
        self.path, self._plan = path, plan
        earlier = path / RECORDS
        has_begun = earlier.is_file()
        if has_begun and earlier.stat().st_size and not resume:
            message = "has results of a sweep: go on with --resume, or give another folder"
            raise SpecError([(str(path), message)])
        if has_begun and (other := _sweep_name(path)) not in ("", plan.spec.sweep):
            message = f"has results of the sweep {other}, not of {plan.spec.sweep}"
            raise SpecError([(str(path), f"{message}: give another folder")])
        if resume and not has_begun:
            message = "there is no sweep to resume: leave out --resume"
            raise SpecError([(str(path), message)])
        self.records: dict[str, RunRecord] = {}
        self.damaged: list[Path] = []
        others = list(self._take(earlier)) if has_begun else []
        records = self.ordered()
        write_whole(path / _TABLE, _lines(row for record in records for row in record.rows()))
        write_whole(earlier, _lines(record.to_json() for record in [*others, *records]))

    def result_file(self, run: str) -> Path:
        """Return the file of a run's result."""
        return self.path / "runs" / f"{run}.json"

    def add(self, record: RunRecord, result: str) -> None:
        """Write the result of a run, and its record after it.

        Raises:
            OutputError: If there is no room.
        """
        if result:
            write_whole(self.result_file(record.run), result)
        self.records[record.run] = record
        append_lines(self.path / _TABLE, _lines(record.rows()))
        append_lines(self.path / RECORDS, _lines([record.to_json()]))

    def ordered(self) -> list[RunRecord]:
        """Return the records in the order of the plan."""
        return [self.records[id_] for id_ in self._plan.runs if id_ in self.records]

    def write_parquet(self) -> None:
        """Write `table.parquet`.

        Raises:
            UnsupportedError: If pyarrow is missing.
        """
        arrow, parquet = parquet_modules()
        rows = uniform_rows([row for record in self.ordered() for row in record.rows()])
        sink = arrow.BufferOutputStream()
        parquet.write_table(arrow.Table.from_pylist(rows), sink)
        write_whole(self.path / "table.parquet", sink.getvalue().to_pybytes())

    def remove_empty_files(self) -> None:
        """Remove the files of lines if no run has ended."""
        if not (self.path / RECORDS).stat().st_size:
            for name in (_TABLE, RECORDS):
                (self.path / name).unlink()

    def _take(self, file: Path) -> Iterator[RunRecord]:
        """Take the results of the plan's runs, and yield the records of all other runs."""
        earlier = {record.run: record for record in read_records(file)}
        for record in earlier.values():
            planned, result = self._plan.runs.get(record.run), self.result_file(record.run)
            if planned is None:
                yield record.model_copy(update={"is_planned": False})
            elif not record.failed:
                try:
                    self.records[record.run] = self._current(record, planned, result.read_bytes())
                except (OSError, ValidationError):
                    self.damaged.append(result)

    def _current(self, record: RunRecord, planned: PlannedRun, result: bytes) -> RunRecord:
        """Return a record with the axes and the figures of the plan."""
        point = planned.point
        current = {
            "point": point.number,
            "values": dict(point.values),
            "fabrics": result_figures(planned.task.mode, result, self._plan.spec.figures),
            "is_planned": True,
        }
        return record.model_copy(update=current)


@contextmanager
def sweep_folder(path: Path, plan: SweepPlan, *, resume: bool = False) -> Iterator[SweepFolder]:
    """Make the folder of a sweep if there is none, and lock it against other sweeps.

    Of a sweep that is refused, or ends before a run has, no folder is left.

    Raises:
        SpecError: If the folder has results and `resume` isn't given, or they are broken; or if
            there is nothing to resume.
        OutputError: If it can't be written, or another sweep writes to it.
    """
    runs = path / "runs"
    new_folders = [folder for folder in (runs, *runs.parents) if not folder.exists()]
    try:
        runs.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise output_error(runs, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = SweepFolder(path, plan, resume=resume)
        try:
            yield folder
        finally:
            folder.remove_empty_files()
    except BlockingIOError as error:
        raise OutputError(f"{path}: another sweep writes to it; give another folder") from error
    finally:
        for empty in new_folders:
            with suppress(OSError):  # it has files
                empty.rmdir()
        os.close(descriptor)


def parquet_modules() -> tuple[Any, Any]:
    """Return the modules `pyarrow` and `pyarrow.parquet`.

    Raises:
        UnsupportedError: If pyarrow is missing.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise missing_package("a sweep's table", "pyarrow", "ray") from error


def uniform_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows whose columns have one type each: text where numbers and text are mixed."""
    kinds: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                kinds.setdefault(name, set()).add(type(value))
    mixed = {name for name, types in kinds.items() if len(types) > 1 and types != {int, float}}
    return [{n: str(v) if n in mixed else v for n, v in row.items()} for row in rows]


def _sweep_name(folder: Path) -> str:
    """Return the name of the sweep whose summary a folder has; empty if it can't be told."""
    with suppress(SpecError):
        document = read_json(folder / SUMMARY)
        return str(document.get("sweep", "")) if isinstance(document, dict) else ""
    return ""


def _lines(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return documents as lines of JSON."""
    return "".join(f"{json.dumps(document, ensure_ascii=False)}\n" for document in documents)
