"""The model beside stored results of MixNet's packet simulator, in bands fixed before."""

from __future__ import annotations

from statistics import median
from typing import Final

import pytest
from moefabric_studies.oracle.mixnet.cases import (
    HASHED_BAND,
    HASHED_MEDIAN,
    HASHED_MEDIAN_BAND,
    Band,
    Group,
    Network,
    demands,
    judged_cases,
    rotated_cases,
)
from moefabric_studies.oracle.mixnet.page import (
    Comparison,
    comparisons,
    hashed_errors,
    hashed_ratio,
    judged,
    text,
)
from moefabric_studies.oracle.mixnet.runs import JudgedResults

from tests.support.paths import EXAMPLES, REPOSITORY

EVEN, PAIRS = "even, 8 servers", "pairs of 8 servers"
DEMANDS: Final = demands(EXAMPLES)
RESULTS: Final = JudgedResults.stored()
COMPARED: Final = comparisons(RESULTS, DEMANDS)
OUTSIDE: Final[dict[tuple[Network, str, float], Band]] = {
    (Network.ONE_SWITCH, EVEN, 1.0): (-0.12, -0.10),
    (Network.ONE_SWITCH, EVEN, 1 / 8): (-0.48, -0.45),
    (Network.ONE_SWITCH, EVEN, 1 / 64): (-0.51, -0.45),
    (Network.ONE_SWITCH, PAIRS, 1.0): (-0.09, -0.08),
    (Network.ONE_SWITCH, PAIRS, 1 / 8): (-0.10, -0.08),
    (Network.ONE_SWITCH, PAIRS, 1 / 64): (-0.37, -0.27),
    (Network.FAT_TREE, EVEN, 1 / 8): (-0.55, -0.53),
    **{(Network.FAT_TREE, PAIRS, share): (-0.81, -0.75) for share in (1.0, 1 / 8, 1 / 64)},
}
"""Errors outside their bands: the order of starts explains those on one switch, hashing others."""


def _outside(compared: Comparison) -> Band | None:
    """Return where the errors are that missed their bands: a change of the model shows."""
    return OUTSIDE.get((compared.case.network, compared.case.demand, compared.case.share))


def test_every_case_has_a_result() -> None:
    cases = [*judged_cases(DEMANDS), *rotated_cases(DEMANDS)]
    assert [result.case for result in RESULTS.results] == cases


@pytest.mark.parametrize("compared", judged(COMPARED), ids=lambda c: str(c.case))
def test_error_is_in_the_band_fixed_before_or_known_to_miss_it(compared: Comparison) -> None:
    low, high = _outside(compared) or compared.band
    assert low <= compared.error <= high


def test_cases_that_miss_their_bands_are_those_that_the_page_lists() -> None:
    missed = [c for c in judged(COMPARED) if not c.holds]
    assert len(missed) == 19
    assert all(_outside(c) for c in missed)


def test_hashed_flows_last_as_much_longer_as_expected() -> None:
    low, high = HASHED_MEDIAN
    assert low <= hashed_ratio(COMPARED) <= high


def test_model_that_hashes_flows_has_the_times_of_the_fat_tree() -> None:
    errors = [hashed for _, hashed in hashed_errors(COMPARED, rotated=True, short=False)]
    assert len(errors) == 8
    low, high = HASHED_BAND
    assert low <= min(errors) <= max(errors) <= high
    low, high = HASHED_MEDIAN_BAND
    assert low <= median(errors) <= high


def test_starts_in_turn_explain_what_one_switch_misses() -> None:
    """Without the order of starts, only the smallest sizes differ by more than some per cent."""
    switches = [c for c in COMPARED if c.case.network is Network.ONE_SWITCH and c.case.rotated]
    assert all(abs(c.error) < 0.02 for c in switches if not c.case.is_short)


def test_null_model_is_worse_where_circuits_end_last() -> None:
    long = [c for c in COMPARED if c.answer.group is Group.CIRCUITS and not c.case.is_short]
    assert median(abs(c.error) for c in long) < 0.2 * median(abs(c.null_error) for c in long)


def test_both_choose_the_same_circuits() -> None:
    assert all(c.same_circuits for c in COMPARED if c.case.optical)


def test_page_shows_the_stored_results() -> None:
    page = (REPOSITORY / "docs/mixnet-simulator.md").read_text()
    assert page == text(RESULTS, DEMANDS)
