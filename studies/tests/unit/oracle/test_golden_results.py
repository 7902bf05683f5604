"""The model beside stored results of LogGOPSim, htsim and ASTRA-sim, with signed errors."""

from __future__ import annotations

from statistics import median

import pytest
from moefabric_studies.oracle.golden_results import GoldenResult, golden_results

RESULTS = {(result.simulator, result.case): result for result in golden_results()}


BANDS = [
    ("LogGOPSim", "uniform8", -0.02, 0.005),
    ("LogGOPSim", "pairskew8", -0.02, 0.005),
    ("htsim NDP", "uniform8", -0.09, -0.06),
    ("htsim NDP", "pairskew8", -0.09, -0.05),
    ("htsim EQDS", "uniform8", -0.09, -0.05),
    # Flows of these three collide on the ports of the fat tree's upper switches.
    ("htsim EQDS", "pairskew8", -0.86, -0.83),
    ("htsim RoCE", "uniform8", -0.42, -0.39),
    ("htsim RoCE", "pairskew8", -0.50, -0.47),
    # A switch of ASTRA-sim stores a whole message: one message's time more than the model's.
    ("ASTRA-sim", "Switch, 4 ranks, 64 KiB", -0.09, -0.07),
    ("ASTRA-sim", "Switch, 4 ranks, 1,024 KiB", -0.25, -0.22),
    ("ASTRA-sim", "Switch, 4 ranks, 16,384 KiB", -0.26, -0.24),
    ("ASTRA-sim", "Switch, 8 ranks, 1,024 KiB", -0.12, -0.10),
    ("ASTRA-sim", "Switch, 8 ranks, 16,384 KiB", -0.13, -0.11),
    ("ASTRA-sim", "Switch, 16 ranks, 1,024 KiB", -0.06, -0.04),
    ("ASTRA-sim", "Switch, 16 ranks, 16,384 KiB", -0.07, -0.05),
    # For messages of less than a frame, the model's switch stores more than there is.
    ("ASTRA-sim", "Switch, 8 ranks, 64 KiB", 0.0, 0.02),
    ("ASTRA-sim", "Switch, 16 ranks, 64 KiB", 0.04, 0.06),
    ("ASTRA-sim", "graph of 8 ranks", -0.43, -0.40),
]


def test_each_result_has_a_band_or_is_exact() -> None:
    exact = {key for key in RESULTS if key[1].startswith("FullyConnected")}
    assert {(simulator, case) for simulator, case, *_ in BANDS} == RESULTS.keys() - exact


@pytest.mark.parametrize(("simulator", "case", "low", "high"), BANDS)
def test_error_of_the_model_is_within_its_band(
    simulator: str, case: str, low: float, high: float
) -> None:
    assert low < RESULTS[simulator, case].error < high


@pytest.mark.parametrize(
    "result",
    [r for r in RESULTS.values() if r.case.startswith("FullyConnected")],
    ids=lambda result: result.case,
)
def test_direct_all_to_all_equals_astra_sim_within_a_nanosecond(result: GoldenResult) -> None:
    assert abs(result.ours_s - result.theirs_s) < 1.1e-9


@pytest.mark.parametrize(
    ("simulator", "case", "low", "high"),
    [
        ("htsim NDP", "uniform8", -0.07, -0.04),
        ("htsim NDP", "pairskew8", -0.33, -0.25),
        ("htsim EQDS", "uniform8", -0.07, -0.04),
        ("htsim RoCE", "uniform8", -0.25, -0.18),
    ],
)
def test_median_error_of_the_flows_is_within_its_band(
    simulator: str, case: str, low: float, high: float
) -> None:
    errors = RESULTS[simulator, case].flow_errors
    assert len(errors) == 56
    assert low < median(errors) < high
