"""All-to-alls on a fat-tree whose flows are hashed onto paths.

The public simulator's fat-tree has a host for each GPU, a leaf for each server, and one random path
for each flow. Flows then share uplinks unevenly, which the fluid model's even spreading doesn't.
"""

from statistics import mean
from typing import Final

import numpy as np

from moefabric_studies.paper.job import GPUS_PER_SERVER, FloatArray, PaperJob

_TRIALS: Final = 50
_SEED: Final = 1


def hashed_to_spread(job: PaperJob) -> float:
    """Return the all-to-all with hashed flows, relative to evenly spread ones, on average.

    A flow goes from each GPU of a rank to the GPU of the same number of another rank. Its path is
    one of 8, which is its uplink at one leaf and its downlink at the other.
    """
    generator, both = np.random.default_rng(_SEED), (job.token_matrix, job.token_matrix.T)
    times = [sum(_busiest_link(job, tokens, generator) for tokens in both) for _ in range(_TRIALS)]
    spread = sum(_busiest_nic(job, tokens) for tokens in both)
    return mean(times) / spread


def _busiest_nic(job: PaperJob, tokens: FloatArray) -> float:
    """Return the tokens at the busiest server, spread over its NICs."""
    n, ranks = job.servers, job.training.ep // job.servers
    by_server = tokens.reshape(n, ranks, n, ranks).sum(axis=(1, 3))
    np.fill_diagonal(by_server, 0.0)
    return float(max(by_server.sum(axis=0).max(), by_server.sum(axis=1).max())) / GPUS_PER_SERVER


def _busiest_link(job: PaperJob, tokens: FloatArray, generator: np.random.Generator) -> float:
    """Return the tokens on the busiest link of NICs and leaves, with a random path for a flow."""
    tp = job.training.tp
    source, target = (axis.ravel() for axis in np.indices(tokens.shape))
    gpus = np.arange(tp)
    sender = (source[:, None] * tp + gpus).ravel()
    receiver = (target[:, None] * tp + gpus).ravel()
    size = np.repeat(tokens.ravel() / tp, tp)
    remote = sender // GPUS_PER_SERVER != receiver // GPUS_PER_SERVER
    sender, receiver, size = sender[remote], receiver[remote], size[remote]
    path = generator.integers(GPUS_PER_SERVER, size=len(size))
    links = (
        sender,
        receiver,
        sender // GPUS_PER_SERVER * GPUS_PER_SERVER + path,
        receiver // GPUS_PER_SERVER * GPUS_PER_SERVER + path,
    )
    return float(max(np.bincount(link, weights=size).max() for link in links))
