"""Values that studies take from runs on emulated fabrics."""

from collections.abc import Iterator

from moefabric.runner.result_model import FabricResult, RunResult


def of_fabric(run: RunResult, name: str) -> FabricResult:
    """Return the result of a run's fabric.

    Raises:
        KeyError: If the run has no fabric of this name.
    """
    return {result.fabric: result for result in run.results}[name]


def iteration_ratios(base: FabricResult, other: FabricResult) -> list[float]:
    """Return how many times as long each iteration takes on `base` as on `other`."""
    return [
        one.measured_s / two.measured_s
        for one, two in zip(base.iterations, other.iterations, strict=True)
        if one.measured_s and two.measured_s
    ]


def all_to_all_ratios(base: FabricResult, other: FabricResult) -> list[float]:
    """Return how many times as long each all-to-all takes on `base` as on `other`.

    Raises:
        ValueError: If the fabrics have other all-to-alls.
    """
    pairs = zip(base.collectives, other.collectives, strict=True)
    return [one.measured_s / two.measured_s for one, two in pairs if two.measured_s]


def port_bytes(fabric: FabricResult) -> list[int]:
    """Return the bytes of each iteration's all-to-alls, counted at ports."""
    return list(_port_bytes(fabric))


def _port_bytes(fabric: FabricResult) -> Iterator[int]:
    for iteration in fabric.iterations:
        own = (one for one in fabric.collectives if one.iteration == iteration.iteration)
        yield sum((one.bytes_by_light or 0) + (one.bytes_by_eps or 0) for one in own)
