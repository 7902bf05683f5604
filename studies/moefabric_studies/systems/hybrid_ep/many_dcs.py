"""HybridEP on more data centres than a fabric here has: its own formula, without packets."""

from dataclasses import dataclass

from moefabric.api.networks import goodput_share
from moefabric_studies.grids import Grid, grid
from moefabric_studies.systems.hybrid_ep.setup import MB, Cluster, Setup
from moefabric_studies.systems.hybrid_ep.stream_model import (
    Level,
    MoeLayer,
    all_to_all_s,
    best_domains,
    candidates,
    layer_s,
)
from moefabric_studies.systems.study import Measure

WITH_BACKWARD = 4
"""All-to-alls of a layer, forward and backward."""
FORWARD_SHARE = 1 / 3
"""Part of a layer's computation in the forward pass; the backward pass takes twice as long."""
_FREE = 0
"""Domains of data centres that the formula chooses for each uplink."""


def goodput(rate_bps: float) -> float:
    """Return the bytes of payload per second of a link."""
    return rate_bps * goodput_share(1500) / 8


def levels_of(setup: Setup, dcs: int, uplink_bps: float) -> tuple[Level, Level]:
    """Return the levels of a cluster: data centres, and the servers of one."""
    return Level(dcs, goodput(uplink_bps) / setup.servers), Level(
        setup.servers, goodput(setup.nic_rate)
    )


def coded_layer(setup: Setup, tokens: float, experts: float, pre_expert_s: float) -> MoeLayer:
    """Return a layer of so many MB of tokens and of experts of a worker, which are coded."""
    return MoeLayer(tokens * MB, experts * MB / setup.compression, pre_expert_s)


def calibrated_compute_s(setup: Setup, cluster: Cluster) -> float:
    """Return the computation of a layer that gives the published time of HybridEP."""
    levels = levels_of(setup, cluster.dcs, setup.uplink_rate)
    layer = coded_layer(setup, setup.calibration_tokens, setup.expert, 0.0)
    domains = best_domains(layer, levels, all_to_alls=WITH_BACKWARD)
    all_to_alls_s = WITH_BACKWARD * all_to_all_s(layer, levels, domains)
    return cluster.calibration_s / setup.layers - all_to_alls_s


@dataclass(frozen=True)
class ManyDcs:
    """Gains over plain expert parallelism on `setup.many` data centres."""

    setup: Setup

    def gain(self, uplink_bps: float, size: int = _FREE) -> float:
        """Return the gain of an iteration with domains of so many data centres.

        Args:
            uplink_bps: Rate of the uplink of a data centre.
            size: Data centres of a domain. Default: as many as the formula chooses.
        """
        setup, many = self.setup, self.setup.many
        levels = levels_of(setup, many.dcs, uplink_bps)
        compute_s = calibrated_compute_s(setup, setup.clusters[-1])
        forward_s = compute_s * FORWARD_SHARE
        layer = coded_layer(setup, many.tokens, setup.expert, forward_s)

        def seconds(domains: tuple[int, ...]) -> float:
            communicating_s = layer_s(layer, levels, domains, all_to_alls=WITH_BACKWARD)
            return compute_s - forward_s + communicating_s

        chosen = candidates([many.dcs, setup.servers])
        return seconds((1, 1)) / min(map(seconds, (d for d in chosen if size in {_FREE, d[0]})))

    def measure(self) -> Measure:
        """Return the largest gain over all uplinks."""
        gains = {rate: self.gain(rate) for rate in self.setup.many.uplinks}
        best = max(gains, key=lambda rate: gains[rate])
        return Measure(gains[best], note=f"Uplinks of {best / 1e9:g} Gb/s.")

    def grid(self) -> Grid:
        """Return the gains by uplink and size of domains."""
        many = self.setup.many
        rows = [
            (f"{size or 'chosen'}", *(f"{self.gain(rate, size):.2f}x" for rate in many.uplinks))
            for size in (_FREE, *many.domains)
        ]
        rates = [f"{rate / 1e9:g} Gb/s" for rate in many.uplinks]
        header = ("data centres of a domain", *rates)
        return grid("systems/hybrid_ep/many", rows, header=header, dcs=f"{many.dcs:,}")
