"""Pages in a browser as narrow as a phone: nothing is beyond the edge, and charts can be read."""

import json
import subprocess
from pathlib import Path

import pytest

from moefabric.report.page import page
from moefabric.results.model import RunResult
from tests.support.report_sample import sample

CHROMIUM = Path("/usr/bin/chromium")
MEASURE = """
<script>
const texts = [...document.querySelectorAll(".narrow svg text")];
const boxes = texts.map(text => text.getBoundingClientRect());
const cards = texts.map(text => text.closest("figure").getBoundingClientRect());
const cut = (text, n) => boxes[n].left < cards[n].left || boxes[n].right > cards[n].right;
parent.postMessage({
  width: document.documentElement.scrollWidth, texts: texts.length,
  least: Math.min(...boxes.map(box => Math.round(box.height))),
  cut: texts.filter(cut).map(text => text.textContent),
}, "*");
</script>
"""
FRAME = """
<iframe src="report.html" style="width: 390px; height: 900px; border: 0"></iframe>
<script>onmessage = event => document.body.textContent = JSON.stringify(event.data);</script>
"""


@pytest.mark.nightly
@pytest.mark.skipif(not CHROMIUM.exists(), reason="nightly: needs chromium: packaging/setup all")
@pytest.mark.timeout(120)
def test_report_fits_a_phone(tmp_path: Path) -> None:
    run = sample()
    for result in run["results"]:
        result["control_time"] = {"count": 42, "p50_s": 0.0072, "p95_s": 0.00821}
    html = page(RunResult.model_validate(run))
    (tmp_path / "report.html").write_text(html.replace("</body>", f"{MEASURE}</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(f"<body>{FRAME}</body>")
    shown = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--virtual-time-budget=10000", f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom", frame.as_uri(),
        ],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = json.loads(shown.partition("<body>")[2].partition("</body>")[0])
    assert found["width"] == 390
    assert found["texts"] > 50
    assert found["least"] >= 11
    assert found["cut"] == []
