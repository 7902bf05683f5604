"""What the tables are computed from: jobs at their calibrated speed, and every iteration on every network, once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

from moefabric.cost import PRICES, paper_network_usd
from moefabric.paper import read
from moefabric.paper.calibration import COLUMN, Calibrated, calibrated
from moefabric.paper.guess import Guesses, guesses
from moefabric.paper.iteration import Iteration, of
from moefabric.paper.job import Job
from moefabric.paper.network import NETWORKS, AllToAll, byte_rate
from moefabric.paper.read import Published

RATES: Final = tuple(PRICES)
PRODUCTION: Final = "rail-optimised"
"""The network of the production cluster."""


class UnmeasuredError(LookupError):
    """No packets were sent for what is asked."""


class Source(Protocol):
    """Where all-to-alls come from: the fluid model, or packets, which may be UnmeasuredError."""

    def all_to_all(self, job: Job, network: str, rate_bps: float) -> AllToAll:
        """One region's."""

    def waited_s(self, delay_s: float) -> float:
        """How long traffic waits for new light of an OCS that settles in `delay_s`."""


class Fluid:
    """The fluid model: light moves in the time in which its OCS settles."""

    def __init__(self) -> None:
        self._at_first: dict[tuple[str, str], AllToAll] = {}

    def all_to_all(self, job: Job, network: str, rate_bps: float) -> AllToAll:
        """What the fullest link takes. All links of a network have one rate: of another rate, circuits are the same and times in proportion."""
        key = (job.name, network)
        if key not in self._at_first:
            self._at_first[key] = NETWORKS[network].all_to_all(job, RATES[0])
        return self._at_first[key].times(RATES[0] / rate_bps)

    def waited_s(self, delay_s: float) -> float:
        """No longer than that."""
        return delay_s


@dataclass(frozen=True)
class Scene:
    """`jobs` by name (those of the published figures calibrated), `measured` jobs of the production cluster, the published figures, Copilot's trace.

    The same tables come out of any `source`: calibrations are the fluid model's in each.
    """

    jobs: Mapping[str, Job]
    measured: Mapping[str, Job]
    calibrations: Mapping[str, Calibrated]
    published: Published
    trace: Path
    source: Source = field(default_factory=Fluid)
    _sent: dict[tuple[str, str, float], AllToAll] = field(default_factory=dict, init=False, compare=False)

    @property
    def foreseen(self) -> bool:
        """Whether all of it is the fluid model's."""
        return isinstance(self.source, Fluid)

    @cached_property
    def guesses(self) -> Guesses:
        """Copilot's, on the training trace."""
        return guesses(self.trace, self.jobs["mixtral-8x22b"].model)

    def all_to_all(self, job: str, network: str, rate_bps: float) -> AllToAll:
        """The all-to-alls of a job's region."""
        return self._all_to_all(self.jobs[job], network, rate_bps)

    def _all_to_all(self, job: Job, network: str, rate_bps: float) -> AllToAll:
        key = (job.name, network, rate_bps)
        if key not in self._sent:
            self._sent[key] = self.source.all_to_all(job, network, rate_bps)
        return self._sent[key]

    def iteration(
        self, job: str, network: str, rate_bps: float, delay_s: float = 0.0, replicas: int = 1
    ) -> Iteration:
        """One iteration; `replicas` times as many data-parallel replicas, each forward dispatch waiting for light of an OCS that settles in `delay_s`."""
        made = self.jobs[job]
        grown = replace(made, dp=made.dp * replicas)
        waited_s = self.source.waited_s(delay_s)
        return of(grown, self.all_to_all(job, network, rate_bps), self._eps(network, rate_bps), waited_s)

    @staticmethod
    def _eps(network: str, rate_bps: float) -> float:
        return NETWORKS[network].electrical * byte_rate(rate_bps)

    def measured_share(self, job: str, rate_bps: float) -> float:
        """All-to-all's share of an iteration of the production cluster."""
        made = self.measured[job]
        sent = self._all_to_all(made, PRODUCTION, rate_bps)
        return of(made, sent, self._eps(PRODUCTION, rate_bps)).all_to_all_share

    def usd(self, job: str, network: str, rate_bps: float) -> float:
        """What the network of a job's servers costs."""
        return paper_network_usd(NETWORKS[network].bought, self.jobs[job].gpus // 8, rate_bps)


def scene(folder: Path) -> Scene:
    """The scene of a folder such as `examples/paper`. SpecError where its files can't be used."""
    jobs, published = read.jobs(folder / "jobs.yaml"), read.published(folder / "normalised-iteration.csv")
    production = read.jobs(folder / "measured.yaml")
    calibrations = {
        name: calibrated(job, column)
        for name, job in jobs.items()
        if (
            column := {
                rate: value for (which, rate, on), value in published.items() if (which, on) == (name, COLUMN)
            }
        )
    }
    fitted = {name: calibrations[name].job if name in calibrations else job for name, job in jobs.items()}
    measured = {name: replace(job, name=f"{name} in production") for name, job in production.items()}
    return Scene(fitted, measured, calibrations, published, folder.parent / "data/training-1200-steps.npz")
