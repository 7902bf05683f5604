"""DeepSeek-V3 on servers of 64 GPUs, with and without optical I/O (paper section 8)."""

from dataclasses import replace
from typing import Final

from moefabric.paper.job import PaperJob
from moefabric.workload.model import DIRECTIONS

_DOMAINS: Final = 2
"""Scale-up domains of an EP group of 128 ranks; 64 GPUs of a domain are used."""
_EP: Final = 128
_GPU_FLOPS: Final = 2.5e15
"""Peak bfloat16 FLOPs per second of a Blackwell GPU, without sparsity. The paper names none."""
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
