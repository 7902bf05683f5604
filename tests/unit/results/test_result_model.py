"""Model of a run's JSON: schema, round trip, and errors with their places."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from moefabric.core.errors import SpecError
from moefabric.results.model import RunResult, read_run
from moefabric.ui.cli.schema import schema_text
from tests.support.paths import GOLDEN

jsonschema = pytest.importorskip("jsonschema")
SAMPLE = GOLDEN / "report" / "sample.json"


def unknown_fields(value: Any, place: str = "") -> list[str]:
    """Return the places of all fields that the model doesn't declare."""
    if isinstance(value, BaseModel):
        extra = [f"{place}.{name}" for name in value.model_extra or {}]
        known = type(value).model_fields
        return extra + [
            unknown
            for name in known
            for unknown in unknown_fields(getattr(value, name), f"{place}.{name}")
        ]
    items = value if isinstance(value, list) else ()
    return [unknown for item in items for unknown in unknown_fields(item, f"{place}[]")]


def test_sample_conforms_to_the_schema_and_has_no_unknown_fields() -> None:
    document = json.loads(SAMPLE.read_text())
    jsonschema.Draft202012Validator(json.loads(schema_text("run"))).validate(document)
    assert unknown_fields(RunResult.model_validate(document)) == []


def test_json_of_the_sample_survives_a_round_trip() -> None:
    document = json.loads(SAMPLE.read_text())
    assert read_run(SAMPLE).to_json() == document


def test_unknown_fields_are_kept() -> None:
    document = {
        "experiment": "e",
        "results": [{"fabric": "f", "fidelity": {"verdict": "pass"}, "later": [1]}],
    }
    assert RunResult.model_validate(document).to_json() == document


@pytest.mark.parametrize(
    "circuit", [pytest.param(["s0/o0", "s3/o2"], id="pair"), pytest.param("s0/o0~s3/o2", id="name")]
)
def test_circuits_are_pairs_or_names(circuit: object) -> None:
    run = RunResult.model_validate({"results": [{"circuits": [circuit]}]})
    assert run.results[0].circuits == [("s0/o0", "s3/o2")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("{", "Invalid JSON", id="no-json"),
        pytest.param("[]", "Input should be an object", id="no-object"),
        pytest.param(
            '{"results": [{}, {"collectives": [{"kind": "dispatch"}]}]}',
            "results[1].collectives[0].measured_s: Field required",
            id="missing",
        ),
        pytest.param(
            '{"results": [{"integrity": {"corrupt": "many"}}]}',
            "results[0].integrity.corrupt: Input should be a valid integer",
            id="text-for-number",
        ),
        pytest.param(
            '{"results": [{"wiring": {"regions": "many"}}]}',
            "results[0].wiring.regions: Input should be an object",
            id="text-for-object",
        ),
        pytest.param(
            '{"results": [{"timeline": [{"server": "s0", "start_s": 1, "end_s": null}]}]}',
            "results[0].timeline[0].end_s: Input should be a valid number",
            id="null-for-number",
        ),
        pytest.param(
            '{"results": [{"wiring": {"eps": {"oversubscription": "much"}}}]}',
            "results[0].wiring.eps.oversubscription: Input should be a valid number",
            id="nested",
        ),
    ],
)
def test_read_run_reports_the_first_error_with_its_place_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        read_run(file)
    assert str(error.value).startswith(f"{file}: {message}")
    assert "\n" not in str(error.value)


def test_read_run_reports_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"run\.json: No such file or directory"):
        read_run(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("release", "is_later"), [("", False), ("0.0.9", False), ("99", True), (99, True)]
)
def test_read_run_warns_of_a_later_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, release: str | int, is_later: bool
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(json.loads(SAMPLE.read_text()) | {"version": release}))
    read_run(file)
    warnings = [record.getMessage() for record in caplog.records]
    assert bool(warnings) is is_later
    assert all(text.startswith(f"{file} was written by moefabric 99, later") for text in warnings)
