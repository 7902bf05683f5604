"""Raw results of studies as CSV: their provenance as JSON on the first line, then a row each."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from moefabric.api.provenance import provenance_of
from moefabric.api.results import Provenance

_PARTS: Final = "core", "simulator", "workload", "planner", "config", "traces", "prediction"
PREDICTED: Final = tuple(f"moefabric/{part}" for part in _PARTS)
"""Folders of the source on which a prediction depends."""
_COMMENT: Final = "# "


class FrozenPart(BaseModel):
    """A part of a study's results, which JSON has, too."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def source_of(command: str, files: Sequence[Path], study: str) -> Provenance:
    """Return the provenance of a study that predicts or simulates.

    Args:
        command: Subcommand of `moefabric`.
        files: The experiments that it reads.
        study: Folder of the study's source, from the root of the repository.
    """
    source = provenance_of(files[0], (), command, files[1:])
    measured = [*PREDICTED, study]
    return source.model_copy(update={"command": f"moefabric {command}", "measured": measured})


def table_text(source: Provenance, rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows of equal keys as CSV, numbers with five digits."""
    file = io.StringIO()
    file.write(f"{_COMMENT}{source.model_dump_json(exclude_defaults=True)}\n")
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})
    return file.getvalue()


def read_table(file: Path) -> tuple[Provenance, list[dict[str, str]]]:
    """Return the provenance and the rows of a table."""
    first, _, rest = file.read_text().partition("\n")
    source = Provenance.model_validate_json(first.removeprefix(_COMMENT))
    return source, list(csv.DictReader(io.StringIO(rest)))
