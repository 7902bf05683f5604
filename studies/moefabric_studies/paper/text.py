"""Tables of the paper as text, and the lines that count their rows."""

from collections.abc import Iterator

from moefabric import rate_text
from moefabric.api.charts import MISSING
from moefabric_studies.grids import Grid
from moefabric_studies.paper.measurements import Measurements
from moefabric_studies.paper.results import PaperResults
from moefabric_studies.paper.rows import OUTSIDE, Bounds, Counts, PaperRow, PaperTable


def text_lines(results: PaperResults) -> Iterator[str]:
    """Yield every table, row by row, the experiments, the aims, and the counts."""
    for table in results.tables:
        yield from _table_lines(table)
        if table.counts.rows:
            yield f"  {counts_line(table.counts)}"
        yield ""
    for grid in results.grids:
        yield from _grid_lines(grid)
        yield ""
    if results.aims.rows:
        yield from _table_lines(results.aims)
        yield ""
    if results.measurements:
        yield from wait_lines(results.measurements)
        yield from cell_lines(results.measurements)
        yield ""
    yield from summary_lines(results)


def summary_lines(results: PaperResults) -> Iterator[str]:
    """Yield the counts of the paper's rows, those of the aims, and the state of measurements."""
    measurements = results.measurements
    if results.counts.rows or measurements is None:
        yield f"the paper's rows: {counts_line(results.counts)}"
    if results.aims.rows:
        yield f"aims of this project: {results.aims_met} of {len(results.aims.rows)} are met"
    if measurements is None:
        return
    cells = len(measurements.cells)
    if cells:
        yield f"packets: {error_line(measurements)}"
    if measurements.invalid:
        yield (
            f"{measurements.invalid} of {cells} cells are invalid; {results.invalid_rows} rows "
            "that need them have no value"
        )
    if measurements.lost:
        yield f"{len(measurements.lost)} cells ended in an error"
    if measurements.disturbed:
        yield f"{measurements.disturbed} of {cells} cells were disturbed by other programs"


def counts_line(counts: Counts) -> str:
    """Return the score of judged rows in words: distances to the paper, then counts."""
    distance, null_distance = distances_text(counts)
    return (
        f"the median distance to the paper is {distance}, the null model's {null_distance}; "
        f"{counts.reproduced} of {counts.rows} rows are reproduced; {counts.inside} are inside "
        f"their bands, the null model in {counts.null_inside}"
    )


def distances_text(counts: Counts) -> tuple[str, str]:
    """Return the median distance to the paper, and the null model's."""
    distances = (counts.distance, counts.null_distance)
    own, null = (MISSING if one is None else f"{one:.1f} %" for one in distances)
    return own, null


def verdict_text(row: PaperRow) -> str:
    """Return the verdict of a row, and how far from the paper it is if that is outside."""
    if row.verdict != OUTSIDE or row.distance is None:
        return row.verdict
    given = [bound for bound in row.paper or () if bound is not None]
    return f"{row.verdict}, {row.distance:+.1f} {'%' if any(given) else 'points'}"


def error_line(measurements: Measurements) -> str:
    """Return the distribution of the completion errors in words."""
    quantiles = (measurements.error_quantile(percent) for percent in (5, 50, 95))
    p5, p50, p95 = (MISSING if value is None else f"{value:+.2%}" for value in quantiles)
    return (
        f"completion error p50 {p50}, p5 {p5}, p95 {p95} of {len(measurements.errors)} all-to-alls"
    )


def wait_lines(measurements: Measurements) -> Iterator[str]:
    """Yield the distribution of reconfiguration times, by the settle time of the OCS."""
    for settle_ns, wait in measurements.waits.items():
        yield (
            f"circuits that settle in {settle_ns / 1e6:g} ms carry traffic after p50 "
            f"{wait.p50_s * 1e3:.2f} ms, p95 {wait.p95_s * 1e3:.2f} ms (n = {len(wait.seconds)})"
        )


def cell_lines(measurements: Measurements) -> Iterator[str]:
    """Yield the verdict of each measured cell, with the first reason for it if there is one."""
    verdicts = {
        **{cell: (one.verdict, *one.reasons[:1]) for cell, one in measurements.cells.items()},
        **{cell: ("lost", error) for cell, error in measurements.lost.items()},
    }
    for cell, verdict in verdicts.items():
        yield f"{cell.job} on {cell.network} at {rate_text(cell.rate_bps)}: {': '.join(verdict)}"


def _table_lines(table: PaperTable) -> Iterator[str]:
    is_emulated = any(row.predicted is not None for row in table.rows)
    yield f"{table.title} ({table.source})"
    if table.null_model:
        yield f"  null model: {table.null_model}"
    emulated = f"{'emulated':>10}{'error':>9}" if is_emulated else ""
    heads = f"{'paper':>16}{'predicted':>11}{emulated}{'band':>18}{'null':>9}"
    yield f"  {'':<42}{'':<30}{heads}  verdict"
    for row in table.rows:
        paper, predicted, value, band, null = row_cells(row)
        values = (
            f"{predicted:>11}{value:>10}{error_text(row):>9}" if is_emulated else f"{value:>11}"
        )
        yield (
            f"  {row.name:<42}{row.subject:<30}{paper:>16}{values}{band:>18}{null:>9}  "
            f"{verdict_text(row)}"
        )
    if table.why and any(row.verdict == OUTSIDE for row in table.rows):
        yield f"  why: {table.why.strip()}"


def _grid_lines(grid: Grid) -> Iterator[str]:
    yield f"{grid.title} ({grid.source})"
    columns = list(zip(grid.header, *grid.rows, strict=True))
    widths = [max(map(len, column)) + 2 for column in columns]
    for cells in (grid.header, *grid.rows):
        first, *others = (
            f"{cell:<{width}}" if position == 0 else f"{cell:>{width}}"
            for position, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        yield f"  {first}{''.join(others)}"
    yield f"  {grid.note}"


def row_cells(row: PaperRow) -> tuple[str, str, str, str, str]:
    """Return the paper's value, the prediction of an emulated value, the value, band and null."""
    predicted = "" if row.predicted is None else number_text(row.predicted)
    value, null = (
        MISSING if figure is None else number_text(figure) for figure in (row.value, row.null)
    )
    return bounds_text(row.paper), predicted, value, bounds_text(row.band), null


def error_text(row: PaperRow) -> str:
    """Return the deviation from the predicted value, in points for rows in per cent."""
    if row.error is None or row.predicted is None or row.value is None:
        return MISSING
    return f"{row.value - row.predicted:+.1f} pt" if row.unit == "%" else f"{row.error:+.1%}"


def bounds_text(bounds: Bounds | None) -> str:
    """Return a value, a range, or a bound in words."""
    match bounds:
        case None | (None, None):
            return MISSING
        case (None, high) if high is not None:
            return f"at most {number_text(high)}"
        case (low, None) if low is not None:
            return f"over {number_text(low)}"
        case (low, high) if low is not None and high is not None:
            return number_text(low) if low == high else f"{number_text(low)}..{number_text(high)}"
    return MISSING


def number_text(value: float) -> str:
    """Return a number with three or four digits."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
