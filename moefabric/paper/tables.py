"""The tables: every row with the paper's value, ours, the band that the file fixes, and the verdict."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Final

from moefabric.paper import read
from moefabric.paper.calibration import COLUMN
from moefabric.paper.guess import TOP_K
from moefabric.paper.handover import overlapped
from moefabric.paper.measures import MEASURES
from moefabric.paper.network import NETWORKS
from moefabric.paper.read import CopilotPart, IterationPart, PastPart, RowPart, TablePart, Tables
from moefabric.paper.scene import RATES, Scene, UnmeasuredError, scene
from moefabric.paper.seen import Packets
from moefabric.units import rate_bps, rate_text

WITHIN, OUTSIDE, CALIBRATED, TOLD = "within", "outside", "calibrated", "told"
TAKE: Final[Mapping[str, Callable[[list[float]], float]]] = {"min": min, "max": max, "mean": mean}
PAST: Final = ("mixnet", "mixnet-spill", "mixnet-joint")


Range = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One value: `paper` and the band that ours has to lie in, each from low to high. `on` says of which model, rate or network.

    Rows that are told, not judged, may have neither. Where ours was measured on packets, `predicted` is what the fluid model has.
    """

    name: str
    on: str
    paper: Range | None
    band: Range | None
    ours: float
    verdict: str
    unit: str = "x"
    why: str = ""
    predicted: float | None = None

    @property
    def error(self) -> float | None:
        """How much more was measured than predicted, as a part of that."""
        return self.ours / self.predicted - 1 if self.predicted else None


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
    """All tables, the scene they come from, and the file that says what is in them."""

    tables: tuple[Table, ...]
    scene: Scene
    said: Tables
    packets: Packets | None = None
    """What the rows were measured from; None where they are predicted."""

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
            **({"packets": self.packets.to_json()} if self.packets else {}),
        }


def predicted(folder: Path) -> Paper:
    """Every table of a folder such as `examples/paper`. SpecError where its files can't be used."""
    said, there = read.checked(Tables, folder / "tables.yaml"), scene(folder)
    tables = [iterations(said.iteration, there), *(table(part, there) for part in said.tables)]
    tables += [_copilot(said.copilot, there), past(said.past, there)]
    return Paper(tuple(tables), there, said)


def known(value: Callable[[], float]) -> float | None:
    """A value that may ask for packets which nobody has sent: None then."""
    try:
        return value()
    except UnmeasuredError:
        return None


def _row(name: str, on: str, paper: float | list[float], ours: float, part: TablePart) -> Row:
    low, high = paper if isinstance(paper, list) else (paper, paper)
    band = (low * (1 - part.relative) - part.absolute, high * (1 + part.relative) + part.absolute)
    verdict = WITHIN if band[0] <= ours <= band[1] else OUTSIDE
    why = part.why if verdict == OUTSIDE else ""
    return Row(name, on, (low, high), band, ours, verdict, part.unit, why)


def table(part: TablePart, there: Scene) -> Table:
    """One table of the file; rows that aren't known are left out."""
    rows = tuple(
        _row(row.row, _on(row), row.paper, ours, part)
        for row in part.rows
        if (ours := known(partial(_value, row, there))) is not None
    )
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


def iterations(part: IterationPart, there: Scene) -> Table:
    """The published figures; values that aren't known are left out."""
    rows = []
    for (job, rate, network), value in there.published.items():
        ours = known(partial(_normalised, there, job, network, rate))
        low, high = value * (1 - part.relative), value * (1 + part.relative)
        if ours is not None:
            verdict = CALIBRATED if network == COLUMN else WITHIN if low <= ours <= high else OUTSIDE
            why = part.why.get(network, "") if verdict == OUTSIDE else ""
            on = f"{job} at {rate_text(rate)}"
            rows.append(Row(network, on, (value, value), (low, high), ours, verdict, "", why))
    for (job, rate, network), value in there.published.items():
        blocked = partial(_normalised, there, job, network, rate, part.blocked_ms * 1e-3)
        if network == "mixnet" and (ours := known(blocked)) is not None:
            name = f"mixnet, {part.blocked_ms:g} ms blocked"
            rows.append(Row(name, f"{job} at {rate_text(rate)}", (value, value), None, ours, TOLD, ""))
    return Table("iteration", part.title, part.source, tuple(rows), " ".join(part.why.values()))


def _normalised(there: Scene, job: str, network: str, rate: float, delay_s: float = 0.0) -> float:
    return there.iteration(job, network, rate, delay_s).seconds / there.calibrations[job].unit_s


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


def past(part: PastPart, there: Scene) -> Table:
    """The aims past the paper; what isn't known is left out."""
    return Table("past", part.title, part.source, tuple(_aims(part, there)), part.why)


def _aims(part: PastPart, there: Scene) -> Iterator[Row]:
    """The worst rate of each model and policy, beside the non-blocking EPS."""
    for network in PAST[1:]:
        for job in there.jobs:
            for what, of, aim in (
                ("all-to-all", ratio, part.all_to_all),
                ("iteration", iteration_ratio, part.iteration),
            ):
                yield from _aim(f"{network}: {what}", there, of, job, network, aim)
    for network in PAST[1:]:
        for job in there.jobs:
            yield from _aim(
                f"{network} overlapped: iteration", there, overlapped_ratio, job, network, part.iteration
            )


Ratio = Callable[[Scene, str, str, float], float]


def _aim(name: str, there: Scene, of: Ratio, job: str, network: str, aim: float) -> Iterator[Row]:
    ours = known(lambda: max(of(there, job, network, rate) for rate in RATES))
    if ours is not None:
        yield Row(name, job, (1.0, aim), (0.0, aim), ours, WITHIN if ours <= aim else OUTSIDE)


def ratio(there: Scene, job: str, network: str, rate: float) -> float:
    """A network's all-to-alls to those of the non-blocking EPS."""
    return there.all_to_all(job, network, rate).layer_s / there.all_to_all(job, "fat-tree", rate).layer_s


def iteration_ratio(there: Scene, job: str, network: str, rate: float) -> float:
    """A network's iteration to that of the non-blocking EPS."""
    return there.iteration(job, network, rate).seconds / there.iteration(job, "fat-tree", rate).seconds


def overlapped_ratio(there: Scene, job: str, network: str, rate: float) -> float:
    """A network's iteration to that of the non-blocking EPS, the transfers between stages beside the all-to-alls before them on both."""
    ours, eps = (
        overlapped(there.jobs[job], there.all_to_all(job, name, rate), NETWORKS[name].electrical, rate)
        for name in (network, "fat-tree")
    )
    return ours.seconds / eps.seconds
