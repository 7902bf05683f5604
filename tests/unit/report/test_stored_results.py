"""Stored results: small, without names of machines, and read as any run's JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from moefabric.api.result import Result
from moefabric.core.errors import SpecError
from moefabric.report.run_tables import comparison
from moefabric.report.stored_results import LIMIT_BYTES, stored_text
from moefabric.report.summary import COLUMNS, summaries
from moefabric.results.model import RunResult, read_run
from tests.support.paths import REPOSITORY

SAMPLE = REPOSITORY / "tests/golden/report/sample.json"
SOURCE = {"commit": "c0ffee", "command": "moefabric run a.yaml", "cpu": "Fast CPU"}
LONG = "median error of flow times is over 2% (worst: s0 to s1 by e2, r0: forward combine)"


def sample(**manifest: Any) -> dict[str, Any]:
    """Return the sample run with provenance and further entries of the manifest."""
    document: dict[str, Any] = json.loads(SAMPLE.read_text())
    document["manifest"] |= {"provenance": SOURCE, **manifest}
    return document


def stored(document: dict[str, Any]) -> str:
    return stored_text(RunResult.model_validate(document))


def test_stored_result_has_the_figures_of_the_run(tmp_path: Path) -> None:
    whole, file = RunResult.model_validate(sample()), tmp_path / "stored.json"
    Result.of(whole).store(file)
    again = read_run(file)
    for before, after in zip(summaries(whole), summaries(again), strict=True):
        assert {name: after.text(name) for name in COLUMNS} == {
            name: before.text(name) for name in COLUMNS
        }
        assert after.change_count == before.change_count
        assert (after.verdict, after.reasons) == (before.verdict, before.reasons)
        assert after.is_baseline == before.is_baseline
    assert len(comparison(summaries(again)).rows) == len(whole.results)
    assert again.manifest.provenance == whole.manifest.provenance
    assert stored_text(again) == file.read_text()


def test_stored_result_has_a_line_for_each_fabric_sorted_keys_and_six_digits() -> None:
    document = sample()
    document["results"][0]["iterations"][0]["measured_s"] = 1.23456789
    text = stored(document)
    lines = text.splitlines()
    assert sum(line.startswith('{"') for line in lines) == len(document["results"])
    for line in lines:
        if line.startswith('{"'):
            entry = json.loads(line.rstrip(","))
            assert list(entry) == sorted(entry)
    assert "1.23457" in text
    assert "1.234567" not in text
    assert not any(f'"{rows}":' in text for rows in ("collectives", "timeline", "flows"))


def test_stored_result_of_many_fabrics_is_bounded_and_keeps_every_verdict() -> None:
    document = sample()
    fabric = document["results"][1]
    fabric["fidelity"] = {"verdict": "invalid", "reasons": [f"{LONG} {n}" for n in range(12)]}
    document["results"] = [{**fabric, "fabric": f"mixnet-{n}"} for n in range(27)]
    text = stored(document)
    assert len(text.encode()) <= LIMIT_BYTES
    for result in RunResult.model_validate_json(text).results:
        assert result.fidelity.verdict == "invalid"
        assert result.fidelity.reasons[0].startswith(LONG[:60])
        assert result.fidelity.reasons[-1].endswith(("...", "more reasons"))
        assert result.figures["iteration_s"]
    short = {**fabric, "collectives": fabric["collectives"][:1], "timeline": [], "transfers": []}
    document["results"] = [{**short, "fabric": f"mixnet-{n}"} for n in range(200)]
    with pytest.raises(SpecError, match="200 fabrics don't fit"):
        stored(document)


def test_stored_result_names_no_machine_and_no_folder() -> None:
    record = {"fabric": "eps", "server": "s0", "host": "gpu1.lab", "address": "192.0.2.1"}
    document = sample(host="lab7", hosts=[record])
    reasons = ["gpu1.lab (192.0.2.1) was lost; see /home/ada/runs/log.txt and s0/o0 to s1/o0"]
    document["results"][0]["fidelity"] = {"verdict": "degraded", "reasons": reasons}
    text = stored(document)
    assert not any(name in text for name in ("lab7", "gpu1", "192.0.2.1", "/home", "ada"))
    assert "s0 (s0) was lost; see log.txt and s0/o0 to s1/o0" in text


def test_run_without_provenance_or_that_was_stopped_is_refused() -> None:
    document = sample()
    with pytest.raises(SpecError, match="eps has 2 of 3 iterations"):
        stored({**document, "incomplete": "eps has 2 of 3 iterations"})
    del document["manifest"]["provenance"]
    with pytest.raises(SpecError, match="no provenance"):
        stored(document)


@pytest.mark.parametrize(
    "file", sorted(REPOSITORY.glob("docs/results/*.json")), ids=lambda f: f.stem
)
def test_stored_result_has_a_page_that_begins_with_its_result(file: Path) -> None:
    html = Result.load(file).page()
    assert '<p class="outcome">' in html
    assert html.index("outcome") < html.index("Comparison of the fabrics")
    assert "<h2>Glossary</h2>" in html
