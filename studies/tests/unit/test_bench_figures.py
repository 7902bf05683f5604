"""Figures of benches: their table, and blocks of pages that show them."""

from pathlib import Path

import pytest
from moefabric_studies.bench_figures import Figure, figures_text, read_figures
from moefabric_studies.result_blocks import StoredResults, filled

from moefabric.core.errors import SpecError

ORIGIN = "* [benchmarks](results/benchmarks.csv): commit c0ffee00, 2026-12-01, 2 cores, Linux 6."
TABLE = "<!-- benches: bench_a -->\nold\n<!-- /benches -->\n"


def row(figure: str, value: str = "1.5", test: str = "test_a", **others: str) -> Figure:
    """Return a figure of 3 samples."""
    known = {"least": "1", "greatest": "2", "n": "3", "unit": "ms", "bound": "<= 10"} | others
    origin = {"commit": "c0ffee00", "modified": "", "date": "2026-12-01"}
    return Figure(
        bench="bench_a",
        test=test,
        figure=figure,
        value=value,
        machine="2 cores, Linux 6",
        **known,
        **origin,
    )


def page_of(folder: Path, text: str, *rows: Figure) -> str:
    """Return a page that is filled from a table with these rows."""
    results = folder / "results"
    results.mkdir()
    (results / "benchmarks.csv").write_text(figures_text(rows))
    return filled(text, folder / "page.md", StoredResults(results))


def test_table_keeps_rows_sorted_by_bench_and_number_of_test(tmp_path: Path) -> None:
    rows = [row("c", test="test_a[16]"), row("b", test="test_a[8]"), row("a", test="test_a[8]")]
    file = tmp_path / "table.csv"
    file.write_text(figures_text(rows))
    assert read_figures(file) == [rows[1], rows[2], rows[0]]
    assert read_figures(tmp_path / "none.csv") == []


def test_two_figures_of_one_name_are_an_error() -> None:
    with pytest.raises(SpecError, match="bench_a: a: two tests have this figure"):
        figures_text([row("a"), row("a", test="test_b")])


def test_page_has_figures_that_are_alike_up_to_a_colon_on_one_line(tmp_path: Path) -> None:
    rows = row("change: of one", "1.5"), row("change: of many", "2.5"), row("memory", "1234", n="1")
    text = page_of(tmp_path, TABLE, *rows)
    assert text.splitlines()[1:-1] == [
        "| figure | bound | measured | least to greatest | n | bench |",
        "|---|---|---|---|---|---|",
        "| change: of one; of many | 10 ms | 1.50; 2.50 ms | 1 to 2; 1 to 2 | 3 | `bench_a` |",
        "| memory | 10 ms | 1,234 ms |  | 1 | `bench_a` |",
        "",
        ORIGIN,
        "",
    ]


def test_sentence_has_values_ranges_and_bounds(tmp_path: Path) -> None:
    rows = (
        *(row("a", "1.5"), row("b: one", "-0.25")),
        row("ratio", "0.5", unit="", bound=">= 0.4", n="1", least="", greatest=""),
    )
    shown = {
        "a": "1.50 ms",
        "a; b: one": "1.50; -0.250 ms",
        "a; a": "1.50; 1.50 ms",
        "ratio; a": "0.500; 1.50 ms",
        "range of a": "1 to 2 ms",
        "bound of a; b: one": "10 ms",
        "bound of ratio": "0.4 or more",
    }
    text = "\n".join(f"<!-- bench: bench_a {one} -->?<!-- /bench -->" for one in shown)
    filled_text = page_of(tmp_path, text, *rows)
    assert [line.split("-->")[1] for line in filled_text.splitlines()] == [
        f"{one}<!-- /bench " for one in shown.values()
    ]


def test_figure_of_a_failed_test_has_no_value(tmp_path: Path) -> None:
    failed = row("a").of_failed_test()
    text = page_of(tmp_path, TABLE, failed, row("b"))
    assert "| a | 10 ms | failed |  |  | `bench_a` |" in text
    (tmp_path / "other").mkdir()
    with pytest.raises(SpecError, match="bench_a: a: the test of this figure failed"):
        page_of(tmp_path / "other", "<!-- bench: bench_a a --><!-- /bench -->", failed)


def test_table_names_benches_without_rows(tmp_path: Path) -> None:
    text = page_of(tmp_path, TABLE.replace("bench_a", "bench_a, bench_b"), row("a"))
    assert "\n* Not measured yet: `bench_b`.\n" in text


def test_origins_that_differ_name_their_benches(tmp_path: Path) -> None:
    other = row("b")._replace(bench="bench_b", modified="yes")
    text = page_of(tmp_path, TABLE.replace("bench_a", "bench_a, bench_b"), row("a"), other)
    assert ORIGIN.replace("]", "]", 1).replace("csv):", "csv) (`bench_a`):") in text
    assert "(`bench_b`): commit c0ffee00 with changes, 2026-12-01" in text


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("<!-- bench: bench_a b --><!-- /bench -->", "bench_a: b is not in benchmarks.csv"),
        ("<!-- bench: bench_a a -->1 ms", "wrong head, or no end"),
        ("<!-- benches: bench_a a -->\n<!-- /benches -->", "wrong head, or no end"),
    ],
)
def test_block_that_shows_what_nobody_measured_is_an_error(
    tmp_path: Path, block: str, fault: str
) -> None:
    with pytest.raises(SpecError, match=fault):
        page_of(tmp_path, block, row("a"))
