"""Quantities that rows of the tables compute, by the names that the rows use."""

from collections.abc import Callable, Mapping
from typing import Final

from moefabric import NS_PER_S, duration_ns, duration_text
from moefabric.api.networks import network_cost
from moefabric.api.workloads import DIRECTIONS
from moefabric_studies.paper import network
from moefabric_studies.paper.evaluation import Evaluation
from moefabric_studies.paper.failures import slow_down
from moefabric_studies.paper.iteration import compose_iteration
from moefabric_studies.paper.job import GPUS_PER_SERVER, PaperJob
from moefabric_studies.paper.loader import RowSpec
from moefabric_studies.paper.other_hardware import (
    link_up_s,
    link_up_share,
    mixnet_to_eps,
    nvl72_to_mixnet,
    ocs_ports,
    settle_ms,
)
from moefabric_studies.paper.traffic_matrix import part_within

SERVERS: Final = 128
DELAYS_S: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 25e-3, 0.1, 1.0, 10.0)
"""Reconfiguration delays of figure 28."""
DEGREES: Final = (2, 3, 4, 5, 6, 7)
"""Optical degrees of figure 27."""

Measure = Callable[[Evaluation, RowSpec, str, float], float]
"""Value of a row for one of its jobs and one NIC rate."""
IterationSeconds = Callable[[Evaluation, str, float, float], float]
"""Seconds of an iteration of a job at a NIC rate, with a reconfiguration delay."""


def efficiency(
    evaluation: Evaluation, job: str, name: str, base: str, rate_bps: float, replicas: int = 1
) -> float:
    """Return the performance per dollar of the network `name`, relative to the network `base`."""
    network_values, base_values = (
        (
            evaluation.iteration(job, compared, rate_bps, replicas=replicas).seconds,
            evaluation.usd(job, compared, rate_bps),
        )
        for compared in (name, base)
    )
    return network_cost.performance_per_dollar_ratio(*network_values, *base_values)


def price_ratio(evaluation: Evaluation, row: RowSpec, job: str, rate_bps: float) -> float:
    """Return the ratio of the prices of a row's networks: its efficiency if iterations are equal.

    This is the null model of the rows of performance per dollar.
    """
    return evaluation.usd(job, row.base, rate_bps) / evaluation.usd(job, row.network, rate_bps)


def _cost_ratio_dac(_: Evaluation, row: RowSpec, __: str, rate_bps: float) -> float:
    """Return a cost ratio with copper between electrical NICs and their leaves (section D.3)."""
    return copper_usd(row.base, 1, rate_bps) / copper_usd(row.network, 1, rate_bps)


def copper_usd(name: str, servers: int, rate_bps: float) -> float:
    """Return a network's price with copper between electrical NICs and their leaves.

    Each electrical NIC saves two transceivers and a fibre. The cable costs nothing here: the paper
    gives no price.
    """
    saved_usd = 2 * network_cost.prices(rate_bps).transceiver + network_cost.FIBRE_USD
    saved_usd *= servers * network_cost.NETWORKS[name].electrical
    return network_cost.paper_network_usd(name, servers, rate_bps) - saved_usd


def _speed(evaluation: Evaluation, row: RowSpec, job: str, rate_bps: float) -> float:
    base, mixnet = (
        evaluation.iteration(
            job, name, rate_bps, replicas=row.replicas, micro_batch=row.micro_batch
        ).seconds
        for name in (row.base, row.network)
    )
    return base / mixnet


def _traffic_percent(evaluation: Evaluation, row: RowSpec, job: str, _: float) -> float:
    """Return the part of a production job's bytes that some kinds of parallelism send."""
    traffic = evaluation.production_jobs[job].gpu_traffic
    sent = {kind: float(matrix.sum()) for kind, matrix in traffic.items()}
    return 100 * sum(sent[kind] for kind in row.parallelism) / sum(sent.values())


def _within_percent(evaluation: Evaluation, row: RowSpec, job: str, _: float) -> float:
    """Return the part of a production job's bytes that stays in its servers, or in its stages."""
    production = evaluation.production_jobs[job]
    gpus = GPUS_PER_SERVER * (1 if row.gpus == "server" else production.servers)
    return 100 * part_within(production, row.parallelism, gpus)


def _expert_ms(evaluation: Evaluation, row: RowSpec, job: str, __: float) -> float:
    """Return the milliseconds for which the busiest expert of a measured job computes."""
    jobs = evaluation.production_jobs if row.cluster == "production" else evaluation.testbed_jobs
    times = jobs[job].with_micro_batch(row.micro_batch).layer_times(directions=("forward",))
    return 1e3 * times.busiest_expert_s


def blocked_iteration_s(evaluation: Evaluation, job: str, rate_bps: float, delay_s: float) -> float:
    """Return the seconds of a MixNet iteration whose forward dispatches wait for circuits."""
    return evaluation.iteration(job, "mixnet", rate_bps, delay_s).seconds


def hidden_iteration_s(evaluation: Evaluation, job: str, rate_bps: float, delay_s: float) -> float:
    """Return the seconds of an iteration whose circuits change during computation (section D.7).

    They change while experts compute, before the combine, and while the attention of the layer
    above computes backward. A dispatch finds the circuits of the layer before, which are taken to
    be as good as its own.
    """
    forward, backward = (
        evaluation.jobs[job].layer_times(directions=(direction,)) for direction in DIRECTIONS
    )
    exposed_s = max(0.0, delay_s - forward.busiest_expert_s)
    exposed_s += max(0.0, delay_s - backward.attention_s)
    return blocked_iteration_s(evaluation, job, rate_bps, exposed_s)


def delay_texts() -> list[str]:
    """Return the delays of figure 28 as text."""
    texts = (duration_text(round(delay * NS_PER_S)) for delay in DELAYS_S)
    return [text.replace("us", " µs").replace("ms", " ms") for text in texts]


def diverted_iteration_s(
    evaluation: Evaluation, job: str, rate_bps: float, delay_s: float
) -> float:
    """Return the seconds of an iteration whose forward dispatches are diverted.

    They use the EPS until their circuits are lit. Circuits and EPS then share the remaining bytes
    (spill).
    """
    all_to_all = evaluation.all_to_all(job, "mixnet-spill", rate_bps)
    eps_s = evaluation.all_to_all(job, "fat-tree", rate_bps).dispatch_s * GPUS_PER_SERVER / 2
    sent = min(1.0, delay_s / eps_s)
    dispatch_s = min(delay_s, eps_s) + (1 - sent) * all_to_all.dispatch_s
    added_s = dispatch_s - all_to_all.dispatch_s
    eps_bytes_s = 2 * network.nic_bytes_s(rate_bps)
    return compose_iteration(evaluation.jobs[job], all_to_all, eps_bytes_s, added_s).seconds


def _delay_percent(evaluation: Evaluation, row: RowSpec, job: str, rate_bps: float) -> float:
    """Return the additional time of an iteration with the longer delay."""
    long, short = (
        blocked_iteration_s(evaluation, job, rate_bps, duration_ns(delay) / NS_PER_S)
        for delay in (row.delay, row.base_delay)
    )
    return 100 * (long / short - 1)


def degree_iteration_s(
    job: PaperJob, rate_bps: float, degree: int, policy: network.PlanningPolicy = "mixnet"
) -> float:
    """Return the seconds of an iteration with this optical degree at equal cost (section D.6).

    The electrical NICs have the rate that the price of MixNet with degree 6 leaves for them.
    """
    electrical = GPUS_PER_SERVER - degree

    def usd(electrical_nics: int, optical_nics: int) -> float:
        inventory = network_cost.NetworkInventory(1, electrical_nics, optical_nics)
        return network_cost.network_usd(inventory, rate_bps)

    electrical_usd = usd(network.ELECTRICAL_NICS, network.OPTICAL_NICS) - usd(0, degree)
    eps_rate_bps = rate_bps * electrical_usd / usd(electrical, 0)
    all_to_all = network.mixnet_all_to_all(job, rate_bps, policy, degree, eps_rate_bps)
    eps_bytes_s = electrical * network.nic_bytes_s(eps_rate_bps)
    return compose_iteration(job, all_to_all, eps_bytes_s).seconds


MEASURES: Final[Mapping[str, Measure]] = {
    "cost_ratio": lambda _, row, __, rate: (
        network_cost.paper_network_usd(row.base, SERVERS, rate)
        / network_cost.paper_network_usd(row.network, SERVERS, rate)
    ),
    "cost_ratio_dac": _cost_ratio_dac,
    "efficiency": lambda evaluation, row, job, rate: efficiency(
        evaluation, job, row.network, row.base, rate, row.replicas
    ),
    "speed": _speed,
    "circuits": lambda evaluation, _, job, rate: float(
        evaluation.all_to_all(job, "mixnet", rate).circuits.sum() // 2
    ),
    "share": lambda evaluation, _, job, rate: (
        100 * evaluation.production_iteration(job, rate).all_to_all_call_share
    ),
    "transfer_share": lambda evaluation, _, job, rate: (
        100 * evaluation.production_iteration(job, rate).all_to_all_share
    ),
    "traffic": _traffic_percent,
    "traffic_within": _within_percent,
    "expert_ms": _expert_ms,
    "testbed": lambda evaluation, _, job, __: mixnet_to_eps(evaluation.testbed_jobs[job]),
    "delay": _delay_percent,
    "degree": lambda evaluation, row, job, rate: (
        degree_iteration_s(evaluation.jobs[job], rate, row.degree)
        / degree_iteration_s(evaluation.jobs[job], rate, row.base_degree)
    ),
    "failure": lambda evaluation, row, job, rate: (
        100 * slow_down(evaluation.jobs[job], rate, row.failed)
    ),
    "failure_difference": lambda evaluation, _, job, rate: (
        100 * slow_down(evaluation.jobs[job], rate, "server")
        - 100 * slow_down(evaluation.jobs[job], rate, "gpu")
    ),
    "look_ahead": lambda evaluation, _, job, __: nvl72_to_mixnet(evaluation.jobs[job]),
    "ocs_ports": lambda _, row, __, ___: ocs_ports(row.profile),
    "ocs_settle_ms": lambda _, row, __, ___: settle_ms(row.profile, row.pairs, row.quantile),
    "link_up_share": lambda _, row, __, ___: link_up_share(row.profile, row.link_up),
    "link_up_s": lambda _, row, __, ___: link_up_s(row.link_up, row.jitter, row.quantile),
}
"""Measures by the name that a row uses."""
