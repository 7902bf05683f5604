"""HybridEP on a thousand data centres: the row, its cause, and what the page shows."""

import pytest
from moefabric_studies.systems.hybrid_ep.many_dcs import ManyDcs
from moefabric_studies.systems.study import load_study

from tests.support.paths import EXAMPLES, REPOSITORY

SPEC, _, SETUP = load_study(EXAMPLES / "systems/hybridep.yaml")
MANY = ManyDcs(SETUP)
PUBLISHED = 1.45


def test_slow_uplinks_leave_the_share_of_tokens_that_cross() -> None:
    """Experts of 7.2 kB that 249 data centres send count as 1.8 of 96 MB."""
    tokens = 4 * SETUP.many.tokens
    experts = SETUP.expert / SETUP.compression * 249
    expected = tokens * 0.999 / (tokens * 0.75 + experts)
    assert MANY.gain(1e5, 250) == pytest.approx(expected, rel=1e-3)


def test_one_size_of_domains_brings_the_row_to_the_published_value() -> None:
    """The cause that the page states: changed, the row moves across the published value."""
    uplinks = SETUP.many.uplinks
    most = {size: max(MANY.gain(rate, size) for rate in uplinks) for size in (0, 4, 250, 500)}
    assert most[4] < most[250] < PUBLISHED < most[500] < most[0]
    gains = [MANY.gain(rate, 250) for rate in uplinks]
    assert gains == sorted(gains, reverse=True), "the gain grows as bandwidth falls"


def test_page_shows_the_computed_row_and_its_table() -> None:
    page = (REPOSITORY / "docs/systems/hybridep.md").read_text()
    assert f"| 1.09 to 1.81x | 1x | {MANY.measure().value:.4g}x | computed | missed |" in page
    grid = MANY.grid()
    assert f"## {grid.title}\n" in page
    assert grid.note.strip() in page
    for row in grid.rows:
        assert f"| {' | '.join(row)} |" in page
