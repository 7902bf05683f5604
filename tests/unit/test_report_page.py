"""The run as one HTML page."""

import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from moefabric.report.page import page

sample = runpy.run_path(str(Path(__file__).parents[1] / "golden" / "report" / "build_sample.py"))["sample"]
VOID = {"meta", "br"}


class Outline(HTMLParser):
    """What a browser would see: elements balanced, ids, what is loaded from elsewhere, and the text of scripts."""

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


@pytest.fixture
def run() -> dict[str, Any]:
    made: dict[str, Any] = sample()
    return made


def test_the_page_is_well_formed_and_whole(run: dict[str, Any]) -> None:
    outline = Outline(page(run))
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.headings == [
        "The fabrics compared",
        "An iteration, server by server",
        "Demand, and the light it was given",
        "Completion of the all-to-alls",
        "What a change of light is made of",
        "How far to trust it",
        "What was run",
        "What the words mean",
    ]


def test_the_page_loads_nothing_from_elsewhere(run: dict[str, Any]) -> None:
    html = page(run)
    assert Outline(html).loaded == []
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in html
    assert "url(" not in html


def test_the_run_can_be_had_back_from_its_page(run: dict[str, Any]) -> None:
    run["experiment"] = "</script><script>alert(1)</script> & <!-- \u2028"
    assert json.loads(Outline(page(run)).run) == run


def test_nothing_in_the_run_can_end_the_script_that_holds_it(run: dict[str, Any]) -> None:
    run["experiment"] = "<!--<script></script>"
    assert not set("<>&") & set(Outline(page(run)).run)


def test_equal_runs_give_equal_pages(run: dict[str, Any]) -> None:
    assert page(run) == page(json.loads(json.dumps(run)))


def test_text_from_the_run_is_never_markup(run: dict[str, Any]) -> None:
    """Every text that a run can carry, each with an element of its own; none of them is in the page as such."""
    evil = "<i onclick='x'>"
    run |= {"experiment": f"{evil}1", "version": f"{evil}2"}
    run["manifest"] = {f"{evil}3": f"{evil}4", "list": [f"{evil}5"], "more": {f"{evil}6": f"{evil}7"}}
    for result in run["results"]:
        result |= {"fabric": f"{evil}8", "policy": f"{evil}9", "demand_label": f"{evil}10"}
        result["fidelity"] = {"verdict": "invalid", "reasons": [f"{evil}11"]}
        result["integrity"] = {"corrupt": f"{evil}12", "lost_transfers": f"{evil}13"}
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
def test_the_worst_verdict_heads_the_page(run: dict[str, Any], index: int, verdict: str, title: str) -> None:
    run["results"][index]["fidelity"] = {"verdict": verdict, "reasons": ["links were 9 % slow"]}
    html = page(run)
    assert f"<title>{title}</title>" in html
    assert ("links were 9 % slow</span>" in html) == (verdict != "pass")


def test_the_scale_is_said_in_words(run: dict[str, Any]) -> None:
    html = page(run)
    assert (
        "A NIC of 100Gb/s is emulated at 50Mb/s: bytes are divided by 1,000, times are stretched 2-fold."
        in html
    )
    assert "4 servers of 8 GPUs, 3 optical + 1 electrical NICs of 100Gb/s each" in html


@pytest.mark.parametrize(
    ("emptied", "missing"),
    [
        pytest.param("timeline", "An iteration, server by server", id="no-timeline"),
        pytest.param("collectives", "Completion of the all-to-alls", id="no-collectives"),
        pytest.param("reconfigurations", "What a change of light is made of", id="no-changes-of-light"),
    ],
)
def test_what_a_run_lacks_has_no_section(run: dict[str, Any], emptied: str, missing: str) -> None:
    for result in run["results"]:
        result[emptied] = []
    assert missing not in Outline(page(run)).headings


@pytest.mark.parametrize(
    "run",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"results": [{}]}, id="an-empty-result"),
        pytest.param(
            {"results": [{"fabric": "f", "demand": [[0]], "circuits": [["a", "b"]]}]}, id="one-server"
        ),
        pytest.param(
            {
                "results": [
                    {"demand": [[0, 0], [0, 0]], "collectives": [{"kind": "dispatch", "measured_s": 0}]}
                ]
            },
            id="zeros",
        ),
        pytest.param({"results": [{"wiring": {"servers": 2}, "circuits": ["s0/o0~s1/o0"]}]}, id="no-demand"),
    ],
)
def test_a_run_with_little_in_it_still_has_a_page(run: dict[str, Any]) -> None:
    assert Outline(page(run)).open == []
