"""Iterations of the paper's testbed: 4 servers of 4 NICs (sections 6 and 7.2, figure 10)."""

from typing import Final

import numpy as np

from moefabric.paper import network
from moefabric.paper.iteration import compose_iteration
from moefabric.paper.job import PaperJob

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
    eps = network.dispatch_and_combine(
        lambda matrix: network.eps_s(matrix, nics),
        job.dispatch_bytes,
        combine_ratio=job.model.combine_ratio,
    )
    ports = np.full(n, _OPTICAL_NICS)
    mixnet = network.optical_all_to_all(job, "mixnet", ports, rate, electrical)
    return (
        compose_iteration(job, mixnet, _ELECTRICAL_NICS * rate).seconds
        / compose_iteration(job, eps, _NICS * rate).seconds
    )
