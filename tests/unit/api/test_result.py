"""Results: figures, frames, pages and pictures of the sample run."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from moefabric.api.result import FRAMES, Result
from moefabric.core.errors import SpecError, UnsupportedError
from moefabric.report.summary import summaries
from moefabric.results.model import RunResult, read_run
from moefabric.results.parts import FlowResult
from tests.support.paths import GOLDEN

SAMPLE = GOLDEN / "report" / "sample.json"


@pytest.fixture(scope="module")
def result() -> Result:
    return Result.load(SAMPLE)


def test_result_is_the_run_with_methods(result: Result, tmp_path: Path) -> None:
    run = read_run(SAMPLE)
    assert isinstance(result, RunResult)
    assert result.to_json() == run.to_json()
    short = "Result('prototype': eps pass, mixnet pass, mixnet-spill pass, static pass)"
    assert str(result) == repr(result) == short
    result.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(SAMPLE.read_text())
    assert result["mixnet"] == run.results[1]
    with pytest.raises(SpecError, match="'other' is not one of the fabrics eps, mixnet"):
        result["other"]


def test_names_of_a_result_are_those_of_the_project(result: Result) -> None:
    names = [name for name in dir(result) if not name.startswith("_")]
    assert {"results", "experiment", "save", "to_frame", "plot_timeline", "to_json"} <= {*names}
    assert not {"construct", "parse_file", "from_orm", "model_dump", "copy"} & {*names}
    assert not {"construct", "model_dump"} & {*dir(result["mixnet"].iterations[0])}


def test_notebook_shows_the_tables_of_the_report(result: Result) -> None:
    html = result._repr_html_()
    assert html.startswith("<p>Fastest is eps: iteration 2.682 s")
    assert html.count("<table>") == 1
    assert "divert / command" in html
    document = result.to_json()
    document["results"][0]["cost"] = {"network_usd": 42e3}
    assert Result.of(RunResult.model_validate(document))._repr_html_().count("<table>") == 2


@pytest.mark.nightly
def test_frames_have_a_row_for_each_part(result: Result) -> None:
    pytest.importorskip("pandas", reason="nightly: needs pandas: packaging/setup all")
    for kind in ("iterations", "collectives", "reconfigurations"):
        frame = result.to_frame(kind)
        assert len(frame) == sum(len(getattr(entry, kind)) for entry in result.results)
        assert list(frame.columns[:2]) == ["fabric", "policy"]
    collectives = result.to_frame("collectives")
    medians = collectives.groupby("fabric").measured_s.median()
    for fabric in summaries(result):
        assert medians[fabric.name] == pytest.approx(fabric["all_to_all_s"])


@pytest.mark.nightly
def test_frame_of_fabrics_has_the_figures_of_the_table(result: Result) -> None:
    pytest.importorskip("pandas", reason="nightly: needs pandas: packaging/setup all")
    frame = result.to_frame().set_index("fabric")
    assert list(frame.index) == ["eps", "mixnet", "mixnet-spill", "static"]
    for fabric in summaries(result):
        assert frame.loc[fabric.name, "iteration_s"] == fabric["iteration_s"]
        assert frame.loc[fabric.name, "optical_share"] == fabric["optical_share"]


@pytest.mark.nightly
def test_frame_of_flows_needs_a_run_that_kept_them(result: Result) -> None:
    pytest.importorskip("pandas", reason="nightly: needs pandas: packaging/setup all")
    with pytest.raises(SpecError, match="kept no flows: run it with `flows=True`"):
        result.to_frame("flows")
    flow = FlowResult(
        src="s0", dst="s1", path="o0", bytes=9, start_s=0.0, end_s=1.0, predicted_end_s=1.0
    )
    first = result.results[0].model_copy(update={"flows": [flow]})
    kept = Result.of(result.model_copy(update={"results": [first]}))
    assert kept.to_frame("flows").loc[0, ["src", "path", "bytes"]].to_list() == ["s0", "o0", 9]


def test_compare_takes_results_and_their_files(result: Result) -> None:
    assert result.compare(str(SAMPLE)) == result.compare(SAMPLE) == result.compare(result)
    with pytest.raises(SpecError, match=r"nothing\.json: No such file"):
        result.compare("nothing.json")


def test_unknown_frame_names_the_kinds(result: Result) -> None:
    with pytest.raises(SpecError, match=f"'rows' is not one of {', '.join(FRAMES)}"):
        result.to_frame("rows")


def test_missing_pandas_is_an_error_with_its_command(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match=r"-m pip install pandas$"):
        result.to_frame()


def test_report_is_the_page(result: Result, tmp_path: Path) -> None:
    result.report(tmp_path / "page.html")
    assert "<title>prototype: pass</title>" in (tmp_path / "page.html").read_text()
    assert result.table().startswith("prototype  pass\n")


KINDS = ["comparison", "timeline", "layer", "completion", "reconfigurations", "demand", "circuits"]


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_whole_svg_files_with_their_own_style(result: Result, kind: str) -> None:
    drawn = result.plot(kind)
    root = ET.fromstring(drawn._repr_svg_())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    selectors = re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]*\{", "", style))
    others = [s for part in selectors for s in part.split(",") if ".moefabric-picture" not in s]
    assert others == [], "the style would reach other pictures of a notebook"
    known = set(re.findall(r"\.([\w-]+)", style))
    used = {
        name
        for element in root.iter()
        for name in element.get("class", "").split()
        if not name.startswith("on-")
    }
    assert used - known <= {"in", "label", "nic"}, "classes without a style"


def test_pictures_of_chosen_fabrics_and_of_nothing(result: Result, tmp_path: Path) -> None:
    result.plot_timeline("mixnet").save(tmp_path / "timeline.svg")
    text = (tmp_path / "timeline.svg").read_text()
    assert "mixnet" in text
    assert "static" not in text
    with pytest.raises(SpecError, match=r"failures: eps, mixnet.*no such data to draw"):
        result.plot("failures")
    with pytest.raises(SpecError, match="comparison, timeline"):
        result.plot("poster")
