"""The tasks of an experiment's jobs, with backups in the places of lost servers and GPUs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Self

from moefabric.config.experiment import ExperimentSpec
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric, Region
from moefabric.planner.policy import Policy
from moefabric.prediction.control_time import ControlPrediction
from moefabric.prediction.job_prediction import TaskPlanner, deserved_circuits
from moefabric.workload.iterations import pipeline, substitution
from moefabric.workload.iterations.iteration import Operation, Pair, backward_pass, forward_pass
from moefabric.workload.iterations.job import (
    Job,
    JobShape,
    activation_bytes,
    gradient_bytes,
    jobs,
    outer_gradient_bytes,
    stage_layers,
)
from moefabric.workload.iterations.outer_layers import OuterLayers
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.iterations.tasks import Task
from moefabric.workload.placement.collective_order import ordered_operations
from moefabric.workload.placement.expert_exchange import with_expert_exchange
from moefabric.workload.workload import Workload

Programme = Callable[[int, Substitutions], Sequence[Task]]
"""Returns the tasks of a job's iteration, given its number and the backups at work."""


@dataclass(frozen=True)
class Jobs:
    """The jobs of a fabric: one of all regions in lockstep, or several side by side.

    The demand that `work` predicts for a layer is predicted for each of its micro-batches.
    `replicas` is the number of replicas whose gradients are summed, if `shape` has fewer of them.
    """

    fabric: Fabric
    work: Workload
    shape: JobShape
    lockstep: bool = False
    replicas: int | None = None

    @classmethod
    def of(
        cls, spec: ExperimentSpec, fabric: Fabric, work: Workload, replicas: int | None = None
    ) -> Self:
        """Return the jobs of an experiment on one of its fabrics."""
        training = spec.training
        return cls(fabric, work, training.shape, not training.independent, replicas)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions that train: all but the region of the backup servers."""
        return tuple(region for region in self.fabric.regions if not region.backup)

    @property
    def all(self) -> tuple[Job, ...]:
        """Every job."""
        if self.lockstep:
            return (Job(0, self.shape, self.regions),)
        return jobs(self.shape, self.regions)

    def planner(
        self, policy: Policy, control_s: float | None, start: Policy | None = None
    ) -> TaskPlanner:
        """Return the planner of the jobs, with the circuits that are lit at first.

        A policy that never reconfigures lights the circuits for the demand of the whole job.

        Args:
            policy: Chooses circuits and splits demands.
            control_s: Fixed model seconds of the control plane for a request; None for the
                defaults.
            start: Policy of the circuits that are lit at first, if `policy` reconfigures; None for
                no circuits.
        """
        circuits, first = CircuitSet(), start if policy.reconfigures else policy
        if first is not None:
            demand = self.work.total_demand()
            circuits = deserved_circuits(self.fabric, first, demand, circuits)
        control = ControlPrediction.fixed(control_s)
        moves = policy.reconfigures
        return TaskPlanner(self.fabric, policy, circuits, moves=moves, control=control)

    @property
    def programmes(self) -> dict[Job, Programme]:
        """The programme of each job."""
        return {job: partial(self.tasks, job) for job in self.all}

    @property
    def warm_up(self) -> dict[Job, Programme]:
        """A job of one dispatch and one combine in all regions, which opens connections."""
        return {Job(0, JobShape(), self.regions): self._warm_up}

    def _warm_up(self, _number: int, substitutions: Substitutions) -> Sequence[Task]:
        work, _ = self._seated(substitutions)
        return pipeline.lockstep_tasks(work.warm_up(), [region.name for region in self.regions])

    def tasks(self, job: Job, number: int, substitutions: Substitutions) -> Sequence[Task]:
        """Return the tasks of an iteration of a job."""
        work, partial_sums = self._seated(substitutions)
        if self.lockstep:
            exchanged = substitution.with_tensor_exchange(work.operations(number), partial_sums)
            groups = [placement.servers for placement in work.placements]
            operations = self._ordered(work, exchanged, groups)
            names = [region.name for region in job.regions]
            return pipeline.lockstep_tasks(self.whole(operations, groups), names)
        regions = tuple(
            replace(region, servers=tuple(substitutions.servers.get(s, s) for s in region.servers))
            for region in job.regions
        )
        passes = partial(self._pass, work, partial_sums, number)
        return pipeline.iteration_tasks(replace(job, regions=regions), passes, self.volumes)

    def _seated(self, substitutions: Substitutions) -> tuple[Workload, DemandMatrix | None]:
        """Return the workload with backups in their places, and the demand of partial sums."""
        work, training = self.work, self.work.training
        places, size = work.placements, training.rank_tokens * work.model.token_bytes
        seated = substitution.job_placement(self.fabric, places, training.tp, substitutions)
        partial_sums = substitution.tensor_exchange(seated, size)
        return replace(work, placements=seated.placements), partial_sums

    @property
    def volumes(self) -> pipeline.PipelineTraffic:
        """The bytes that a server sends besides those of the all-to-alls."""
        model, training = self.work.model, self.work.training
        servers, replicas = len(self.regions[0].servers), self.replicas or self.shape.dp
        summed = gradient_bytes(model, servers, replicas, training.payloads)
        return pipeline.PipelineTraffic(
            activation_bytes(model, training, servers),
            summed if training.gradient_sums else 0.0,
            outer_gradient_bytes(model, servers, replicas) if training.whole_model else {},
        )

    @property
    def server_pairs_between_regions(self) -> tuple[Pair, ...]:
        """Pairs of servers of different regions that send each other something."""
        pairs: dict[Pair, None] = {}
        for job, replica, stage in product(self.all, range(self.shape.dp), range(self.shape.pp)):
            stages = (other for other in (stage - 1, stage + 1) if 0 <= other < self.shape.pp)
            there = [job.at(replica, other) for other in stages]
            if self.shape.dp > 1:
                there.append(job.at((replica + 1) % self.shape.dp, stage))
            for region in there:
                pairs |= dict.fromkeys(pipeline.counterparts(job.at(replica, stage), region))
        return tuple(pairs)

    def _pass(
        self,
        work: Workload,
        partial_sums: DemandMatrix | None,
        number: int,
        region: Region,
        micro_batch: int,
        direction: str,
    ) -> Sequence[Operation]:
        """Return the operations of a region for a micro-batch, layer after layer of its stage."""
        index = [working.name for working in self.regions].index(region.name)
        servers, numbers = work.placements[index].servers, work.layers_of(index)
        layers = {n: work.layer_of(number, n, index, micro_batch) for n in numbers}
        passed: list[Sequence[Operation]]
        model, training = work.model, work.training
        if direction == pipeline.FORWARD:
            predicted = {
                n: demand.submatrix(servers)
                for n, demand in enumerate(work.predicted_demands(number))
                if demand is not None
            }
            passed = [
                forward_pass(model, training, n, layers[n], work.dispatch_light, predicted.get(n))
                for n in numbers
            ]
        else:
            passed = [
                backward_pass(model, training, n, layers[n], layers.get(n - 1))
                for n in reversed(numbers)
            ]
        exchanged_sums = None if partial_sums is None else partial_sums.submatrix(servers)
        sums = exchanged_sums if exchanged_sums is not None and exchanged_sums.total_bytes else None
        exchanged = substitution.with_tensor_exchange(chain.from_iterable(passed), sums)
        operations = self._ordered(work, exchanged, [servers])
        ends = direction == pipeline.BACKWARD and micro_batch == self.shape.micro_batches - 1
        return self.whole(operations, [servers], index % self.shape.pp, ends=ends)

    def whole(
        self,
        operations: Iterable[Operation],
        groups: Sequence[Sequence[str]],
        stage: int = 0,
        *,
        ends: bool = True,
        outer: bool = True,
    ) -> tuple[Operation, ...]:
        """Return the operations of MoE layers with all others of their stage.

        Args:
            operations: Operations of the groups, side by side.
            groups: The servers of each group.
            stage: Number of their pipeline stage.
            ends: Whether an iteration ends with them, by sums of gradients and the optimiser.
            outer: Whether the training's choice to have the whole model counts.
        """
        model, training, stages = self.work.model, self.work.training, self.shape.pp
        if training.whole_model and outer:
            layers, last = len(stage_layers(model.layers, stages)[stage]), stage == stages - 1
            parts = OuterLayers.of(model, training, layers, first=not stage, last=last)
            operations = parts.around(operations, sum(map(len, groups)), updates=ends)
        if ends and self.shape.dp == 1:
            operations = pipeline.with_gradient_sums(operations, groups, self.volumes)
        return tuple(operations)

    @staticmethod
    def _ordered(
        work: Workload, operations: Iterable[Operation], groups: Sequence[Sequence[str]]
    ) -> tuple[Operation, ...]:
        """Return operations with the fabric's exchange of experts and order of all-to-alls."""
        moved = with_expert_exchange(operations, work.expert_exchange, groups, work.model)
        return tuple(ordered_operations(moved, work.order))
