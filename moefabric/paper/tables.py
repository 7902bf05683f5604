"""The tables: every row with the paper's value, ours, the band that the file fixes, and the verdict."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from moefabric.paper import read
from moefabric.paper.calibration import COLUMN
from moefabric.paper.guess import TOP_K
from moefabric.paper.measures import MEASURES
from moefabric.paper.read import CopilotPart, IterationPart, PastPart, RowPart, TablePart, Tables
from moefabric.paper.scene import RATES, Scene, scene
from moefabric.units import rate_bps, rate_text

WITHIN, OUTSIDE, CALIBRATED, TOLD = "within", "outside", "calibrated", "told"
TAKE: Final[Mapping[str, Callable[[list[float]], float]]] = {"min": min, "max": max, "mean": mean}
PAST: Final = ("mixnet", "mixnet-spill", "mixnet-joint")


Range = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One value: `paper` and the band that ours has to lie in, each from low to high. `on` says of which model, rate or network.

    Rows that are told, not judged, may have neither.
    """

    name: str
    on: str
    paper: Range | None
    band: Range | None
    ours: float
    verdict: str
    unit: str = "x"
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of one kind."""

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    why: str = ""


@dataclass(frozen=True)
class Paper:
    """All tables, and the scene they come from."""

    tables: tuple[Table, ...]
    scene: Scene

    @property
    def judged(self) -> list[Row]:
        """Rows that have a verdict: all but those of the column that was calibrated on, and those that are only told."""
        return [row for table in self.tables for row in table.rows if row.verdict in {WITHIN, OUTSIDE}]

    @property
    def within(self) -> int:
        """How many of them are in their bands."""
        return sum(row.verdict == WITHIN for row in self.judged)

    def to_json(self) -> dict[str, Any]:
        """Every row, and how many are in their bands."""
        return {
            "rows": len(self.judged),
            "within": self.within,
            "calibrated": {
                name: {"utilisation": each.job.training.utilisation, "worst_misfit": each.error}
                for name, each in self.scene.calibrations.items()
            },
            "tables": [asdict(table) for table in self.tables],
        }


def predicted(folder: Path) -> Paper:
    """Every table of a folder such as `examples/paper`. SpecError where its files can't be used."""
    said, there = read.checked(Tables, folder / "tables.yaml"), scene(folder)
    tables = [_iteration(said.iteration, there), *(_table(part, there) for part in said.tables)]
    tables += [_copilot(said.copilot, there), _past(said.past, there)]
    return Paper(tuple(tables), there)


def _row(name: str, on: str, paper: float | list[float], ours: float, part: TablePart) -> Row:
    low, high = paper if isinstance(paper, list) else (paper, paper)
    band = (low * (1 - part.relative) - part.absolute, high * (1 + part.relative) + part.absolute)
    verdict = WITHIN if band[0] <= ours <= band[1] else OUTSIDE
    why = part.why if verdict == OUTSIDE else ""
    return Row(name, on, (low, high), band, ours, verdict, part.unit, why)


def _table(part: TablePart, there: Scene) -> Table:
    rows = tuple(_row(row.row, _on(row), row.paper, _value(row, there), part) for row in part.rows)
    return Table(part.table, part.title, part.source, rows, part.why)


def _value(row: RowPart, there: Scene) -> float:
    values = [
        MEASURES[row.measure](there, row, job, rate_bps(rate)) for job in row.jobs for rate in row.rates
    ]
    return float(TAKE[row.take](values))


def _on(row: RowPart) -> str:
    jobs = ", ".join(filter(None, row.jobs)) if len(row.jobs) < 3 else f"{len(row.jobs)} models"
    rates = row.rates[0] if len(row.rates) == 1 else f"{len(row.rates)} rates"
    return " at ".join(filter(None, (jobs, rates)))


def _iteration(part: IterationPart, there: Scene) -> Table:
    rows = []
    for (job, rate, network), value in there.published.items():
        ours = there.iteration(job, network, rate).seconds / there.calibrations[job].unit_s
        low, high = value * (1 - part.relative), value * (1 + part.relative)
        verdict = CALIBRATED if network == COLUMN else WITHIN if low <= ours <= high else OUTSIDE
        why = part.why.get(network, "") if verdict == OUTSIDE else ""
        rows.append(
            Row(network, f"{job} at {rate_text(rate)}", (value, value), (low, high), ours, verdict, "", why)
        )
    for (job, rate, network), value in there.published.items():
        if network == "mixnet":
            ours = (
                there.iteration(job, network, rate, part.blocked_ms * 1e-3).seconds
                / there.calibrations[job].unit_s
            )
            name = f"mixnet, {part.blocked_ms:g} ms blocked"
            rows.append(Row(name, f"{job} at {rate_text(rate)}", (value, value), None, ours, TOLD, ""))
    return Table("iteration", part.title, part.source, tuple(rows), " ".join(part.why.values()))


def _copilot(part: CopilotPart, there: Scene) -> Table:
    """Accuracy above that of the others, and what wrong guesses cost."""
    made = there.guesses
    rows = []
    for other in part.above:
        gain = 100 * (made.accuracy["copilot"] - made.accuracy[other])
        verdict = WITHIN if gain > 0 else OUTSIDE
        rows.append(
            Row(
                f"top-{TOP_K} accuracy above {other}",
                "training trace",
                (0.0, 100.0),
                (0.0, 100.0),
                gain,
                verdict,
                "points",
            )
        )
    for name, found in made.accuracy.items():
        rows.append(
            Row(f"top-{TOP_K} accuracy: {name}", "training trace", None, None, 100 * found, TOLD, "%")
        )
    for (optical, electrical), late in made.wrong_ms.items():
        on = f"{optical} + {electrical} NICs, {made.dispatch_ms[optical, electrical]:.1f} ms"
        rows += [
            Row(f"a wrong guess costs: {name}", on, None, None, ms, TOLD, "ms") for name, ms in late.items()
        ]
    return Table("copilot", part.title, part.source, tuple(rows))


def _past(part: PastPart, there: Scene) -> Table:
    return Table("past", part.title, part.source, tuple(_aims(part, there)), part.why)


def _aims(part: PastPart, there: Scene) -> Iterator[Row]:
    """The worst rate of each model and policy, beside the non-blocking EPS."""
    for network in PAST[1:]:
        for job in there.jobs:
            alone = max(ratio(there, job, network, rate) for rate in RATES)
            whole = max(iteration_ratio(there, job, network, rate) for rate in RATES)
            for what, ours, aim in (
                ("all-to-all", alone, part.all_to_all),
                ("iteration", whole, part.iteration),
            ):
                verdict = WITHIN if ours <= aim else OUTSIDE
                yield Row(f"{network}: {what}", job, (1.0, aim), (0.0, aim), ours, verdict)


def ratio(there: Scene, job: str, network: str, rate: float) -> float:
    """A network's all-to-alls to those of the non-blocking EPS."""
    return there.all_to_all(job, network, rate).layer_s / there.all_to_all(job, "fat-tree", rate).layer_s


def iteration_ratio(there: Scene, job: str, network: str, rate: float) -> float:
    """A network's iteration to that of the non-blocking EPS."""
    return there.iteration(job, network, rate).seconds / there.iteration(job, "fat-tree", rate).seconds
