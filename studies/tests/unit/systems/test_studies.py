"""Studies of other systems: claims in a file, measures by a plug-in, verdicts and pages."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from moefabric_studies.systems.page import page_text
from moefabric_studies.systems.study import ClaimSpec, JudgedClaim, Measure, load_study, run_study

from moefabric.core.errors import SpecError
from moefabric.results.progress import PlainProgressReporter
from moefabric.ui.cli.main import main

MODULE = """
from moefabric.config.section import Section
from moefabric_studies.grids import Grid
from moefabric_studies.systems.study import Measure
from moefabric_studies.systems.study import Outcome

class Setup(Section):
    servers: int = 4

class Halves:
    setup = Setup
    def measure(self, setup, context):
        times = [1.9, 2.0, 2.1 * setup.servers / 4]
        return Outcome(
            {"ratio": Measure.median_of(times), "lost": Measure.median_of([])},
            {"halves": "<svg/>"},
            {"halves": "Times of both."},
            [Grid("sizes", "Sizes", "", ("size", "time"), (("4", "2.0"),), "None is larger.")],
        )
"""
STUDY = """
system: halves
title: Halves
paper: A paper
sources: The whole text.
mechanism: It halves.
method: It is timed.
claims:
  - id: H1
    claim: twice as fast
    published: 2x, table 1
    band: [1.8, 2.2]
    null_value: 1
    measure: ratio
    unit: x
    method: executed
  - {id: H2, claim: thrice as fast, band: [2.5, null], measure: ratio, unit: x, method: executed}
  - {id: H3, claim: quality, method: untested, why: It needs GPUs.}
objections:
  - {objection: Too small., answer: It scales.}
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study's file, whose code is a module beside it."""
    (tmp_path / "halving.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "moefabric_studies.systems.study.plugins.load_plugin",
        lambda _group, _name, _protocol: __import__("halving").Halves(),
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "halves.yaml"
    path.write_text(STUDY)
    return path


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(2.0, "held"), (1.0, "null fits too"), (4.0, "missed"), (None, "invalid")],
)
def test_verdict_compares_value_and_null_model_with_the_band(
    value: float | None, verdict: str
) -> None:
    spec = ClaimSpec(
        id="X1", claim="c", band=[0.5, 3.0], null_value=1.0, measure="m", method="emulated"
    )
    if value == 2.0:
        spec = spec.model_copy(update={"band": [1.5, 3.0]})
    assert JudgedClaim(spec, Measure(value)).verdict == verdict


def test_claims_are_judged_and_shown_on_a_page(study: Path) -> None:
    result = run_study(study, PlainProgressReporter())
    assert [claim.verdict for claim in result.claims] == ["held", "missed", "not tested"]
    assert not result.is_invalid
    page = page_text(result, Path("halves.yaml"))
    row = "| H1 | twice as fast | 2x, table 1 | 1.8 to 2.2x | 1x | 2x (1.9x to 2.1x, n = 3) |"
    assert row in page
    assert "1 held, 1 missed, 1 not tested" in page
    assert "![Times of both.](halves.svg)" in page
    assert "* **Too small.** It scales." in page


def test_command_prints_claims_and_writes_json_and_pages(study: Path) -> None:
    words = ["system", str(study), "--json", "out.json", "--pages", "pages"]
    output = CliRunner().invoke(main, words)
    assert output.exit_code == 0, output.output
    assert "held" in output.output
    assert max(map(len, output.output.splitlines())) <= 80
    assert "halves: 1 held, 1 missed, 1 not tested" in output.output
    [system] = json.loads(Path("out.json").read_text())["systems"]
    assert [claim["verdict"] for claim in system["claims"]] == ["held", "missed", "not tested"]
    assert Path("pages/halves.svg").read_text() == "<svg/>"
    assert "Halves" in Path("pages/halves.md").read_text()


def test_claim_without_a_value_makes_the_study_invalid(study: Path) -> None:
    study.write_text(STUDY.replace("measure: ratio", "measure: lost", 1))
    output = CliRunner().invoke(main, ["system", str(study), "--json", "-"])
    assert output.exit_code == 3, output.output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: H2", "id: H1", r"claims\[1\].id: H1 is taken"),
        ("    measure: ratio\n", "", r"claims\[0\].measure: a claim has a measure unless it is"),
        ("title: Halves\n", "title: Halves\nsetup: {servers: many}\n", r"setup.servers: "),
    ],
)
def test_faults_of_a_study_name_their_place(study: Path, old: str, new: str, message: str) -> None:
    study.write_text(STUDY.replace(old, new))
    with pytest.raises(SpecError, match=message):
        load_study(study)
