"""Aims of this project beyond the paper. They are counted apart from the paper's rows."""

from collections.abc import Callable
from itertools import product
from typing import Final

from moefabric_studies.paper import loader, rows
from moefabric_studies.paper.evaluation import RATES, Evaluation
from moefabric_studies.paper.iteration import overlapped_iteration
from moefabric_studies.paper.network import NETWORKS
from moefabric_studies.paper.rows import PaperRow, PaperTable
from moefabric_studies.paper.tables import measured

_NETWORKS: Final = ("mixnet-spill", "mixnet-joint")
Seconds = Callable[[Evaluation, str, str, float], float]
"""Time of a job on a network at a NIC rate."""


def aims_table(spec: loader.AimsSpec, evaluation: Evaluation) -> PaperTable:
    """Return the aims, without values that have not been measured.

    Rows have the worst rate of each model and policy, compared with the non-blocking EPS.
    """
    built = []
    ratios: tuple[tuple[str, Seconds, float], ...] = (
        (": all-to-all", all_to_all_s, spec.all_to_all),
        (": iteration", iteration_s, spec.iteration),
        (" overlapped: iteration", overlapped_s, spec.iteration),
    )
    for group in (ratios[:2], ratios[2:]):
        for network, job, (suffix, seconds, aim) in product(_NETWORKS, evaluation.jobs, group):
            for value in measured(worst_ratio, seconds, evaluation, job, network):
                verdict = rows.INVALID if value is None else rows.MISSED
                if value is not None and value <= aim:
                    verdict = rows.MET
                built.append(PaperRow(network + suffix, job, None, (None, aim), value, verdict))
    return PaperTable("aims", spec.title, spec.source, tuple(built), spec.why)


def worst_ratio(seconds: Seconds, evaluation: Evaluation, job: str, network: str) -> float:
    """Return the largest time over all NIC rates, relative to that on the non-blocking EPS."""
    return max(
        seconds(evaluation, job, network, rate) / seconds(evaluation, job, "fat-tree", rate)
        for rate in RATES
    )


def all_to_all_s(evaluation: Evaluation, job: str, network: str, rate: float) -> float:
    """Return the time of a layer's all-to-alls."""
    return evaluation.all_to_all(job, network, rate).layer_s


def iteration_s(evaluation: Evaluation, job: str, network: str, rate: float) -> float:
    """Return the time of an iteration."""
    return evaluation.iteration(job, network, rate).seconds


def overlapped_s(evaluation: Evaluation, job: str, network: str, rate: float) -> float:
    """Return the time of an iteration with overlapped pipeline transfers."""
    all_to_all = evaluation.all_to_all(job, network, rate)
    electrical = NETWORKS[network].electrical
    return overlapped_iteration(evaluation.jobs[job], all_to_all, electrical, rate).seconds
