"""What the tables are computed from: jobs at their calibrated speed, and every iteration on every network, once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from moefabric.cost import PRICES, paper_network_usd
from moefabric.paper import read
from moefabric.paper.calibration import COLUMN, Calibrated, calibrated
from moefabric.paper.guess import Guesses, guesses
from moefabric.paper.iteration import Iteration, iteration, of
from moefabric.paper.job import Job
from moefabric.paper.network import NETWORKS, AllToAll, byte_rate
from moefabric.paper.read import Published

RATES = tuple(PRICES)


@dataclass(frozen=True)
class Scene:
    """`jobs` by name (those of the published figures calibrated), `measured` jobs of the production cluster, the published figures, Copilot's guesses."""

    jobs: Mapping[str, Job]
    measured: Mapping[str, Job]
    calibrations: Mapping[str, Calibrated]
    published: Published
    guesses: Guesses
    _sent: dict[tuple[str, str, float], AllToAll] = field(default_factory=dict, compare=False)

    def all_to_all(self, job: str, network: str, rate_bps: float) -> AllToAll:
        """The all-to-alls of a job's region."""
        key = (job, network, rate_bps)
        if key not in self._sent:
            self._sent[key] = NETWORKS[network].all_to_all(self.jobs[job], rate_bps)
        return self._sent[key]

    def iteration(
        self, job: str, network: str, rate_bps: float, blocked_s: float = 0.0, replicas: int = 1
    ) -> Iteration:
        """One iteration; `replicas` times as many data-parallel replicas, each forward dispatch waiting `blocked_s`."""
        made = self.jobs[job]
        eps = NETWORKS[network].electrical * byte_rate(rate_bps)
        grown = replace(made, dp=made.dp * replicas)
        return of(grown, self.all_to_all(job, network, rate_bps), eps, blocked_s)

    def measured_share(self, job: str, rate_bps: float) -> float:
        """All-to-all's share of an iteration of the production cluster: rail-optimised."""
        return iteration(self.measured[job], NETWORKS["rail-optimised"], rate_bps).all_to_all_share

    def usd(self, job: str, network: str, rate_bps: float) -> float:
        """What the network of a job's servers costs."""
        return paper_network_usd(NETWORKS[network].bought, self.jobs[job].gpus // 8, rate_bps)


def scene(folder: Path) -> Scene:
    """The scene of a folder such as `examples/paper`. SpecError where its files can't be used."""
    jobs, published = read.jobs(folder / "jobs.yaml"), read.published(folder / "normalised-iteration.csv")
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
    guessed = guesses(folder.parent / "data/training-1200-steps.npz", jobs["mixtral-8x22b"].model)
    return Scene(fitted, read.jobs(folder / "measured.yaml"), calibrations, published, guessed)
