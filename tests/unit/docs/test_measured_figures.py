"""Figures on pages come from stored results, or are counted with a reason here."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.stored_results import ROOT, pages

UNIT: Final = r"(?:ms|s|µs|%|x|times|minutes|kB|MB|GB)"
"""Units of measurements. Rates in Gb/s are those of configured NICs nearly everywhere."""
FIGURE: Final = re.compile(rf"(?<![\w.,])[+-]?\d[\d,.]*\s?{UNIT}(?![\w/])")
RATIO: Final = re.compile(r"(?<![\w.,/])[+-]?\d[\d,]*\.\d+(?![\w.])")
"""A number with decimals, which in a row of a table is a ratio."""
FILLED: Final = (
    r"<!-- (results?|bench|benches): .*?<!-- /\1 -->",
    r"^```.*?^```$",
    r"^(?: {4}|\t)[^\n]*$",
    r"`[^`\n]*`",
)
"""Blocks that `make results` fills, code blocks, and code: their figures are counted nowhere."""
DRAWN: Final = {"truth", "paper", "frontier", "mixnet-simulator", "benchmarks", "conformance"}
"""Pages that a command writes from stored results or predictions, as those in `docs/systems` are;
tests draw them again."""
CONFIGURED: Final = {"commands", "device-commands", "keys", "results", "sabotage", "security"}
"""Pages about options, limits and bounds; `sabotage` quotes reasons of runs, and has
tests of its own."""
FREE: Final = {
    "README.md": (28, "compared by test_readme_figures.py; the bound of 1 %"),
    "architecture.md": (15, "bounds, configured times; test_multihop.py asserts the split's 1 %"),
    "failures.md": (13, "time-outs and intervals of controllers"),
    "forwarding.md": (84, "compared by test_predicted_figures.py, test_readme_figures.py"),
    "glossary.md": (1, "a definition"),
    "growth.md": (5, "assumptions of the model; the paper's 6 %"),
    "guides/ci.md": (1, "an option"),
    "guides/collectives.md": (5, "bounded by test_collective_timing.py"),
    "guides/compare-fabrics.md": (5, "compared by test_predicted_figures.py, test_prediction.py"),
    "guides/containers.md": (1, "a default of the engine"),
    "guides/dashboard.md": (1, "a time-out"),
    "guides/gating.md": (104, "compared by test_predicted_figures.py"),
    "guides/hybrid.md": (7, "bounds, and the dilation of an example"),
    "guides/install.md": (1, "a version"),
    "guides/machines.md": (10, "what resource_needs.py reserves; a time-out"),
    "guides/models-and-gating.md": (20, "compared by test_predicted_figures.py, test_shares.py"),
    "guides/models.md": (9, "bounds, versions, a number of a paper"),
    "guides/perf.md": (11, "bounds of a verdict"),
    "guides/plugins.md": (5, "options of examples"),
    "guides/python.md": (1, "a level of confidence"),
    "guides/real-hosts.md": (5, "time-outs, and a bound"),
    "guides/replay.md": (5, "bounds"),
    "guides/sweep.md": (1, "a level of confidence"),
    "guides/traces.md": (5, "what `trace info` prints of a file; test_trace.py"),
    "guides/train.md": (1, "a bound of a test"),
    "limits.md": (27, "bounds, configured values, and values of the paper"),
    "ocs.md": (23, "profiles, defaults and bounds"),
    "training.md": (21, "compared by test_predicted_figures.py; set-ups"),
}
"""Figures on other pages, and why no block has them: what they are, or the test that compares."""


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _figures(line: str) -> list[str]:
    found = FIGURE.findall(line)
    return found + RATIO.findall(FIGURE.sub("", line)) * line.startswith("|")


def free_figures(text: str) -> list[str]:
    """Return figures with a unit, and ratios in tables, outside of blocks and code, by line."""
    for pattern in FILLED:
        text = re.sub(pattern, _blank, text, flags=re.DOTALL | re.MULTILINE)
    return [
        f"line {number}: {found.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in _figures(line)
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs") if page.is_relative_to(ROOT / "docs") else page.name)


def is_counted(page: Path) -> bool:
    first = name_of(page).split("/")[0].removesuffix(".md")
    return first not in {*DRAWN, *CONFIGURED, "api", "systems", "vendor"}


@pytest.mark.parametrize("page", [*filter(is_counted, pages())], ids=name_of)
def test_page_has_no_figure_without_a_source(page: Path) -> None:
    found, (allowed, _) = free_figures(page.read_text()), FREE.get(name_of(page), (0, ""))
    remedy = (
        "show a measured figure by a block (CONTRIBUTING.md, A figure of a page), compare it with "
        "a command in test_predicted_figures.py, or leave it out; then mend this page's count"
    )
    assert len(found) == allowed, f"{remedy}: {'; '.join(found)}"


def test_every_counted_page_exists() -> None:
    assert {*FREE} <= {name_of(page) for page in pages()}


def test_figures_are_those_outside_of_blocks_and_code() -> None:
    text = (
        "It takes 3.4 s, `5 s` and <!-- result: a b c -->6 s<!-- /result -->.\n\n"
        "    7 s\n\n| a | +0.5 % | s4 | 8x | 1,024 NICs | 400 Gb/s | 1.05 |\n```\n9 s\n```\n"
    )
    assert free_figures(text) == ["line 1: 3.4 s", "line 5: +0.5 %", "line 5: 8x", "line 5: 1.05"]
