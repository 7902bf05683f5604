"""Values of rows on other hardware: the testbed of the paper, optical I/O, and OCSes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import mean, quantiles
from typing import Final

import numpy as np

from moefabric import NS_PER_S, duration_ns
from moefabric.api.plugins import load_profile
from moefabric.api.testbeds import Activation, RandomTime, Settling
from moefabric.api.workloads import DIRECTIONS
from moefabric_studies.paper import network
from moefabric_studies.paper.iteration import compose_iteration
from moefabric_studies.paper.job import PaperJob

_DOMAINS: Final = 2
"""Scale-up domains of an EP group of 128 ranks; 64 GPUs of a domain are used."""
_EP: Final = 128
_GPU_FLOPS: Final = 2.5e15
"""Peak bfloat16 FLOPs per second of a GPU of GB200 NVL72, without sparsity: 180e15 of 72.

A B200 of an HGX server has 2.25e15. The paper names no GPU.
"""
_NVLINK_BPS: Final = 7.2e12
_ETHERNET_BPS: Final = 0.8e12
_PASSES: Final = 2


def nvl72_to_mixnet(job: PaperJob) -> float:
    """Return the iteration time on NVL72 domains, relative to MixNet with optical I/O.

    Both give a GPU 8 Tb/s. NVL72 has 7.2 Tb/s of NVLink inside a domain and 0.8 Tb/s of Ethernet
    between domains. MixNet halves the 7.2 Tb/s between NVLink and the OCS, which then connects the
    domains of an EP group. Demand is even, each copy of a token is sent to its
    expert, and a layer is compute and four all-to-alls.

    Args:
        job: the DeepSeek job whose model and tokens are used.
    """
    training = replace(job.training, ep=_EP, gpu_flops=_GPU_FLOPS)
    model, copies = job.model, job.training.rank_tokens * job.model.top_k
    layer_bits = 8 * _PASSES * copies * (model.dispatch_token_bytes + model.combine_token_bytes)
    between_bits = layer_bits * (_DOMAINS - 1) / _DOMAINS
    within_bits = layer_bits / _DOMAINS
    compute_s = sum(
        training.attention_s(model, direction) + training.expert_s(model, copies, direction)
        for direction in DIRECTIONS
    )

    def layer_s(within_bps: float, between_bps: float) -> float:
        return compute_s + max(within_bits / within_bps, between_bits / between_bps)

    return layer_s(_NVLINK_BPS, _ETHERNET_BPS) / layer_s(_NVLINK_BPS / 2, _NVLINK_BPS / 2)


_OPTICAL_NICS: Final = 3
_ELECTRICAL_NICS: Final = 1
_NICS: Final = _OPTICAL_NICS + _ELECTRICAL_NICS
_RATE_BPS: Final = 100e9


def mixnet_to_eps(job: PaperJob) -> float:
    """Return the iteration time over 3 optical NICs and 1 electrical one, relative to 4 electrical.

    Circuits are lit before the iteration starts: the paper's figure excludes their activation.
    """
    rate, n = network.nic_bytes_s(_RATE_BPS), job.servers
    nics, electrical = np.full(n, _NICS * rate), np.full(n, _ELECTRICAL_NICS * rate)
    eps = network.dispatch_and_combine(lambda matrix: network.eps_s(matrix, nics), job)
    ports = np.full(n, _OPTICAL_NICS)
    mixnet = network.optical_all_to_all(job, "mixnet", ports, rate, electrical)
    return (
        compose_iteration(job, mixnet, _ELECTRICAL_NICS * rate).seconds
        / compose_iteration(job, eps, _NICS * rate).seconds
    )


_COMMANDS: Final = 4000
"""Commands of which the settle times are drawn."""


def ocs_ports(profile: str) -> float:
    """Return the number of ports of a profile's switch; 0 for no limit."""
    return float(load_profile(profile).ports or 0)


def settle_ms(profile: str, pairs: int, quantile: float | None) -> float:
    """Return the milliseconds that a command takes until all of its pairs have light.

    They are drawn from the settle times of the emulated device. A pair is two cross-connects.

    Args:
        profile: name of a shipped profile.
        pairs: pairs of ports that the command connects.
        quantile: quantile of the commands' times; None is their mean.
    """
    return _statistic(_command_ms(profile, pairs), quantile)


def _statistic(times: Sequence[float], quantile: float | None) -> float:
    return mean(times) if quantile is None else quantiles(times, n=1000)[round(1000 * quantile) - 1]


@cache
def _command_ms(profile: str, pairs: int) -> tuple[float, ...]:
    settling = Settling(load_profile(profile).settle, f"{pairs} pairs")
    added = [(port, port) for port in range(2 * pairs)]
    return tuple(max(settling.times_ns(added, conflicts=False)) / 1e6 for _ in range(_COMMANDS))


def link_up_s(link_up: str, jitter: str, quantile: float | None) -> float:
    """Return the seconds from light to a usable link, drawn as the emulated device does.

    Args:
        link_up: mean time.
        jitter: its standard deviation.
        quantile: quantile of the times; None is their mean.
    """
    time = RandomTime(duration_ns(link_up), duration_ns(jitter), "normal")
    activation = Activation(time, link_up)
    return _statistic([activation.time_ns() / NS_PER_S for _ in range(_COMMANDS)], quantile)


def link_up_share(profile: str, link_up: str) -> float:
    """Return the part of a control cycle in which transceivers and NICs become ready, in per cent.

    Args:
        profile: name of a shipped profile.
        link_up: time from light to a usable link.
    """
    link_up_ms = duration_ns(link_up) / NS_PER_S * 1e3
    return 100 * link_up_ms / (link_up_ms + settle_ms(profile, 1, None))
