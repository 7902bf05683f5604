"""Studies of other systems: claims in a file, measures by a plug-in, verdicts and pages."""

import json
import os
import signal
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest
from click.testing import CliRunner
from moefabric_studies.systems.page import COLUMNS, claim_cells, page_text
from moefabric_studies.systems.study import (
    Change,
    ClaimSpec,
    JudgedClaim,
    Measure,
    Method,
    Outcome,
    RunVerdict,
    StudyContext,
    StudyResult,
    StudySpec,
    load_study,
    median_interval,
    run_study,
)

from moefabric.config.section import Section
from moefabric.core.errors import SpecError
from moefabric.results.model import RunResult, Verdict
from moefabric.results.progress import PlainProgressReporter
from moefabric.ui.cli.main import main
from tests.support.paths import EXAMPLES, REPOSITORY

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
        "moefabric_studies.systems.study.plugins.load_named_by_file",
        lambda _group, _name, _protocol: __import__("halving").Halves(),
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "halves.yaml"
    path.write_text(STUDY)
    return path


def spec(
    *band: float | None, method: Method = "emulated", null: float = 1.0, exact: bool = False
) -> ClaimSpec:
    return ClaimSpec(
        id="X1", claim="c", band=list(band), null_value=null, measure="m", method=method,
        exact=exact,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "band", "verdict"),
    [
        (2.0, (1.5, 3.0), "held"),
        (1.0, (0.5, 3.0), "null fits too"),
        (4.0, (0.5, 3.0), "missed"),
        (None, (0.5, 3.0), "invalid"),
    ],
)
def test_verdict_compares_value_and_null_model_with_the_band(
    value: float | None, band: tuple[float, float], verdict: str
) -> None:
    measure = Measure(value, () if value is None else (value,) * 3)
    assert JudgedClaim(spec(*band), measure).verdict == verdict


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        pytest.param([2.0], "not enough samples", id="one-ratio"),
        pytest.param([2.0, 2.1], "not enough samples", id="two"),
        pytest.param([1.9, 2.0, 2.1], "held", id="three-inside"),
        pytest.param([1.0, 2.0, 2.1], "too much spread", id="one-of-three-outside"),
        pytest.param([1.0, *[2.0] * 8], "held", id="one-of-nine-outside"),
        pytest.param([1.0, 1.1, *[2.0] * 7], "too much spread", id="two-of-nine-outside"),
        pytest.param([9.0] * 3, "missed", id="all-outside"),
        pytest.param([9.0], "missed", id="one-outside"),
    ],
)
def test_claim_holds_with_enough_samples_around_a_median_that_is_surely_inside(
    samples: list[float], verdict: str
) -> None:
    assert JudgedClaim(spec(1.5, 3.0), Measure.median_of(samples)).verdict == verdict
    assert JudgedClaim(spec(1.5, 3.0, exact=True), Measure.median_of(samples)).verdict in {
        "held",
        "missed",
    }
    simulated = spec(1.5, 3.0, method="simulated")
    assert JudgedClaim(simulated, Measure.median_of(samples)).verdict in {"held", "missed"}


@pytest.mark.parametrize(
    ("value", "samples", "verdict"),
    [
        pytest.param(1.165, [1.192, 1.001, 0.948], "too much spread", id="pooled-median-outside"),
        pytest.param(1.165, [1.192, 1.15, 0.948], "too much spread", id="pooled-one-outside"),
        pytest.param(1.165, [1.192, 1.15, 1.03], "held", id="pooled-inside"),
        pytest.param(1.192, [1.192, 1.001, 0.948], "held", id="largest"),
    ],
)
def test_claim_of_a_pooled_value_is_judged_by_its_samples_unless_it_is_their_bound(
    value: float, samples: list[float], verdict: str
) -> None:
    measure = Measure(value, tuple(samples))
    assert JudgedClaim(spec(1.02, None), measure).verdict == verdict


def test_interval_of_the_median_covers_it_in_95_of_100_cases() -> None:
    """Ranks of the sign test (Conover, Practical Nonparametric Statistics, table A3)."""
    intervals = {n: median_interval(range(1, n + 1)) for n in (1, 5, 6, 8, 9, 20, 27)}
    assert intervals == {
        1: (1, 1), 5: (1, 5), 6: (1, 6), 8: (1, 8), 9: (2, 8), 20: (6, 15), 27: (8, 20)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "shown", "value"),
    [
        (["pass", "pass"], "held", 2.0),
        (["pass", "degraded"], "held (degraded)", 2.0),
        (["invalid", "degraded"], "invalid", None),
        ([], "held", 2.0),
    ],
)
def test_claim_carries_the_worst_verdict_of_its_runs(
    verdicts: list[str], shown: str, value: float | None
) -> None:
    runs = [RunVerdict(f"run/{n}", Verdict(verdict)) for n, verdict in enumerate(verdicts)]
    claim = JudgedClaim(spec(1.5, 3.0), Measure.median_of([2.0] * 3), runs)
    assert (claim.verdict_text, claim.value) == (shown, value)
    cells = dict(zip(COLUMNS, claim_cells(claim), strict=True))
    assert cells["verdict"] == shown
    assert cells["measured"].startswith("2" if value else "—")
    assert claim.to_json()["value"] == value


def result_of(verdicts: dict[str, str], *measures: Measure) -> StudyResult:
    """Return a study of claims X1, X2, ... whose run has fabrics with these verdicts."""
    claims = [
        spec(1.5, 3.0).model_copy(update={"id": f"X{n}", "measure": f"m{n}"})
        for n, _ in enumerate(measures, 1)
    ]
    fabrics = [
        {"fabric": name, "fidelity": {"verdict": verdict, "reasons": ["2 transfers were lost"]}}
        for name, verdict in verdicts.items()
    ]
    run = RunResult.model_validate({"experiment": "run", "results": fabrics})
    whole = StudySpec(
        system="x", title="X", paper="p", sources="s", mechanism="m", method="m", claims=claims
    )
    values = {f"m{n}": measure for n, measure in enumerate(measures, 1)}
    return StudyResult.of(whole, Outcome(values, runs=[run]), 1.0)


def test_claim_rests_on_the_fabrics_that_its_measure_names_or_on_all() -> None:
    own = (2.0, 2.0, 2.0)
    measures = (
        Measure(2.0, own, runs=("run/a",)),
        Measure(2.0, own, runs=("run",)),
        Measure(2.0, own),
    )
    result = result_of({"a": "pass", "b": "invalid"}, *measures)
    assert [claim.verdict for claim in result.claims] == ["held", "invalid", "invalid"]
    assert result.is_invalid
    page = page_text(result, Path("x.yaml"))
    assert "| X2 | c | — | 1.5 to 3 | 1 | — | emulated | invalid |" in page
    assert "one that rests on an `invalid` fabric has no value" in " ".join(page.split())
    assert "| run/b | invalid | 2 transfers were lost |" in page


def test_page_lists_changes_after_the_first_measurement() -> None:
    result = result_of({"a": "degraded"}, Measure(2.0, (2.0,) * 3))
    change = Change(claim="X1", first="1.2x", verdict="missed", change="longer transfers", now="2x")
    changed = result.spec.model_copy(update={"changes": [change]})
    page = page_text(replace(result, spec=changed), Path("x.yaml"))
    assert "| X1 | 1.2x | missed | longer transfers | 2x | 2: held |" in page
    assert "1 held" in page
    assert "| held (degraded) |" in page
    wrong = change.model_copy(update={"claim": "X9"})
    faults = list(changed.model_copy(update={"changes": [wrong]}).errors())
    assert faults == [("changes[0].claim", "there is no claim X9")]


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


def test_relative_path_of_a_study_gives_an_absolute_folder(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves, folders = import_module("halving").Halves, list[Path]()
    measure = halves.measure

    def recorded(self: object, setup: Section, context: StudyContext) -> Outcome:
        folders.append(context.folder)
        outcome: Outcome = measure(self, setup, context)
        return outcome

    monkeypatch.setattr(halves, "measure", recorded)
    run_study(Path(study.name), PlainProgressReporter())
    assert folders == [study.parent]


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


def test_store_keeps_claims_with_samples_verdicts_and_origin(study: Path) -> None:
    words = ["system", str(study), "--json", "out.json", "--store", "stored"]
    assert CliRunner().invoke(main, words).exit_code == 0
    text = Path("stored/systems/halves.json").read_text()
    stored = json.loads(text)
    assert stored["claims"][0] == {
        "id": "H1", "value": 2.0, "samples": [1.9, 2.0, 2.1], "verdict": "held"
    }  # fmt: skip
    assert [claim["verdict"] for claim in stored["claims"]] == ["held", "missed", "not tested"]
    source = stored["manifest"]["provenance"]
    assert source["command"] == "moefabric system halves.yaml"
    assert [*source["inputs"]] == ["halves.yaml"]
    assert stored["grids"][0]["rows"] == [["4", "2.0"]]
    assert sum(line.startswith('{"') for line in text.splitlines()) == 5


class Parts:
    """A study of four parts, which is killed in the third one, once."""

    setup = Section

    def measure(self, setup: Section, context: StudyContext) -> Outcome:
        parts = [context.keep(f"part {n}", Measure, partial(self._part, n)) for n in range(4)]
        return Outcome({"ratio": parts[0]})

    def _part(self, number: int) -> Measure:
        with Path("measured").open("a") as file:
            file.write(f"{number}\n")
        if number == 2 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Measure.median_of([1.9, 2.0, 2.1])


def test_killed_study_goes_on_with_the_part_under_way(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "moefabric_studies.systems.study.plugins.load_named_by_file", lambda *_: Parts()
    )
    words = ["system", str(study), "--json", "out.json"]
    child = get_context("fork").Process(target=CliRunner().invoke, args=(main, words))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    other = CliRunner().invoke(main, [*words, "--resume", "--set", "title=Other"])
    assert "is of another run (settings differ): leave out --resume" in other.output
    last = CliRunner().invoke(main, [*words, "--resume"])
    assert last.exit_code == 0, last.output
    assert Path("measured").read_text().split() == ["0", "1", "2", "2", "3"]
    [system] = json.loads(Path("out.json").read_text())["systems"]
    assert system["claims"][0]["samples"] == [1.9, 2.0, 2.1]
    assert not list(Path().glob("out.json.*"))


def test_page_is_drawn_again_from_the_stored_result(study: Path) -> None:
    words = ["system", str(study), "--json", "out.json", "--store", "stored", "--pages", "pages"]
    assert CliRunner().invoke(main, words).exit_code == 0
    stored = Path("stored/systems/halves.json")
    shown = Path("pages/halves.md").read_text()
    assert page_text(StudyResult.read(study, Path("stored")), study) == shown.replace(
        f"system {study.name}", f"system {study}"
    )
    assert "| 4 | 2.0 |" in shown
    stored.write_text(stored.read_text().replace('"H3"', '"H4"'))
    with pytest.raises(SpecError, match="lacks H3: run moefabric system"):
        StudyResult.read(study, Path("stored"))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("systems/*.yaml")), ids=lambda f: f.stem)
def test_stored_verdicts_are_those_of_the_present_rules(file: Path) -> None:
    """The page is judged by its samples; so is what others read of the stored result."""
    stored = json.loads((REPOSITORY / f"docs/results/systems/{file.stem}.json").read_text())
    given = {claim["id"]: claim["verdict"] for claim in stored["claims"]}
    claims = StudyResult.read(file, REPOSITORY / "docs/results").claims
    assert given == {claim.spec.id: claim.verdict for claim in claims}


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


def test_study_of_another_module_needs_plugins_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "foreign_study.py"
    module.write_text("from pathlib import Path\nPath('imported').touch()\n")
    (tmp_path / "halves.yaml").write_text(STUDY.replace("halves\n", "foreign_study:Halves\n", 1))
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(main, ["system", "halves.yaml"])
    assert "no installed package has the module foreign_study" in refused.output
    assert not Path("imported").exists()
    CliRunner().invoke(main, ["system", "halves.yaml", "--plugins", "any"])
    assert Path("imported").exists()
