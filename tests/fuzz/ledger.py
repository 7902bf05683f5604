"""What has been fuzzed: `ledger.csv` beside this module has the last clean run of each target."""

import csv
import re
import subprocess
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from moefabric.runtime.atomic_file import write_whole

LEDGER: Final = Path(__file__).with_name("ledger.csv")
_UNITS: Final = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
_COVERAGE: Final = re.compile(r"\bcov: (\d+) ft: (\d+)")


@dataclass(frozen=True)
class FuzzRun:
    """A run of a target without a defect.

    Attributes:
        target: Name of the target.
        date: Its day (ISO 8601, UTC).
        commit: The commit, `-dirty` behind it if files had changed.
        inputs: How many inputs it has had.
        coverage: Edges of the code that they reached, by libFuzzer.
        features: Edges by how often they were passed.
    """

    target: str
    date: str
    commit: str
    inputs: int
    coverage: int
    features: int

    @classmethod
    def of_output(cls, target: str, output: str) -> "FuzzRun":
        """Return the run of a target now, by what libFuzzer has printed.

        Raises:
            ValueError: If that lacks the statistics.
        """
        units, reached = _UNITS.findall(output), _COVERAGE.findall(output)
        if not units or not reached:
            raise ValueError(f"{target}: libFuzzer printed no statistics: {output[-200:]!r}")
        today = datetime.now(UTC).date().isoformat()
        return cls(target, today, _commit(), int(units[-1]), *map(int, reached[-1]))


def _commit() -> str:
    """Return the commit of the code that runs; the ledger itself may have changed."""
    others = "--untracked-files=no", "--", ".", f":(exclude)tests/fuzz/{LEDGER.name}"
    dirty = "-dirty" if _git("status", "--porcelain", *others) else ""
    return _git("rev-parse", "--short=8", "HEAD") + dirty


def _git(*words: str) -> str:
    argv, folder = ["git", *words], LEDGER.parents[2]
    reply = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    return reply.stdout.strip()


def note(run: FuzzRun, ledger: Path = LEDGER) -> None:
    """Write a run to the ledger, in the place of the target's last one."""
    runs = {one.target: one for one in read(ledger)} | {run.target: run}
    rows = [[*map(str, asdict(runs[name]).values())] for name in sorted(runs)]
    header = [field.name for field in fields(FuzzRun)]
    write_whole(ledger, "".join(f"{','.join(row)}\n" for row in [header, *rows]))


def read(ledger: Path = LEDGER) -> list[FuzzRun]:
    """Return the runs of a ledger."""
    if not ledger.exists():
        return []
    with ledger.open(newline="") as file:
        return [
            FuzzRun(target, date, commit, int(inputs), int(coverage), int(features))
            for target, date, commit, inputs, coverage, features in list(csv.reader(file))[1:]
        ]
