"""Figures 21, 23, 27 and 28 as tables: times of optics, and what degree and delay cost."""

from typing import Final

from moefabric.api.charts import MISSING
from moefabric.api.workloads import DIRECTIONS
from moefabric_studies.grids import Grid, grid
from moefabric_studies.paper import measures
from moefabric_studies.paper.evaluation import Evaluation
from moefabric_studies.paper.network import PlanningPolicy
from moefabric_studies.paper.other_hardware import link_up_s, settle_ms

_EXAMPLE: Final = "mixtral-8x22b"
_DEGREE: Final = 6
"""Optical degree of the paper's networks."""
_POLICIES: Final[tuple[PlanningPolicy, ...]] = ("mixnet", "spill")
_DELAY_CASES: Final[dict[str, measures.IterationSeconds]] = {
    "every forward dispatch waits (the tables)": measures.blocked_iteration_s,
    "circuits change during computation": measures.hidden_iteration_s,
    "forward dispatches diverted to the EPS": measures.diverted_iteration_s,
}
_PROFILE: Final = "polatis-mixnet"
_NIC: Final = ("5.67s", "284ms")
"""Mean and standard deviation of the time until a NIC is usable."""
_QUANTILES: Final = (0.01, 0.25, 0.5, 0.75, 0.99)


def degree_grid(evaluation: Evaluation) -> Grid:
    """Return the iteration time by optical degree, at equal cost (figure 27)."""
    job, rate, seconds = evaluation.jobs[_EXAMPLE], 100e9, measures.degree_iteration_s
    rows = []
    for policy in _POLICIES:
        base_s = seconds(job, rate, _DEGREE, policy)
        times = (seconds(job, rate, degree, policy) / base_s for degree in measures.DEGREES)
        rows.append((policy, *(f"{time:.3f}" for time in times)))
    return grid("paper/degrees", rows, header=("policy", *map(str, measures.DEGREES)))


def delay_grid(evaluation: Evaluation) -> Grid:
    """Return how much longer an iteration takes by reconfiguration delay (figure 28)."""
    rows = []
    for label, seconds in _DELAY_CASES.items():
        times = [seconds(evaluation, _EXAMPLE, 400e9, delay_s) for delay_s in measures.DELAYS_S]
        rows.append((label, *(f"{100 * (time / times[0] - 1):+.1f} %" for time in times)))
    forward, backward = (
        evaluation.jobs[_EXAMPLE].layer_times(directions=(direction,)) for direction in DIRECTIONS
    )
    return grid(
        "paper/delays",
        rows,
        header=("circuits", *measures.delay_texts()),
        experts_ms=f"{1e3 * forward.busiest_expert_s:.0f}",
        attention_ms=f"{1e3 * backward.attention_s:.0f}",
    )


def control_grid(_: Evaluation) -> Grid:
    """Return the distribution of the times of OCS and NICs (figures 21 and 23)."""
    rows = []
    for pairs, mean_ms, late_ms in ((1, "41.44", "60"), (4, "42.44", "62"), (16, "46.75", "68")):
        times = (settle_ms(_PROFILE, pairs, quantile) for quantile in (None, *_QUANTILES))
        name = f"OCS, {pairs} pair{'s' * (pairs > 1)}, ms"
        rows += [
            (name, *(f"{time:.1f}" for time in times)),
            (f"{name}: paper", mean_ms, *(MISSING,) * 4, late_ms),
        ]
    seconds = (link_up_s(*_NIC, quantile) for quantile in (None, *_QUANTILES))
    rows.append(("NIC usable, s", *(f"{second:.2f}" for second in seconds)))
    rows.append(("NIC usable, s: paper", "5.67", *(MISSING,) * 4, "6.33"))
    header = ("time", "mean", *(f"{100 * quantile:.0f} %" for quantile in _QUANTILES))
    return grid("paper/control", rows, header=header)
