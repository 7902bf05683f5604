"""Inputs of the tables: calibrated jobs, and their iterations on every network."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Protocol

from moefabric.api.networks import PRICES, ServerPaths, paper_network_usd
from moefabric_studies.paper.calibration import CALIBRATION_NETWORK, CalibratedJob, calibrate
from moefabric_studies.paper.iteration import Iteration, compose_iteration
from moefabric_studies.paper.job import GPUS_PER_SERVER, PaperJob
from moefabric_studies.paper.loader import Published, load_jobs, load_published
from moefabric_studies.paper.network import (
    NETWORKS,
    AllToAll,
    PaperNetwork,
    TreeFlows,
    networks_with,
    with_server_times,
)
from moefabric_studies.paper.prediction_quality import PredictionQuality, measure_prediction_quality

RATES: Final = tuple(PRICES)
PRODUCTION_NETWORK: Final = "rail-optimised"
"""Network of the production cluster that the paper measures."""


class UnmeasuredError(LookupError):
    """The value has not been measured."""


class InvalidCellError(LookupError):
    """The measurement of the value is invalid."""


class AllToAllSource(Protocol):
    """Source of all-to-alls: the fluid model, or measurements.

    Both methods raise UnmeasuredError for values that have not been measured, and InvalidCellError
    for those whose measurement is invalid.
    """

    def all_to_all(self, job: PaperJob, network: str, rate_bps: float) -> AllToAll:
        """Return the all-to-alls of one region of a job."""

    def wait_s(self, settle_s: float) -> float:
        """Return how long traffic waits for new circuits of an OCS with this settle time."""


class FluidSource:
    """All-to-alls of the fluid model. Circuits change within the settle time of their OCS."""

    def __init__(self, networks: Mapping[str, PaperNetwork] = NETWORKS) -> None:
        """Start without computed all-to-alls."""
        self._networks = networks
        self._at_first_rate: dict[tuple[str, str], AllToAll] = {}

    def all_to_all(self, job: PaperJob, network: str, rate_bps: float) -> AllToAll:
        """Return the all-to-alls of one region of a job.

        All links of a network have one rate, so circuits are equal at all rates, and times in
        proportion.
        """
        key = (job.name, network)
        if key not in self._at_first_rate:
            self._at_first_rate[key] = self._networks[network].all_to_all(job, RATES[0])
        return self._at_first_rate[key].scaled(RATES[0] / rate_bps)

    def wait_s(self, settle_s: float) -> float:
        """Return the settle time."""
        return settle_s


@dataclass(frozen=True)
class Evaluation:
    """Jobs, published values and a source of all-to-alls, from which all tables are computed.

    Attributes:
        jobs: jobs by name; those with published values are calibrated, with the fluid model for any
            source.
        production_jobs: jobs of the production cluster by name.
        testbed_jobs: jobs of the paper's testbed by name.
        calibrations: calibrated jobs by name.
        published: the published simulation results.
        trace: training trace for the demand prediction.
        source: source of the all-to-alls.
        paths: paths inside servers, over which all-to-alls gather and scatter bytes. The paper's
            simulator has none.
    """

    jobs: Mapping[str, PaperJob]
    production_jobs: Mapping[str, PaperJob]
    testbed_jobs: Mapping[str, PaperJob]
    calibrations: Mapping[str, CalibratedJob]
    published: Published
    trace: Path
    source: AllToAllSource = field(default_factory=FluidSource)
    paths: ServerPaths = field(default_factory=partial(ServerPaths, gather="none"))

    @property
    def is_predicted(self) -> bool:
        """True if all values are those of the fluid model."""
        return isinstance(self.source, FluidSource)

    @property
    def jobs_by_full_name(self) -> dict[str, PaperJob]:
        """All jobs, with those of the production cluster, by the job's own name."""
        return {job.name: job for job in (*self.jobs.values(), *self.production_jobs.values())}

    @cached_property
    def prediction_quality(self) -> PredictionQuality:
        """Quality of Copilot's predictions on the training trace."""
        return measure_prediction_quality(self.trace, self.jobs["mixtral-8x22b"].model)

    def all_to_all(self, job: str, network: str, rate_bps: float) -> AllToAll:
        """Return the all-to-alls of a job's region."""
        return self.source.all_to_all(self.jobs[job], network, rate_bps)

    def iteration(
        self,
        job: str,
        network: str,
        rate_bps: float,
        settle_s: float = 0.0,
        replicas: int = 1,
        micro_batch: int | None = None,
    ) -> Iteration:
        """Return an iteration of a job.

        Args:
            job: name of the job.
            network: name of the network.
            rate_bps: rate of a NIC.
            settle_s: settle time of the OCS whose circuits each forward dispatch waits for.
            replicas: factor by which the job's data-parallel replicas are multiplied.
            micro_batch: sequences of a micro-batch, if not the job's. All-to-alls last in
                proportion.
        """
        base = self.jobs[job]
        changed = replace(base.with_micro_batch(micro_batch), dp=base.dp * replicas)
        larger = changed.training.micro_batch / base.training.micro_batch
        all_to_all = with_server_times(
            self.all_to_all(job, network, rate_bps), base, NETWORKS[network].optical, self.paths
        ).scaled(larger)
        eps_bytes_s = NETWORKS[network].eps_bytes_s(rate_bps)
        return compose_iteration(changed, all_to_all, eps_bytes_s, self.source.wait_s(settle_s))

    def production_iteration(self, job: str, rate_bps: float) -> Iteration:
        """Return the iteration of a job on the production cluster."""
        production_job = self.production_jobs[job]
        all_to_all = self.source.all_to_all(production_job, PRODUCTION_NETWORK, rate_bps)
        eps_bytes_s = NETWORKS[PRODUCTION_NETWORK].eps_bytes_s(rate_bps)
        return compose_iteration(production_job, all_to_all, eps_bytes_s)

    def usd(self, job: str, network: str, rate_bps: float) -> float:
        """Return the price of the network of a job's servers."""
        servers = self.jobs[job].gpus // GPUS_PER_SERVER
        return paper_network_usd(NETWORKS[network].cost_model, servers, rate_bps)


def load_evaluation(
    folder: Path, paths: ServerPaths | None = None, tree_flows: TreeFlows = "pooled"
) -> Evaluation:
    """Return the evaluation that the files of a folder such as `examples/paper` describe.

    Args:
        folder: The folder.
        paths: Paths inside servers; None for those of the paper's simulator, which take no time.
        tree_flows: How trees carry all-to-alls, also where jobs are calibrated.

    Raises:
        SpecError: if the files can't be used.
    """
    jobs = load_jobs(folder / "jobs.yaml")
    published = load_published(folder / "normalised-iteration.csv")
    networks = networks_with(tree_flows)
    columns: dict[str, dict[float, float]] = {}
    for (job, rate, network), value in published.items():
        if network == CALIBRATION_NETWORK:
            columns.setdefault(job, {})[rate] = value
    calibrations = {
        name: calibrate(job, columns[name], networks[CALIBRATION_NETWORK])
        for name, job in jobs.items()
        if name in columns
    }
    return Evaluation(
        jobs=jobs | {name: calibrated.job for name, calibrated in calibrations.items()},
        production_jobs={
            name: replace(job, name=f"{name} in production")
            for name, job in load_jobs(folder / "measured.yaml").items()
        },
        testbed_jobs=load_jobs(folder / "testbed.yaml"),
        calibrations=calibrations,
        published=published,
        trace=folder.parent / "data/training-1200-steps.npz",
        source=FluidSource(networks),
        paths=paths or ServerPaths(gather="none"),
    )
