"""Values that studies take from runs on emulated fabrics, and times of calls."""

from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter
from typing import Any, Final

from moefabric.api.results import FabricResult, Verdict, joined_phases

ONE_NIC: Final[dict[str, Any]] = {"optical": 0, "electrical": 1, "policy": "eps"}
"""Keys of a fabric whose servers have one NIC, on a packet switch."""


def one_nic_fabric(
    name: str, servers: int, rate_bps: float, byte_scale: float = 1.0
) -> dict[str, Any]:
    """Return the document of a fabric of servers with one GPU and one NIC on a packet switch."""
    return {
        "fabric": name,
        "gpus_per_server": 1,
        "nic_rate": f"{rate_bps}b/s",
        "regions": [{"servers": servers}],
        "nics": {"electrical": 1},
        "scale": {"bytes": byte_scale},
    }


def iteration_s(fabric: FabricResult) -> float:
    """Return the median of the iterations' measured seconds, also of a stored result."""
    times = (one.measured_s for one in fabric.iterations)
    return _figure(fabric, "iteration_s", times)


def exposed_s(fabric: FabricResult) -> float:
    """Return the median of the iterations' seconds without computation, also of a stored result."""
    times = (one.exposed_comm_s for one in fabric.iterations)
    return _figure(fabric, "exposed_comm_s", times)


def _figure(fabric: FabricResult, name: str, times: Iterable[float | None]) -> float:
    """Return a stored figure, or the median of the times that a run has."""
    return fabric.figures[name] if fabric.figures else median(filter(None, times))


def all_to_all_s(fabric: FabricResult) -> float:
    """Return the median of the all-to-alls' measured seconds."""
    return median(_all_to_alls(fabric))


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
    return [one / two for one, two in zip(_all_to_alls(base), _all_to_alls(other), strict=True)]


def _all_to_alls(fabric: FabricResult) -> list[float]:
    """Return the measured seconds of each all-to-all, over its phases and their pauses."""
    return [one.measured_s for one in joined_phases(fabric.collectives)]


def port_bytes(fabric: FabricResult) -> list[int]:
    """Return the bytes of each iteration's all-to-alls, counted at ports."""
    return [
        sum(
            (one.bytes_by_light or 0) + (one.bytes_by_eps or 0)
            for one in fabric.collectives
            if one.iteration == iteration.iteration
        )
        for iteration in fabric.iterations
    ]


def valid_fabrics(fabrics: Iterable[FabricResult]) -> list[FabricResult]:
    """Return the fabrics whose measurements tables and pictures may show."""
    return [one for one in fabrics if one.fidelity.verdict is not Verdict.INVALID]


def cells_of(fabric: FabricResult, *texts: str) -> tuple[str, ...]:
    """Return measured cells of a table; `invalid` for each if the fabric is."""
    return texts if valid_fabrics([fabric]) else ("invalid",) * len(texts)


def times_s(call: Callable[[], object], repetitions: int) -> list[float]:
    """Return the wall seconds of each of some equal calls."""
    times = []
    for _ in range(repetitions):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return times
