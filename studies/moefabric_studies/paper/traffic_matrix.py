"""Bytes between all GPUs of the measured jobs, of all kinds of parallelism (figure 5)."""

from math import log10
from typing import Final

import numpy as np

from moefabric.api.charts import Axis, Box, Mark, Panel, document_picture, formatting
from moefabric.api.predictions import Parallelism
from moefabric_studies.paper.evaluation import Evaluation
from moefabric_studies.paper.job import GPUS_PER_SERVER, FloatArray, PaperJob

JOB: Final = "mixtral-8x7b"
"""Job of figure 5."""
_COLOURS: Final[dict[Parallelism, str]] = {
    "tensor": "k-tensor",
    "expert": "k-dispatch",
    "pipeline": "light",
    "data": "by-eps",
}
_DECADES: Final = 4.0
"""Powers of ten from the faintest cell to the darkest."""
_SIZE: Final = 640.0


def part_within(job: PaperJob, kinds: list[Parallelism], gpus: int) -> float:
    """Return the part of the bytes of some kinds that stays inside groups of successive GPUs.

    Args:
        job: The job.
        kinds: Kinds of parallelism; none for all.
        gpus: GPUs of a group.
    """
    traffic = job.gpu_traffic
    total: FloatArray = np.sum([traffic[kind] for kind in kinds or traffic], axis=0)
    group = np.arange(len(total)) // gpus
    return float(total[group[:, None] == group].sum() / total.sum())


def traffic_picture(evaluation: Evaluation) -> str:
    """Draw the matrix of a job, darker for more bytes on a logarithmic scale."""
    job = evaluation.production_jobs[JOB]
    traffic, region = job.gpu_traffic, job.servers * GPUS_PER_SERVER
    largest, marks = max(matrix.max() for matrix in traffic.values()), list[Mark]()
    for kind, colour in _COLOURS.items():
        matrix = traffic[kind]
        for src, dst in np.argwhere(matrix).tolist():
            shade = max(0.15, 1 + log10(matrix[src, dst] / largest) / _DECADES)
            place = (dst, dst + 1), (src, src + 1)
            marks.append(Box(*place, colour, opacity=round(shade, 2)))
    starts = {float(gpu): f"{gpu}" for gpu in range(0, job.gpus + 1, region)}
    axes = Axis(0, job.gpus, starts, "to GPU"), Axis(job.gpus, 0, starts, "from GPU")
    legend = [
        (colour, f"{kind}, {formatting.data_size(float(traffic[kind].sum()))}")
        for kind, colour in _COLOURS.items()
    ]
    title = f"Bytes between {job.gpus} GPUs in an iteration of {JOB}; lines: pipeline stages"
    return document_picture(title, [Panel(*axes, marks, _SIZE)], legend=legend)
