"""The job of a hybrid run: a cluster in the model, and its emulated part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Self

from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.guarded_policy import guarded_policy
from moefabric.core.errors import SpecError
from moefabric.core.fabric_part import fabric_part
from moefabric.core.routes import Link
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.prediction.hybrid_tasks import HybridTasks, ModelledIteration, sent_flows, used_links
from moefabric.prediction.job_prediction import links_goodput
from moefabric.prediction.jobs import Jobs, Programme
from moefabric.prediction.simulated_regions import SimulatedRegions, simulated_regions
from moefabric.prediction.workload_loader import workload_of, workload_on
from moefabric.simulator.event_simulation import simulate_iterations
from moefabric.workload.iterations.iteration import Collective, Pair, Reconfigure
from moefabric.workload.iterations.job import Job, JobShape
from moefabric.workload.iterations.pipeline import lockstep_tasks
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.iterations.tasks import BackgroundTransfer, Task


@dataclass(frozen=True)
class HybridJobs:
    """The job of a cluster of which some regions are emulated.

    Attributes:
        whole: The job of the cluster in the model.
        fabric: The part that is emulated.
        iterations: The tasks of each iteration.
        simulated: The regions of the cluster that are simulated, which stand for all.
    """

    whole: Jobs
    fabric: Fabric
    iterations: tuple[tuple[Task, ...], ...]
    simulated: SimulatedRegions

    @classmethod
    def of(
        cls, spec: ExperimentSpec, choice: FabricChoice, name: str, scale: Scale, folder: Path
    ) -> Self:
        """Simulate a cluster, and return the job of its emulated part.

        Args:
            spec: The experiment, which has a section `hybrid`.
            choice: The fabric of the cluster.
            name: Name of the emulated part.
            scale: The scale of the run.
            folder: Folder of the experiment's file; relative paths start there.

        Raises:
            SpecError: An emulated region isn't among the simulated ones.
        """
        assert spec.hybrid is not None
        emulated, simulated = spec.hybrid.emulated, simulated_regions(spec, choice)
        cluster = simulated.part.build_fabric(choice, name, scale)
        _check_simulated(emulated, cluster, simulated.all_regions)
        work = workload_of(choice, workload_on(simulated.part, cluster, folder))
        jobs = Jobs.of(simulated.part, cluster, work, spec.training.dp)
        iterations = tuple(
            HybridTasks(cluster, emulated, links, iteration, spec.hybrid.background).build()
            for links, iteration in _modelled(spec, choice, jobs)
        )
        servers = {server for group in emulated for server in cluster.ep_groups[group]}
        ends = {end for tasks in iterations for pair in sent_flows(tasks) for end in pair}
        part = fabric_part(cluster, name, emulated, ends - servers)
        return cls(jobs, part, iterations, simulated)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The emulated regions."""
        return tuple(region for region in self.fabric.regions if not region.modelled)

    @property
    def all(self) -> tuple[Job, ...]:
        """The only job."""
        return (Job(0, JobShape(), self.regions),)

    @property
    def programmes(self) -> dict[Job, Programme]:
        """The programme of the job."""
        return {job: partial(self.tasks, job) for job in self.all}

    @property
    def warm_up(self) -> dict[Job, Programme]:
        """A dispatch and combine in the emulated regions."""
        [job] = self.all
        servers = [server for region in self.regions for server in region.servers]
        operations = [
            replace(operation, demand=operation.demand.submatrix(servers))
            for operation in self.whole.work.warm_up()
            if isinstance(operation, Reconfigure | Collective)
        ]
        tasks = lockstep_tasks(operations, [region.name for region in self.regions])
        return {job: lambda _number, _substitutions: tasks}

    @property
    def background_flows(self) -> int:
        """Number of background flows of all iterations."""
        works = (task.work for tasks in self.iterations for task in tasks)
        return sum(len(work.flows) for work in works if isinstance(work, BackgroundTransfer))

    @property
    def server_pairs_between_regions(self) -> tuple[Pair, ...]:
        """Pairs of servers of different regions that send each other something."""
        region_of = self.fabric.region_of
        pairs = dict.fromkeys(pair for tasks in self.iterations for pair in sent_flows(tasks))
        return tuple((a, b) for a, b in pairs if region_of[a] != region_of[b])

    def tasks(self, _job: Job, number: int, _substitutions: Substitutions) -> Sequence[Task]:
        """Return the tasks of an iteration."""
        return self.iterations[number]


AnyJobs = Jobs | HybridJobs
"""Jobs on a fabric, with the tasks of their iterations."""


def _check_simulated(emulated: Sequence[str], cluster: Fabric, regions: int) -> None:
    """Raise SpecError unless the emulated regions are among those that are simulated."""
    for number, name in enumerate(emulated):
        if name not in cluster.ep_groups:
            count = len(cluster.ep_groups)
            sample = f"the first {count} regions stand for all {regions} in the model"
            message = f"{name}: {sample}: give one of r0 to r{count - 1}"
            raise SpecError([(f"hybrid.emulated[{number}]", message)])


def _modelled(
    spec: ExperimentSpec, choice: FabricChoice, jobs: Jobs
) -> list[tuple[frozenset[Link], ModelledIteration]]:
    """Return each iteration in the model, with the links that emulated regions use in it."""
    assert spec.hybrid is not None
    cluster, work = jobs.fabric, jobs.work
    planner = jobs.planner(guarded_policy(choice.policy), spec.control_s)
    [job] = jobs.all
    planned = planner.plan(jobs.tasks(job, n, Substitutions()) for n in range(work.iterations))
    steps = [[task.step for task in iteration] for iteration in planned]
    links = [used_links(cluster, spec.hybrid.emulated, iteration) for iteration in planned]
    goodput = links_goodput(cluster, chain.from_iterable(steps))
    [times] = simulate_iterations([steps], goodput, frozenset[Link]().union(*links))
    modelled, start_s = [], 0.0
    for used, tasks, task_times in zip(links, planned, times, strict=True):
        modelled.append((used, ModelledIteration(tasks, task_times, start_s)))
        start_s += modelled[-1][1].seconds
    return modelled
