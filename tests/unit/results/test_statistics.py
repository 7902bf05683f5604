"""Each word is one statistic, with one meaning on pages and in the glossary."""

from math import inf, nan
from pathlib import Path

import pytest

from moefabric.report.page import page
from moefabric.report.summary import COLUMNS
from moefabric.results.model import RunResult
from moefabric.results.statistics import MEANINGS, median_of, median_ratio

GLOSSARY = (Path(__file__).parents[3] / "docs/glossary.md").read_text()


@pytest.mark.parametrize("word", MEANINGS)
def test_glossaries_have_the_meaning_of_each_figure(word: str) -> None:
    assert f"| {word} | {MEANINGS[word]} |" in GLOSSARY
    assert f"<dt>{word}</dt><dd>{MEANINGS[word]}</dd>" in page(RunResult(experiment="e"))
    assert word in {column.heading.replace("\n", " ") for column in COLUMNS.values()}


def test_ratios_are_of_the_same_all_to_alls() -> None:
    own, base = {"a": 1.0, "b": 9.0, "c": 6.0, "new": 1.0}, {"a": 1.0, "b": 3.0, "c": 3.0, "z": 0.0}
    assert median_ratio(own, base) == 2.0
    assert median_of(own.values()) == 3.5
    assert median_ratio(own, {}) is None


def test_median_leaves_out_what_is_no_number() -> None:
    assert median_of([3.0, None, nan, inf, 1.0]) == 2.0
    assert median_of([None]) is None
