"""The tables on packets: which cells they need, and the same rows from what was measured, each beside its prediction."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from moefabric.console import Reporter
from moefabric.errors import SpecError
from moefabric.paper.job import Job
from moefabric.paper.packets import Measuring, waits
from moefabric.paper.scene import PRODUCTION, RATES, Scene
from moefabric.paper.seen import Cell, Packets
from moefabric.paper.tables import Paper, Table, iterations, past, table
from moefabric.units import NS_PER_S, rate_bps

NETWORKS: Final = ("fat-tree", "rail-optimised", "topoopt", "mixnet", "mixnet-spill", "mixnet-joint")
"""What every model is replayed on."""
_OVERSUBSCRIBED: Final = "mixtral-8x22b"
"""The one model of the published ones whose EP group has servers under two leaves."""
_PRODUCTION_BPS: Final = 400e9
_TABLES: Final = ("efficiency", "speed", "circuits", "share", "delay")
"""Tables whose rows come from all-to-alls and from moving light: of the others nothing can be sent."""
SETTLES_NS: Final = tuple(round(s * NS_PER_S) for s in (1e-6, 1e-3, 25e-3, 0.1, 1.0, 10.0))


@dataclass(frozen=True)
class Part:
    """Some of the cells: those of a model, and of one NIC rate where `rate_bps` is given."""

    model: str
    rate_bps: float | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """`mixtral-8x7b` or `mixtral-8x7b@400Gb/s`. SpecError where the rate is none."""
        model, _, rate = text.partition("@")
        try:
            return cls(model, rate_bps(rate) if rate else None)
        except ValueError as fault:
            raise SpecError([("--only", str(fault))]) from fault

    def has(self, cell: Cell) -> bool:
        """Whether a cell is one of them."""
        return cell.job.split(" ")[0] == self.model and self.rate_bps in {None, cell.rate_bps}


def cells(there: Scene, only: Sequence[Part] = ()) -> list[Cell]:
    """The cells that the tables need, or those of some parts. SpecError where a part has none."""
    every = list(_cells(there))
    for part in only:
        if not any(map(part.has, every)):
            models = ", ".join(there.jobs)
            raise SpecError([("--only", f"{part.model} at that rate is no cell; models: {models}")])
    return [cell for cell in every if not only or any(part.has(cell) for part in only)]


def _cells(there: Scene) -> Iterator[Cell]:
    for job in there.jobs:
        for network in NETWORKS:
            if job in there.calibrations or network != "rail-optimised":
                yield from (Cell(job, network, rate) for rate in RATES)
    yield from (Cell(_OVERSUBSCRIBED, "oversubscribed", rate) for rate in RATES)
    yield from (Cell(job.name, PRODUCTION, _PRODUCTION_BPS) for job in there.measured.values())


def steps(wanted: Sequence[Cell], *, light: bool) -> int:
    """How many steps `sent` announces."""
    return len(wanted) + light * len(SETTLES_NS)


def sent(there: Scene, wanted: Sequence[Cell], reporter: Reporter, *, light: bool) -> Packets:
    """Everything on packets; `light`: its moves too. FabricError and the like where a fabric can't run."""
    jobs: Mapping[str, Job] = {job.name: job for job in (*there.jobs.values(), *there.measured.values())}
    moved = waits(there.jobs[_OVERSUBSCRIBED], SETTLES_NS, reporter) if light else {}
    measuring = Measuring(jobs, reporter)
    measuring.all(wanted)
    return Packets(measuring.found, moved, measuring.lost)


def emulated(made: Paper, packets: Packets) -> Paper:
    """The predicted tables' rows from what was measured; rows of which some was not are left out."""
    there = replace(made.scene, source=packets)
    parts = (part for part in made.said.tables if part.table in _TABLES)
    tables = [iterations(made.said.iteration, there), *(table(part, there) for part in parts)]
    tables.append(_without_overlap(past(made.said.past, there)))
    beside = {each.name: each for each in made.tables}
    return Paper(
        tuple(_paired(each, beside[each.name]) for each in tables if each.rows), there, made.said, packets
    )


def _without_overlap(each: Table) -> Table:
    """Transfers beside all-to-alls are the fluid model's alone."""
    return replace(each, rows=tuple(row for row in each.rows if "overlapped" not in row.name))


def _paired(each: Table, predicted: Table) -> Table:
    """Every row with what was predicted for it."""
    found = {(row.name, row.on): row.ours for row in predicted.rows}
    return replace(each, rows=tuple(replace(row, predicted=found[row.name, row.on]) for row in each.rows))
