"""The paper's tables as lines for a terminal; the last one says how many rows are within their bands."""

from collections.abc import Iterator

from moefabric.paper.tables import OUTSIDE, Paper, Row, Table
from moefabric.report.words import NOTHING


def lines(made: Paper) -> Iterator[str]:
    """Every table, row by row."""
    for name, each in made.scene.calibrations.items():
        yield (
            f"calibrated on the fat-tree column: {name} computes a layer in {each.job.layer_compute_s * 1e3:.0f} ms "
            f"({each.job.training.utilisation:.2f} of {each.job.training.gpu_flops / 1e12:.0f} Tflop/s), worst misfit {each.error * 100:.1f} %"
        )
    for table in made.tables:
        yield ""
        yield from _table(table)
    yield ""
    yield f"{made.within} of {len(made.judged)} rows are within their bands"


def _table(table: Table) -> Iterator[str]:
    yield f"{table.title} ({table.source})"
    yield f"  {'':<36}{'':<30}{'paper':>14}{'ours':>10}{'band':>16}"
    for row in table.rows:
        yield f"  {row.name:<36}{row.on:<30}{_range(row.paper):>14}{_said(row.ours):>10}{_range(row.band):>16}  {row.verdict}"
    if table.why and any(row.verdict == OUTSIDE for row in table.rows):
        yield f"  why: {table.why.strip()}"


def _range(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return NOTHING
    low, high = pair
    if low == high:
        return _said(low)
    return f"{_said(low)} or more" if high >= 100 else f"{_said(low)} to {_said(high)}"


def _said(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"


def said(row: Row) -> tuple[str, str, str]:
    """Paper's value, ours and the band, in words."""
    return _range(row.paper), _said(row.ours), _range(row.band)
