"""Scale of rates, bytes and times at which this machine emulates a fabric faithfully."""

from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from typing import Final

from moefabric.core.resource_needs import CARRIED_BPS, RELAYED_BPS, SINGLE_PACKET_SHARE
from moefabric.core.topology import Fabric, capacity_bps, drops_packets
from moefabric.core.units import Scale
from moefabric.results.verdict import reasons
from moefabric.runtime.cpu_monitor import usable_cores

START_SPREAD_S: Final = 6e-3
START_SPREAD_PER_SERVER_S: Final = 1.5e-3
"""Time between the first and the last server's start of a collective: wake-up of the agents, and
CPU time of one core per server."""
START_SPREAD_SHARE: Final = 0.02
"""Largest tolerable start spread, as a share of a collective or of a transfer between regions.
What is shorter would measure its own start instead of the fabric."""


def scale_remarks(
    fabrics: Iterable[Fabric],
    scale: Scale,
    shortest_s: float,
    datapath: str,
    cores: int | None = None,
    together: int | None = None,
) -> list[str]:
    """Return why measurements at a scale mean little on this machine; each names the remedy.

    Args:
        fabrics: The emulated fabrics of the experiment, at real size.
        scale: The scale of the run.
        shortest_s: Shortest predicted collective or transfer, in model seconds.
        datapath: Datapath of the packet switches, a key of `CARRIED_BPS`.
        cores: Number of cores; those that this process may use by default.
        together: Number of servers that start a collective together; all by default.
    """
    cores, listed = cores or usable_cores(), list(fabrics)
    if not listed:
        return []
    rate_bps = min(scale.rate_bps(min(f.rates_bps)) for f in listed)
    carried_bps = max(scale.rate_bps(capacity_bps(f)) for f in listed)
    wall_s = shortest_s * scale.dilation
    frame_s = max(8 * (f.mtu + 14) / scale.rate_bps(min(f.rates_bps)) for f in listed)
    needed_s = shortest_wall_s(together or max(len(f.servers) for f in listed), cores)
    most_bps = _most_bps(listed, datapath, cores)
    nics, rates = int(most_bps / 1e6 / reasons.LEAST_MBPS), (carried_bps / 1e9, most_bps / 1e9)
    findings = [
        *reasons.SLOW_NICS.judge(rate_bps / 1e6, nics=nics, cores=cores),
        *reasons.FAST_NICS.judge(
            carried_bps / most_bps, gbps=rates[0], most_gbps=rates[1], cores=cores
        ),
    ]
    if wall_s:
        findings += [
            *reasons.LONG_FRAMES.judge(frame_s / wall_s),
            *reasons.SHORT_TRANSFERS.judge(
                wall_s / needed_s,
                shortest_ms=wall_s * 1e3,
                spread_ms=START_SPREAD_SHARE * needed_s * 1e3,
                dilation=ceil(needed_s / shortest_s),
            ),
        ]
    return [finding.text for finding in findings]


def propose_scale(
    fabrics: Iterable[Fabric],
    shortest_s: float,
    datapath: str,
    cores: int | None = None,
    together: int | None = None,
) -> Scale:
    """Return the scale at which the machine carries the fabric with the most NIC capacity.

    Byte factors are rounded up to readable numbers.

    Args:
        fabrics: The fabrics of the experiment, at real size.
        shortest_s: Shortest predicted collective or transfer, in model seconds.
        datapath: Datapath of the packet switches, a key of `CARRIED_BPS`.
        cores: Number of cores; those that this process may use by default.
        together: Number of servers that start a collective together; all by default.
    """
    cores, listed = cores or usable_cores(), list(fabrics)
    total_bps = max(capacity_bps(f) for f in listed)
    needed_s = shortest_wall_s(together or max(len(f.servers) for f in listed), cores)
    dilation = float(max(1, ceil(needed_s / shortest_s * (1 - 1e-9)))) if shortest_s > 0 else 1.0
    factor = max(1.0, total_bps / _most_bps(listed, datapath, cores))
    return Scale(bytes=_round_up(factor / dilation), dilation=dilation)


def _most_bps(fabrics: Sequence[Fabric], datapath: str, cores: int) -> float:
    """Return the traffic of all NICs together that the machine carries."""
    single_packets = any(drops_packets(fabric) for fabric in fabrics)
    most_bps = CARRIED_BPS[datapath] * cores * (SINGLE_PACKET_SHARE if single_packets else 1.0)
    return min(most_bps, RELAYED_BPS) if any(fabric.eps_link for fabric in fabrics) else most_bps


def shortest_wall_s(servers: int, cores: int) -> float:
    """Return the wall time that a collective of these servers must last to be measurable."""
    return (START_SPREAD_S + servers * START_SPREAD_PER_SERVER_S / cores) / START_SPREAD_SHARE


def _round_up(factor: float) -> float:
    """Return the next of 1, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten."""
    power = 10.0 ** max(0, floor(log10(factor) + 1e-12))
    steps = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    return next(step * power for step in steps if step * power >= factor * (1 - 1e-9))
