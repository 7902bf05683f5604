"""HTML page of a run."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from moefabric.report import page as report_page
from moefabric.report.formatting import MISSING
from moefabric.results.model import RunResult
from tests.support.report_sample import sample

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Elements of a page, which must be balanced, with its ids, links, headings and the run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.headings: list[str] = []
        self.run = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(str(value))
            if key in ("src", "href", "xlink:href"):
                self.loaded.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and data.startswith("{"):
            self.run = data
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def page(run: dict[str, Any]) -> str:
    return report_page.page(RunResult.model_validate(run))


@pytest.fixture
def run() -> dict[str, Any]:
    return sample()


def test_page_is_well_formed_and_complete(run: dict[str, Any]) -> None:
    outline = Outline(page(run))
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.headings == [
        "Comparison of the fabrics",
        "Server timeline",
        "Demand and circuits",
        "All-to-all completion times",
        "Reconfiguration phases",
        "Measurement fidelity",
        "Run settings",
        "Glossary",
    ]


def test_page_has_a_row_for_each_other_machine_with_its_clock(run: dict[str, Any]) -> None:
    clock = {"fabric": "eps/mixnet", "clock_offset_s": -0.0021, "clock_uncertainty_s": 0.0004}
    worse = clock | {"clock_uncertainty_s": 0.0009, "clock_offset_s": 1.0, "clock_drift_s": -3e-5}
    run["manifest"]["hosts"] = [
        {"server": "s4", "host": "b", **clock},
        {"server": "s5", "host": "b", **worse},
        *({"server": f"s{n}", "host": "c", "lost": "silent", **clock} for n in range(8, 16)),
    ]
    section = page(run).partition("Machines and clocks")[2].partition("</section>")[0]
    rows = [re.sub(r"(<[^>]*>|\s)+", " ", row).strip() for row in section.split("<tr>")[2:]]
    assert rows == [
        "b eps/mixnet s4 s5 -2.10 ms ± 900 µs -30.0 µs ran to the end",
        f"c eps/mixnet 8 servers, s8 first -2.10 ms ± 400 µs {MISSING} silent",
    ]


def test_page_loads_nothing(run: dict[str, Any]) -> None:
    html = page(run)
    assert Outline(html).loaded == []
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in html
    assert "url(" not in html


def test_page_contains_the_run_as_json(run: dict[str, Any]) -> None:
    run["experiment"] = "</script><script>alert(1)</script> & <!-- \u2028"
    assert json.loads(Outline(page(run)).run) == run


def test_json_in_the_page_cannot_end_its_script_element(run: dict[str, Any]) -> None:
    run["experiment"] = "<!--<script></script>"
    assert not set("<>&") & set(Outline(page(run)).run)


def test_equal_runs_give_equal_pages(run: dict[str, Any]) -> None:
    assert page(run) == page(json.loads(json.dumps(run)))


def test_page_escapes_every_text_of_the_run(run: dict[str, Any]) -> None:
    """Every text of the run is an element here; none may become one of the page."""
    evil = "<i onclick='x'>"
    run |= {"experiment": f"{evil}1", "version": f"{evil}2"}
    run["manifest"] = {
        f"{evil}3": f"{evil}4",
        "list": [f"{evil}5"],
        "more": {f"{evil}6": f"{evil}7"},
    }
    for result in run["results"]:
        result |= {"fabric": f"{evil}8", "policy": f"{evil}9", "demand_label": f"{evil}10"}
        result["fidelity"] = {"verdict": "invalid", "reasons": [f"{evil}11"]}
        result["failures"] = [
            {"kind": f"{evil}12", "what": [f"{evil}13"], "action": f"{evil}20", "ok": True}
        ]
        result["circuits"].append(f"{evil}14~{evil}15")
        for row in result["timeline"]:
            row |= {"server": f"{evil}16", "kind": f"{evil}17"}
        for row in result["reconfigurations"]:
            row |= {"region": f"{evil}18", "reason": f"{evil}19"}
    html = page(run)
    assert "i" not in Outline(html).tags
    assert "&lt;i onclick=&#39;x&#39;&gt;11" in html


@pytest.mark.parametrize(
    ("index", "verdict", "title"),
    [
        pytest.param(0, "pass", "prototype: pass", id="pass"),
        pytest.param(1, "degraded", "prototype: degraded", id="degraded"),
        pytest.param(2, "invalid", "prototype: invalid", id="invalid"),
    ],
)
def test_title_has_the_worst_verdict(
    run: dict[str, Any], index: int, verdict: str, title: str
) -> None:
    run["results"][index]["fidelity"] = {"verdict": verdict, "reasons": ["links were 9 % slow"]}
    html = page(run)
    assert f"<title>{title}</title>" in html
    assert ("links were 9 % slow</span>" in html) == (verdict != "pass")


def test_page_describes_scale_and_wiring(run: dict[str, Any]) -> None:
    html = page(run)
    assert (
        "A NIC of 100Gb/s is emulated at 50Mb/s: sizes are divided by 1,000, "
        "times are multiplied by 2." in html
    )
    assert "4 servers of 8 GPUs, 3 optical + 1 electrical NICs of 100Gb/s each" in html


@pytest.mark.parametrize(
    ("emptied", "missing"),
    [
        pytest.param("timeline", "Server timeline", id="no-timeline"),
        pytest.param("collectives", "All-to-all completion times", id="no-collectives"),
        pytest.param("reconfigurations", "Reconfiguration phases", id="no-reconfigurations"),
    ],
)
def test_page_omits_sections_without_data(run: dict[str, Any], emptied: str, missing: str) -> None:
    for result in run["results"]:
        result[emptied] = []
    assert missing not in Outline(page(run)).headings


@pytest.mark.parametrize(
    "run",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"results": [{}]}, id="empty-result"),
        pytest.param(
            {"results": [{"fabric": "f", "demand": [[0]], "circuits": [["a", "b"]]}]},
            id="one-server",
        ),
        pytest.param(
            {
                "results": [
                    {
                        "demand": [[0, 0], [0, 0]],
                        "collectives": [{"kind": "dispatch", "measured_s": 0}],
                    }
                ]
            },
            id="zeros",
        ),
        pytest.param(
            {"results": [{"wiring": {"servers": 2}, "circuits": ["s0/o0~s1/o0"]}]}, id="no-demand"
        ),
    ],
)
def test_page_of_an_incomplete_run_is_well_formed(run: dict[str, Any]) -> None:
    assert Outline(page(run)).open == []


def test_page_begins_with_the_result_and_names_equal_circuits() -> None:
    document = sample()
    for result, other in zip(document["results"][1:3], ("mixnet-spill", "mixnet"), strict=True):
        result["same_circuits"] = [other]
    html = report_page.page(RunResult.model_validate(document))
    assert '<p class="outcome">Fastest is eps: iteration 2.682 s' in html
    assert "mixnet, mixnet-spill: the same circuits as each other in every all-to-all." in html
    assert "+15.8 % against eps" in html
