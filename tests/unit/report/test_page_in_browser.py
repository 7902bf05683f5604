"""A report in a browser, on a screen and a phone: no text of a chart is cut or too small."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from moefabric.report.page import page
from moefabric.results.model import RunResult
from tests.support.report_sample import sample

CHROMIUM = Path("/usr/bin/chromium")
MEASURE = """
<script>
const shown = text => text.closest("svg").getBoundingClientRect().width > 0;
const texts = [...document.querySelectorAll("SELECTOR")].filter(shown);
const beyond = (text, frame) => {
  const box = text.getBoundingClientRect(), edge = frame.getBoundingClientRect();
  return box.left < edge.left - 0.1 || box.right > edge.right + 0.1;
};
const isCut = text => {
  const svg = text.closest("svg"), clips = getComputedStyle(svg).overflow != "visible";
  return beyond(text, text.closest("figure")) || (clips && beyond(text, svg));
};
parent.postMessage({
  width: document.documentElement.scrollWidth, texts: texts.length,
  least: Math.min(...texts.map(text => Math.round(text.getBoundingClientRect().height))),
  cut: texts.filter(isCut).map(text => text.textContent),
}, "*");
</script>
"""
FRAME = """
<iframe src="report.html" style="width: WIDTHpx; height: 900px; border: 0"></iframe>
<script>onmessage = event => document.body.textContent = JSON.stringify(event.data);</script>
"""


def shown_in(file: Path) -> Any:
    """Return the JSON that the scripts of a page leave in its body."""
    shown = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--virtual-time-budget=10000", f"--user-data-dir={file.parent / 'profile'}",
            "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    text = shown[shown.index("<body") :].partition(">")[2]
    return json.loads(text.partition("</body>")[0])


@pytest.mark.nightly
@pytest.mark.skipif(not CHROMIUM.exists(), reason="nightly: needs chromium: packaging/setup all")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("width", "selector"),
    [
        pytest.param(390, ".narrow svg text", id="phone"),
        pytest.param(1400, "figure.card svg text", id="screen"),
    ],
)
def test_texts_of_a_report_are_whole(tmp_path: Path, width: int, selector: str) -> None:
    run = sample()
    for result in run["results"]:
        result["control_time"] = {"count": 42, "p50_s": 0.0072, "p95_s": 0.00821}
    measure = MEASURE.replace("SELECTOR", selector)
    html = page(RunResult.model_validate(run))
    verdict = f'<span class="pill">{"words of a study " * 6}</span>'
    html = html.replace("</h1>", f"</h1>{verdict}", 1)
    assert verdict in html
    (tmp_path / "report.html").write_text(html.replace("</body>", f"{measure}</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(f"<body>{FRAME.replace('WIDTH', str(width))}</body>")
    found = shown_in(frame)
    assert found["width"] == width
    assert found["texts"] > 50
    assert found["least"] >= 11
    assert found["cut"] == []


@pytest.mark.nightly
@pytest.mark.skipif(not CHROMIUM.exists(), reason="nightly: needs chromium: packaging/setup all")
@pytest.mark.timeout(120)
def test_small_words_of_an_invalid_figure_are_crossed_out_by_a_line_of_their_own(
    tmp_path: Path,
) -> None:
    """A line of the large figure beside them would pass below their middle."""
    run = sample()
    run["results"][0]["fidelity"]["verdict"] = "invalid"
    script = """<script>document.body.textContent = JSON.stringify([
    ...document.querySelectorAll(".tile.void .big small")].map(getComputedStyle)
    .map(style => [style.display, style.textDecorationLine]));</script>"""
    html = page(RunResult.model_validate(run)).replace("</body>", f"{script}</body>")
    file = tmp_path / "report.html"
    file.write_text(html)
    assert shown_in(file) == [["inline-block", "line-through"]]
