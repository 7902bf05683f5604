"""What a row of the tables can ask for: one number of the scene, by the name that the row's `measure` calls."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from moefabric.cost import Wired, cost_efficiency, network_usd, paper_network_usd
from moefabric.paper import failures
from moefabric.paper.iteration import of
from moefabric.paper.network import byte_rate, with_degree
from moefabric.paper.read import RowPart
from moefabric.paper.scene import Scene
from moefabric.units import NS_PER_S, duration_ns

SERVERS: Final = 128
_DEGREE: Final = 6

Measure = Callable[[Scene, RowPart, str, float], float]
"""A row's number for one of its jobs and one NIC rate."""


def _cost_ratio(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:  # noqa: ARG001 - a measure's
    """The base's cost to MixNet's, of 128 servers."""
    return paper_network_usd(row.base, SERVERS, rate_bps) / paper_network_usd("mixnet", SERVERS, rate_bps)


def _efficiency(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:
    """What a dollar of MixNet does to what a dollar of the base does."""
    mixnet, base = (
        scene.iteration(job, name, rate_bps, replicas=row.replicas).seconds for name in ("mixnet", row.base)
    )
    return cost_efficiency(
        mixnet, scene.usd(job, "mixnet", rate_bps), base, scene.usd(job, row.base, rate_bps)
    )


def _speed(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:
    """The base's iteration to MixNet's."""
    base, mixnet = (
        scene.iteration(job, name, rate_bps, replicas=row.replicas).seconds for name in (row.base, "mixnet")
    )
    return base / mixnet


def _circuits(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:  # noqa: ARG001 - a measure's
    """Circuits of a region."""
    return float(scene.all_to_all(job, "mixnet", rate_bps).circuits.sum() // 2)


def _share(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:  # noqa: ARG001 - a measure's
    """Per cent of an iteration of the production cluster."""
    return 100 * scene.measured_share(job, rate_bps)


def blocked_s(scene: Scene, job: str, rate_bps: float, delay_s: float) -> float:
    """Seconds of an iteration each of whose forward dispatches waits for light."""
    return scene.iteration(job, "mixnet", rate_bps, delay_s).seconds


def diverted_s(scene: Scene, job: str, rate_bps: float, delay_s: float) -> float:
    """Seconds of an iteration each of whose forward dispatches goes by the EPS until there is light.

    What the EPS has carried by then needs none; light and EPS then share the rest (spill).
    """
    sent = scene.all_to_all(job, "mixnet-spill", rate_bps)
    eps = scene.all_to_all(job, "fat-tree", rate_bps).dispatch_s * 8 / 2
    done = min(1.0, delay_s / eps)
    longer = min(delay_s, eps) + (1 - done) * sent.dispatch_s - sent.dispatch_s
    return of(scene.jobs[job], sent, 2 * byte_rate(rate_bps), longer).seconds


def _delay(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:
    """Per cent that an iteration gains by the shorter delay, blocking."""
    return _slower(blocked_s, scene, row, job, rate_bps)


def _diverted(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:
    """Per cent that an iteration gains by the shorter delay, diverting."""
    return _slower(diverted_s, scene, row, job, rate_bps)


def _slower(
    seconds: Callable[[Scene, str, float, float], float],
    scene: Scene,
    row: RowPart,
    job: str,
    rate_bps: float,
) -> float:
    long, short = (
        seconds(scene, job, rate_bps, duration_ns(delay) / NS_PER_S) for delay in (row.delay, row.base_delay)
    )
    return 100 * (long / short - 1)


def degree_s(scene: Scene, job: str, rate_bps: float, degree: int, *, spill: bool = False) -> float:
    """Seconds of an iteration with this optical degree, electrical NICs as slow or fast as MixNet's price of degree 6 leaves (section D.6)."""
    usd = network_usd(Wired(1, 8 - _DEGREE, _DEGREE), rate_bps)
    light, wires = network_usd(Wired(1, 0, degree), rate_bps), network_usd(Wired(1, 8 - degree), rate_bps)
    eps_rate = rate_bps * (usd - light) / wires
    electrical = 8 - degree
    sent = with_degree(scene.jobs[job], rate_bps, degree, electrical, eps_rate, spill=spill)
    return of(scene.jobs[job], sent, electrical * byte_rate(eps_rate)).seconds


def _degree(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:
    """One degree's iteration to the other's."""
    return degree_s(scene, job, rate_bps, row.degree) / degree_s(scene, job, rate_bps, row.base_degree)


def _failure(scene: Scene, row: RowPart, job: str, rate_bps: float) -> float:
    """Per cent that an iteration takes longer."""
    return 100 * failures.slow_down(scene.jobs[job], rate_bps, row.failed)


MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        "cost_ratio": _cost_ratio,
        "efficiency": _efficiency,
        "speed": _speed,
        "circuits": _circuits,
        "share": _share,
        "delay": _delay,
        "diverted": _diverted,
        "degree": _degree,
        "failure": _failure,
    }
)
"""Every measure, by the name that a row calls it."""
