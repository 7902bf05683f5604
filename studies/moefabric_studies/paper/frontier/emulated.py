"""Corner points with packets: runs of `examples/forwarding-*.yaml`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import Final

from moefabric import SpecError
from moefabric.api.results import FabricResult, read_run
from moefabric_studies.paper.frontier.results import Measured

_BASELINE: Final = "eps"
"""Policy to which the fabrics of a run are compared."""


def measured_points(file: Path) -> Iterator[Measured]:
    """Yield the fabrics of an emulated run.

    Args:
        file: JSON of the run.

    Raises:
        SpecError: If the file can't be read, or the run has no non-blocking EPS.
    """
    run = read_run(file)
    base_s = next((_measured_s(one) for one in run.results if one.policy == _BASELINE), None)
    if not base_s:
        raise SpecError([(str(file), f"has no iterations of policy {_BASELINE} to compare with")])
    for result in run.results:
        wiring, measured_s = result.wiring, _measured_s(result)
        if not measured_s:
            continue
        yield Measured(
            experiment=run.experiment,
            fabric=result.fabric,
            servers=wiring.servers,
            rate_bps=wiring.nic_rate_bps,
            optical=wiring.optical_nics,
            electrical=wiring.electrical_nics,
            verdict=str(result.fidelity.verdict),
            iteration_s=measured_s,
            predicted_s=_mean(one.predicted_s for one in result.iterations),
            iteration=measured_s / base_s,
            all_to_all=result.ratios.measured_vs_eps,
            predicted_all_to_all=result.ratios.predicted_vs_eps,
            efficiency=result.cost.perf_per_dollar_vs_eps,
        )


def _measured_s(result: FabricResult) -> float | None:
    return _mean(one.measured_s for one in result.iterations)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None
