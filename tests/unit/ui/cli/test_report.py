"""`moefabric report`: a run's JSON as tables or page, and errors in one line."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric.ui.cli.main import main
from tests.support.paths import GOLDEN

SAMPLE = str(GOLDEN / "report" / "sample.json")


def test_report_prints_tables() -> None:
    result = CliRunner().invoke(main, ["report", SAMPLE], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert result.output.startswith("prototype  pass\n")


def test_report_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(main, ["report", SAMPLE, "--html", str(page)])
    assert (result.exit_code, result.output) == (0, "")
    assert "<title>prototype: pass</title>" in page.read_text()


A_RESULT = "`moefabric run --json` writes a result"


@pytest.mark.parametrize("line", ['{"run": "553d", "fabric": "eps"}', '{"type": "row"}'])
def test_report_of_a_table_names_what_it_is_not(tmp_path: Path, line: str) -> None:
    table = tmp_path / "table.jsonl"
    table.write_text(f"{line}\n")
    result = CliRunner().invoke(main, ["report", str(table)])
    fault = "is no journal of a run, which `moefabric run --json` writes"
    assert result.output.splitlines() == [f"moefabric: {table}: {fault}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"results": [{"iterations": 3}]}',
            "results[0].iterations: Input should be a valid array",
        ),
        ("{}", "is no result: it has no fabric; `run --json` writes one"),
        ("[]", f"Input should be an object; {A_RESULT}"),
        ("no JSON", f"Invalid JSON: expected ident at line 1 column 2; {A_RESULT}"),
        ("", "is empty; the result of a run is needed"),
    ],
)
def test_report_names_the_place_of_an_error_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    result = CliRunner().invoke(main, ["report", str(file)])
    assert result.exit_code == 1
    assert result.output.splitlines() == [f"moefabric: {file}: {message}"]
