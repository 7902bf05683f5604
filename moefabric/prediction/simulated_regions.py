"""The regions of an experiment whose simulation stands for all of them.

Replicas with equal demands that the EPS joins alike take equal times: a ring of a few of them is a
quotient of the whole job's ring, whose max-min fair rates are those of the whole, so that they
stand for all exactly. Where demands differ at random, the first replicas or jobs are a sample of
all. A job ends with its slowest replica; the greatest of n replicas' times is estimated from the
mean and the deviation of the sample, as if they were normal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm, log, pi, sqrt
from statistics import NormalDist, fmean, median, stdev
from typing import Final, Self

from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.core.errors import SpecError
from moefabric.prediction.job_prediction import JobPrediction

MOST_DIFFERENT: Final = 64
"""Regions with different demands that are simulated; of more, this many are a sample."""
MOST_SIMULATED: Final = 256
"""Regions that are simulated if none stands for others: as many as can be emulated."""
_ERROR_OF_MEDIAN: Final = sqrt(pi / 2)
"""Standard error of the median of normal numbers over that of their mean."""


@dataclass(frozen=True)
class Estimate:
    """Medians over the iterations of all jobs, in model seconds.

    `error_s` is the standard error of `iteration_s` as estimated from a sample; None without one.
    """

    iteration_s: float
    compute_s: float
    exposed_comm_s: float
    error_s: float | None = None

    @classmethod
    def of(cls, iteration_s: float, compute_s: float, error_s: float | None = None) -> Self:
        """Return the times of one iteration."""
        return cls(iteration_s, compute_s, iteration_s - compute_s, error_s)


@dataclass(frozen=True)
class SimulatedRegions:
    """A part of an experiment that stands for the whole one.

    Attributes:
        part: The experiment with the regions that are simulated: fewer jobs, or fewer replicas of
            one job, whose all-reduces have the bytes of the whole job's.
        is_sample: Whether the other regions differ from the simulated ones.
    """

    whole: ExperimentSpec
    part: ExperimentSpec
    is_sample: bool = False

    @property
    def regions(self) -> int:
        """Number of simulated regions."""
        return len(self.part.wiring.expanded_regions)

    @property
    def all_regions(self) -> int:
        """Number of regions of the experiment."""
        return len(self.whole.wiring.expanded_regions)

    def count_in_all(self, count: float) -> int:
        """Return a count in the simulated regions, scaled to all regions."""
        return round(count * self.all_regions / self.regions)

    def estimate(self, predictions: Sequence[JobPrediction]) -> Estimate:
        """Return the times of the whole experiment.

        Args:
            predictions: Prediction of each iteration of each simulated job, job after job.
        """
        replicas, stages = self.whole.training.dp, self.part.training.pp
        error_s: float | None
        if self.is_sample and self.part.training.dp < replicas:
            estimates = [_of_more_replicas(job, stages, replicas) for job in predictions]
            variances = ((estimate.error_s or 0.0) ** 2 for estimate in estimates)
            error_s = sqrt(sum(variances)) / len(estimates)
        else:
            estimates = [Estimate.of(job.seconds, job.compute_s) for job in predictions]
            error_s = self._error_of_jobs_s(predictions) if self.is_sample else None
        if error_s is not None and len(estimates) > 2:
            error_s *= _ERROR_OF_MEDIAN
        return Estimate(
            median(estimate.iteration_s for estimate in estimates),
            median(estimate.compute_s for estimate in estimates),
            median(estimate.exposed_comm_s for estimate in estimates),
            error_s,
        )

    def _error_of_jobs_s(self, predictions: Sequence[JobPrediction]) -> float:
        """Return the standard error of the mean over a sample of the jobs."""
        iterations = self.whole.training.iterations
        starts = range(0, len(predictions), iterations)
        jobs = [
            fmean(f.seconds for f in predictions[start : start + iterations]) for start in starts
        ]
        return stdev(jobs) * sqrt((1 - self.regions / self.all_regions) / len(jobs))


def simulated_regions(
    spec: ExperimentSpec, choice: FabricChoice, most: int = MOST_DIFFERENT
) -> SimulatedRegions:
    """Return the regions of an experiment whose simulation stands for all.

    Args:
        most: Most regions to simulate if they differ.

    Raises:
        SpecError: If there are more than `MOST_SIMULATED` regions and none stands for others:
            their servers or OCSes differ, or they wait for each other in lockstep and differ.
    """
    whole = SimulatedRegions(spec, spec)
    regions, shape = len(spec.wiring.expanded_regions), spec.training.shape
    kinds = [region.model_copy(update={"count": 1}) for region in spec.wiring.regions]
    if spec.wiring.servers or any(kind != kinds[0] for kind in kinds):
        return _all_regions(whole, "wiring.regions", "give all of them equal servers and OCSes")
    pattern = _Pattern.of(spec, choice)
    # Unless something is random, the regions of a stage have equal demands.
    if not (spec.gating.is_generated or spec.gating.noise or choice.demand_error):
        jobs, replicas = pattern.representatives
        if regions <= most or jobs * replicas * shape.pp <= MOST_SIMULATED:
            return SimulatedRegions(spec, _with_regions(spec, jobs, replicas))
    if regions <= most:
        return whole
    if not spec.training.independent:
        return _all_regions(whole, "training.schedule", "give independent instead of lockstep")
    jobs, replicas = pattern.sample(most)
    if jobs * replicas * shape.pp >= regions:
        return whole
    return SimulatedRegions(spec, _with_regions(spec, jobs, replicas), is_sample=True)


def _all_regions(whole: SimulatedRegions, place: str, remedy: str) -> SimulatedRegions:
    """Return all regions, unless they are too many."""
    if whole.regions <= MOST_SIMULATED:
        return whole
    message = f"{whole.regions:,} regions differ, and at most {MOST_SIMULATED} can be simulated"
    raise SpecError([(place, f"{message}: {remedy}")])


def mean_greatest(count: int) -> float:
    """Return the mean of the greatest of `count` standard normal numbers (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _of_more_replicas(prediction: JobPrediction, stages: int, replicas: int) -> Estimate:
    """Return the times of an iteration with more replicas than were simulated.

    The error is that of the sample's mean and deviation, and that of the greatest itself, whose
    variance is pi^2 / (12 ln n) for n normal numbers.
    """
    greatest, variance = mean_greatest(replicas), pi**2 / (12 * log(replicas))

    def extrapolated(seconds: float, by_region: Sequence[float]) -> tuple[float, float]:
        starts = range(0, len(by_region), stages)
        ends = [max(by_region[start : start + stages]) for start in starts]
        deviation, count = stdev(ends), len(ends)
        error_s = deviation * sqrt(1 / count + greatest**2 / (2 * (count - 1)) + variance)
        return fmean(ends) + greatest * deviation + seconds - max(ends), error_s

    iteration_s, error_s = extrapolated(prediction.seconds, prediction.region_ends_s)
    compute_s, _ = extrapolated(prediction.compute_s, prediction.region_compute_s)
    return Estimate.of(iteration_s, compute_s, error_s)


def _with_regions(spec: ExperimentSpec, jobs: int, replicas: int) -> ExperimentSpec:
    """Return the experiment with another number of jobs and of replicas."""
    count = jobs * replicas * spec.training.pp
    region = spec.wiring.regions[0].model_copy(update={"count": count})
    wiring = spec.wiring.model_copy(update={"regions": [region]})
    training = spec.training.model_copy(update={"dp": replicas})
    return spec.model_copy(update={"wiring": wiring, "training": training})


@dataclass(frozen=True)
class _Pattern:
    """The servers of jobs and replicas on leaves, and where their order on leaves repeats.

    Attributes:
        jobs: Number of jobs; in lockstep, each region counts as one.
        replicas: Replicas of a job.
        regions: Regions of a replica.
        servers: Servers of a replica.
        leaf: Servers of a leaf; 0 if one leaf has all.
        period: Servers after which leaves, spines and NICs are chosen alike again.
    """

    jobs: int
    replicas: int
    regions: int
    servers: int
    leaf: int
    period: int

    @classmethod
    def of(cls, spec: ExperimentSpec, choice: FabricChoice) -> "_Pattern":
        eps, shape = choice.eps or spec.wiring.eps, spec.training.shape
        servers = spec.wiring.server_count + spec.wiring.backups
        leaf = eps.servers_per_leaf if choice.electrical else None
        leaf = leaf if leaf is not None and leaf < servers else 0
        period = lcm(max(1, choice.electrical), *((leaf, eps.spines or 2) if leaf else ()))
        regions = len(spec.wiring.expanded_regions)
        size = shape.pp * spec.servers_per_region
        return cls(regions // shape.regions, shape.dp, shape.pp, size, leaf, period)

    @property
    def representatives(self) -> tuple[int, int]:
        """The fewest jobs, and replicas of them, that stand for all; all if none do.

        The last replica sends to the first one, which has to be on another leaf wherever a replica
        and its successor are.
        """
        step = self._step(self.replicas * self.servers)
        if self.jobs % step:
            return self.jobs, self.replicas
        step_of_replicas = self._step(self.servers)
        if step > 1 or self.replicas % step_of_replicas:
            return step, self.replicas
        fewest = max(min(2, self.replicas), 1 + -(-self.leaf // self.servers))
        replicas = -(-fewest // step_of_replicas) * step_of_replicas
        return 1, min(replicas, self.replicas) if self.replicas > 1 else 1

    def sample(self, most: int) -> tuple[int, int]:
        """Return jobs of all replicas, or one job of fewer replicas, with `most` regions if any."""
        regions = self.replicas * self.regions
        step = self._step(self.replicas * self.servers)
        if self.replicas == 1 or 2 * step * regions <= most:
            jobs = max(2, most // regions)
            return min(self.jobs, jobs // step * step or jobs), self.replicas
        step = self._step(self.servers)
        replicas = max(2, most // self.regions)
        return 1, min(self.replicas, replicas // step * step or replicas)

    def _step(self, servers: int) -> int:
        """Return the number of blocks of this size after which the pattern repeats."""
        return self.period // gcd(self.period, servers)
