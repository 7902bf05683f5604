"""Jobs of the paper whose expert-parallel groups fill regions of 8, 16 or 32 servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from moefabric import GatingTrace, read_gating
from moefabric.api.workloads import add_noise, repeat_for_servers
from moefabric_studies.paper import loader
from moefabric_studies.paper.job import GPUS_PER_SERVER, Counts, FloatArray, PaperJob

REGION_SIZES: Final = (8, 16, 32)
"""Servers of a region."""
LAYERS: Final = 4
"""MoE layers with different gating. An iteration has them in turn."""
_NOISE: Final = 0.1
"""Noise of the gating, as in `examples/beyond-paper.yaml`."""
_MOST_SEEDS: Final = 100
"""Shuffles of repeated experts that are tried for one that keeps servers unequal."""


@dataclass(frozen=True)
class RegionJob:
    """A job whose expert-parallel group fills a region.

    Attributes:
        model: Name of the model.
        servers: Servers of the region.
        layers: The job with the gating of each layer.
    """

    model: str
    servers: int
    layers: tuple[PaperJob, ...]

    @property
    def demands(self) -> tuple[FloatArray, ...]:
        """Bytes [server, server] of each layer's dispatch."""
        return tuple(layer.dispatch_bytes for layer in self.layers)


def region_jobs(
    folder: Path, jobs: Mapping[str, PaperJob], sizes: Sequence[int] = REGION_SIZES
) -> list[RegionJob]:
    """Return each job of `jobs.yaml` in regions of each size.

    Pipeline stages, replicas and micro-batches are the job's. A rank's GPUs are the job's, doubled
    up to a whole server until the model has an expert for each rank. If even whole servers are more
    ranks than experts, the model gets as many experts as ranks.

    Args:
        folder: Folder of `jobs.yaml`.
        jobs: The jobs by name, with the speed of their GPUs.
        sizes: Servers of the regions.

    Raises:
        SpecError: If a file can't be used.
    """
    specs = loader.load_section(loader.JobsFile, folder / "jobs.yaml").jobs
    result = []
    for number, spec in enumerate(specs):
        job, file = jobs[spec.name], spec.gating.file
        trace = None if file is None else read_gating(folder / file)
        for servers in sizes:
            layers = tuple(
                _layer_job(job, trace, spec.gating, servers, (number, layer))
                for layer in range(LAYERS)
            )
            result.append(RegionJob(spec.name, servers, layers))
    return result


def _layer_job(
    job: PaperJob,
    trace: GatingTrace | None,
    gating: loader.GatingMatrixSpec,
    servers: int,
    place: tuple[int, int],
) -> PaperJob:
    """Return a job with the gating of one layer; `place` has the numbers of job and layer."""
    gpus, tp = servers * GPUS_PER_SERVER, job.training.tp
    while tp < GPUS_PER_SERVER and gpus // tp > job.model.experts:
        tp *= 2
    ranks = gpus // tp
    experts = max(job.model.experts, ranks)
    model, training = replace(job.model, experts=experts), replace(job.training, ep=ranks, tp=tp)
    tokens = gating.generated(model, ranks, training.rank_tokens, gating.layer + place[1])
    if tokens is None:
        assert trace is not None
        recorded = trace.matrix(gating.step, gating.layer + place[1])
        repeated = _repeated(recorded, ranks, experts, servers)
        tokens = add_noise(repeated, _NOISE, place[0], (0, place[1], 0))
    return replace(job, model=model, training=training, gating=tokens)


def _repeated(recorded: Counts, ranks: int, experts: int, servers: int) -> Counts:
    """Repeat gating, with the first shuffle of experts that keeps servers unequal."""
    for seed in count(1):
        try:
            return repeat_for_servers(recorded, ranks, experts, servers, seed)
        except ValueError:
            if seed == _MOST_SEEDS:
                raise
    raise AssertionError("unreachable")


def training_trace_demands(file: Path, servers: int, step: int) -> list[FloatArray]:
    """Return demands of a recorded training run: every layer of every `step`-th step.

    Ranks and experts of the record are divided or repeated in order to fill the servers. The unit
    of the demand is a token.

    Args:
        file: The trace.
        servers: Servers, a multiple or a divisor of the ranks and of the experts.
        step: Distance of the steps.
    """
    tokens = read_gating(file).tokens[::step].astype(np.float64)
    for axis in (2, 3):
        recorded = tokens.shape[axis]
        if recorded >= servers:
            shape = (*tokens.shape[:axis], servers, recorded // servers, *tokens.shape[axis + 1 :])
            tokens = tokens.reshape(shape).sum(axis=axis + 1)
        else:
            tokens = np.repeat(tokens, servers // recorded, axis=axis)
    demands = tokens.reshape(-1, servers, servers) * (1 - np.eye(servers))
    return list(demands)
