"""Scale of rates, bytes and times at which a machine emulates a fabric faithfully.

Traffic costs CPU time by the frame, and frames are 64 KB at most. So three things bound a scale:
the cores, which carry so many frames a second; the frames, of which the shortest transfer needs
enough; and the time until all agents have started, which must be short against it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil, inf
from statistics import fmean
from typing import Final

from moefabric.core.machine_speed import (
    LEAST_SEGMENTS,
    MachineSpeed,
    fabric_frame_segments,
    frame_bits,
)
from moefabric.core.resource_needs import RELAYED_BPS
from moefabric.core.topology import Fabric, capacity_bps, drops_packets
from moefabric.core.units import Scale, round_up
from moefabric.prediction.job_prediction import JobPrediction
from moefabric.results.verdict import reasons
from moefabric.runtime.cpu_monitor import usable_cores
from moefabric.runtime.measured_speed import machine_speed

START_SPREAD_SHARE: Final = 0.004
"""Largest lateness of a start, as a share of a collective or of a transfer between regions. It is
most of the error of a collective."""
FRAME_SHARE: Final = 0.01
"""Longest frame, as a share of the shortest transfer: where flows of several tasks meet on a link,
their shares and ends are uncertain by a frame or two."""
MEETING_FRAME_SHARE: Final = 0.003
"""Longest frame, as a share of the shortest transfer or all-reduce between regions, as far as the
cores have time for shorter frames: both meet all-to-alls on their links."""
BUSY_SHARE: Final = 0.5
"""Part of the cores that the planned frames may occupy; a run needs 35 % idle (`reasons.BUSY`)."""
MOST_BPS: Final = 500e6
"""Highest rate of a link: frames of 64 KB last a millisecond, for which the kernel's timers are
precise enough."""


@dataclass(frozen=True)
class PlannedLoad:
    """Load of an experiment's iterations on a fabric, in model units.

    Attributes:
        fabric: The fabric.
        shortest_s: Duration of the shortest collective or transfer; 0 if nothing is sent.
        link_bps: Sum of the rates of all links at the busiest instant.
        starts: Numbers of transfers that start together, each with the shortest duration of a task
            that has as many.
        unskipped_s: Duration of an iteration in which a task sends or all wait for circuits. A run
            skips the rest, in which servers compute.
        shortest_transfer_s: Duration of the shortest transfer or all-reduce between regions;
            infinite if there is none.
    """

    fabric: Fabric
    shortest_s: float
    link_bps: float
    starts: Mapping[int, float]
    unskipped_s: float = 0.0
    shortest_transfer_s: float = inf

    @classmethod
    def of(cls, fabric: Fabric, jobs: Sequence[JobPrediction]) -> "PlannedLoad":
        """Return the load of an iteration of jobs side by side on the servers of a fabric."""
        servers, changes = set(fabric.servers), list[tuple[float, float]]()
        sent = list[tuple[float, float, float]]()
        starts = defaultdict[int, float](lambda: inf)
        for sending in chain.from_iterable(job.sendings for job in jobs):
            own = [s for s in sending.streams if not servers.isdisjoint(_servers(s.links))]
            if not own or sending.end_s <= sending.start_s:
                continue
            bits = sum(8 * stream.bytes * len(stream.links) for stream in own)
            rate_bps = bits / (sending.end_s - sending.start_s)
            sent.append((sending.start_s, sending.end_s, rate_bps))
            starts[len(own)] = min(starts[len(own)], sending.alone_s)
        link_bps = busiest_bps = sending_s = 0.0
        sent_until = 0.0
        for start_s, end_s, rate_bps in sorted(sent):
            sending_s += max(0.0, end_s - max(start_s, sent_until))
            sent_until = max(sent_until, end_s)
            changes += [(start_s, rate_bps), (end_s, -rate_bps)]
        for _, change in sorted(changes):
            link_bps += change
            busiest_bps = max(busiest_bps, link_bps)
        transfer_s = min(chain.from_iterable(job.transfers_s for job in jobs), default=inf)
        all_to_alls_s = chain.from_iterable(job.all_to_alls_s.values() for job in jobs)
        shortest_s = min(transfer_s, min(all_to_alls_s, default=inf))
        shortest_s = 0.0 if shortest_s == inf else shortest_s
        exposed_s = max((job.seconds - job.compute_s for job in jobs), default=0.0)
        unskipped_s = max(exposed_s, sending_s)
        return cls(fabric, shortest_s, busiest_bps, starts, unskipped_s, transfer_s)

    @classmethod
    def greatest(cls, loads: Sequence["PlannedLoad"]) -> "PlannedLoad":
        """Return what several iterations on one fabric need: of each figure the one that binds."""
        starts = defaultdict[int, float](lambda: inf)
        for flows, seconds in chain.from_iterable(load.starts.items() for load in loads):
            starts[flows] = min(starts[flows], seconds)
        return cls(
            loads[0].fabric,
            min(load.shortest_s for load in loads),
            max(load.link_bps for load in loads),
            starts,
            fmean(load.unskipped_s for load in loads),
            min(load.shortest_transfer_s for load in loads),
        )

    def start_dilation(self, machine: MachineSpeed, cores: int) -> float:
        """Return the least dilation at which no task is mostly the start of its transfers."""
        return max(
            (
                machine.start_spread_s(flows, cores) / START_SPREAD_SHARE / seconds
                for flows, seconds in self.starts.items()
            ),
            default=1.0,
        )


def _servers(links: Iterable[tuple[str, str]]) -> set[str]:
    """Return the servers whose NICs are ends of links."""
    return {end.partition("/")[0] for link in links for end in link if "/" in end}


@dataclass(frozen=True)
class ProposedScale:
    """A scale, and what keeps its dilation from being less if it was chosen for a machine.

    Attributes:
        scale: The scale.
        bound: What bounds its dilation; None for a scale that was given.
    """

    scale: Scale
    bound: str | None = None


def propose_scale(
    loads: Iterable[PlannedLoad],
    datapath: str,
    machine: MachineSpeed | None = None,
    cores: int | None = None,
) -> ProposedScale:
    """Return the scale of least dilation at which the machine emulates all loads faithfully.

    Factors are rounded up to two digits; dilations of 100 and more to whole numbers.

    Args:
        loads: The loads of the experiment's fabrics.
        datapath: Datapath of the packet switches.
        machine: Speed of the machine; the measured one by default.
        cores: Number of cores; those that this process may use by default.
    """
    listed, machine, cores = list(loads), machine or machine_speed(), cores or usable_cores()
    shortest_s = min(load.shortest_s for load in listed)
    slowing = max(_least_slowing(load, datapath, machine, cores) for load in listed)
    frame_s = max(
        frame_bits(_segments(load.fabric), load.fabric.mtu) * slowing / min(load.fabric.rates_bps)
        for load in listed
    )
    dilation, bound = 1.0, "nothing"
    if shortest_s:
        dilation, bound = max(
            (1.0, bound),
            (max(load.start_dilation(machine, cores) for load in listed), "the start of agents"),
            (frame_s / FRAME_SHARE / shortest_s, f"frames of {1e3 * frame_s:.2g} ms"),
        )
    dilation = min(round_up(dilation), float(ceil(dilation * (1 - 1e-9))))
    slowing = max(slowing, dilation)
    transfer_s = min(load.shortest_transfer_s for load in listed)
    longest_s = min(FRAME_SHARE * shortest_s, MEETING_FRAME_SHARE * transfer_s) * dilation
    longest_s = longest_s or Scale.frame_s
    return ProposedScale(Scale(round_up(slowing / dilation), dilation, longest_s), bound)


def _least_slowing(load: PlannedLoad, datapath: str, machine: MachineSpeed, cores: int) -> float:
    """Return the least factor between the rates of the model and those on the wire."""
    fabric, fastest_bps = load.fabric, max(load.fabric.rates_bps)
    segments = _segments(fabric)
    frames = load.link_bps / frame_bits(segments, fabric.mtu)
    needed = frames * machine.link_frame_s(fabric, segments, datapath)
    slowing = needed / (BUSY_SHARE * cores)
    if fabric.eps_link:
        slowing = max(slowing, capacity_bps(fabric) / RELAYED_BPS)
    return max(slowing, fastest_bps / MOST_BPS, 1.0)


def _segments(fabric: Fabric) -> int:
    """Return the number of packets in a frame where the cores bound the scale.

    The smallest frames take the least time on a link, and the least of a core each.
    """
    if drops_packets(fabric):
        return 1
    return LEAST_SEGMENTS


def scale_remarks(
    loads: Iterable[PlannedLoad],
    scale: Scale,
    datapath: str,
    machine: MachineSpeed | None = None,
    cores: int | None = None,
) -> list[str]:
    """Return why measurements at a scale mean little on this machine; each names the remedy.

    Args:
        loads: The loads of the experiment's fabrics.
        scale: The scale of the run.
        datapath: Datapath of the packet switches.
        machine: Speed of the machine; the measured one by default.
        cores: Number of cores; those that this process may use by default.
    """
    listed, machine, cores = list(loads), machine or machine_speed(), cores or usable_cores()
    if not listed:
        return []
    shortest_s = min(load.shortest_s for load in listed)
    wall_s = shortest_s * scale.dilation
    fabrics = [replace(load.fabric, scale=scale) for load in listed]
    needed = max(
        machine.cores(fabric, load.link_bps, datapath)
        for fabric, load in zip(fabrics, listed, strict=True)
    )
    findings = [*reasons.FAST_NICS.judge(needed / cores, cores=cores, needed=needed)]
    if wall_s:
        frame_s = max(
            frame_bits(fabric_frame_segments(fabric), fabric.mtu)
            / scale.rate_bps(min(fabric.rates_bps))
            for fabric in fabrics
        )
        needed = max(load.start_dilation(machine, cores) for load in listed)
        findings += [
            *reasons.LONG_FRAMES.judge(frame_s / wall_s),
            *reasons.SHORT_TRANSFERS.judge(
                scale.dilation / needed, shortest_ms=wall_s * 1e3, dilation=ceil(needed)
            ),
        ]
    return [finding.text for finding in findings]


def dark_time_remarks(fabric: Fabric, scale: Scale) -> list[str]:
    """Return that dark times of emulated OCSes are too short at a scale, if so, with the remedy."""
    ocses = [region.ocs for region in fabric.regions if region.ocs]
    times_ns = [ocs.settle_ns + ocs.link_up.fixed_ns for ocs in ocses if not ocs.control.address]
    model_ms = min(filter(None, times_ns), default=inf) / 1e6 / fabric.scale.dilation
    dilation = ceil((reasons.SHORT_DARK_TIME.bounds[0] or 0.0) / model_ms)
    findings = reasons.SHORT_DARK_TIME.judge(model_ms * scale.dilation, dilation=dilation)
    return [finding.text for finding in findings]


def shortest_wall_s(servers: int, cores: int) -> float:
    """Return the wall time that a collective of these servers must last to be measurable."""
    flows = servers * (servers - 1)
    return machine_speed().start_spread_s(flows, cores) / START_SPREAD_SHARE
