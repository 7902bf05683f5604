"""The paper's tables as lines for a terminal; the last one says how many rows are within their bands."""

from collections.abc import Iterator

from moefabric.paper.seen import Packets
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
    if made.packets:
        yield ""
        yield from _light(made.packets)
    yield ""
    yield last(made)


def last(made: Paper) -> str:
    """How many rows are within their bands; of packets, how far they were from the fluid model."""
    within = f"{made.within} of {len(made.judged)} rows are within their bands"
    if made.packets is None:
        return within
    seen = made.packets
    error = NOTHING if seen.median_error is None else f"{seen.median_error:.2%}"
    if seen.lost:
        within += f"; {len(seen.lost)} cells ended in a fault"
    told = f"{within}; completion error {error} in the median of {len(seen.errors)} all-to-alls"
    return f"{told}, {seen.disturbed} of {len(seen.cells)} cells were disturbed" if seen.disturbed else told


def _light(seen: Packets) -> Iterator[str]:
    for settle_ns, wait_s in seen.waits.items():
        yield f"light that settles in {settle_ns / 1e6:g} ms carries traffic {wait_s * 1e3:.2f} ms after the demand came in"


def _table(table: Table) -> Iterator[str]:
    measured = any(row.predicted is not None for row in table.rows)
    yield f"{table.title} ({table.source})"
    columns = (
        f"{'predicted':>11}{'emulated':>10}{'error':>9}{'band':>16}"
        if measured
        else f"{'ours':>10}{'band':>16}"
    )
    yield f"  {'':<36}{'':<30}{'paper':>14}{columns}"
    for row in table.rows:
        beside = f"{_said(row.predicted or 0.0):>11}" if measured else ""
        error = f"{said_error(row):>9}" if measured else ""
        yield (
            f"  {row.name:<36}{row.on:<30}{_range(row.paper):>14}{beside}{_said(row.ours):>10}{error}"
            f"{_range(row.band):>16}  {row.verdict}"
        )
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


def said_error(row: Row) -> str:
    """How far what was measured is from what was predicted: a part of that, or points where the row is in per cent."""
    if row.error is None or row.predicted is None:
        return NOTHING
    return f"{row.ours - row.predicted:+.1f} pt" if row.unit == "%" else f"{row.error:+.1%}"


def said(row: Row) -> tuple[str, str, str, str]:
    """Paper's value, what was predicted where ours was measured, ours and the band, in words."""
    beside = "" if row.predicted is None else _said(row.predicted)
    return _range(row.paper), beside, _said(row.ours), _range(row.band)
