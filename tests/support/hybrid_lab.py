"""Completion times of emulated regions in the model: in the whole cluster, and in their part."""

from collections.abc import Mapping, Sequence

from moefabric.config.experiment import ExperimentSpec
from moefabric.config.guarded_policy import guarded_policy
from moefabric.config.loader import load_experiment
from moefabric.core.circuits import CircuitSet
from moefabric.core.units import Scale
from moefabric.prediction.control_time import ControlPrediction
from moefabric.prediction.hybrid_jobs import AnyJobs, HybridJobs
from moefabric.prediction.job_prediction import TaskPlanner, links_goodput
from moefabric.simulator.event_simulation import simulate_iterations
from moefabric.workload.iterations.iteration import AllReduce, Collective, Transfer
from moefabric.workload.iterations.substitution import Substitutions
from tests.support.paths import EXAMPLES

SCALE = Scale(bytes=250, dilation=16)
Key = tuple[str, str, int | None, int]
"""Kind, direction, layer and micro-batch of a transfer."""
Completions = Mapping[Key, float]


def hybrid(
    settings: Sequence[str] = (), fabric: int = 0, example: str = "hybrid"
) -> tuple[ExperimentSpec, HybridJobs]:
    """Return an example with settings, and the job of its emulated part on one of its fabrics."""
    spec = load_experiment(EXAMPLES / f"{example}.yaml", settings)
    return spec, HybridJobs.of(spec, spec.fabrics[fabric], "part", SCALE, EXAMPLES)


def completions(spec: ExperimentSpec, jobs: AnyJobs, fabric: int = 0) -> tuple[float, Completions]:
    """Return the seconds of the first iteration, and those of each transfer of emulated servers."""
    assert spec.hybrid is not None
    own = {s for name in spec.hybrid.emulated for s in jobs.fabric.ep_groups[name]}
    policy = guarded_policy(spec.fabrics[fabric].policy)
    control = ControlPrediction.fixed(spec.control_s)
    planner = TaskPlanner(
        jobs.fabric, policy, CircuitSet(), moves=policy.reconfigures, control=control
    )
    [job] = jobs.all
    [planned] = planner.plan([jobs.tasks(job, 0, Substitutions())])
    steps = [one.step for one in planned]
    [[times]] = simulate_iterations([[steps]], links_goodput(jobs.fabric, steps))
    ends: dict[Key, float] = {}
    for one, at in zip(planned, times, strict=True):
        work = one.task.work
        if not isinstance(work, Collective | Transfer | AllReduce):
            continue
        arrived = [
            end_s - at.start_s
            for flow, end_s in zip(one.sent, at.stream_ends_s, strict=True)
            if not own.isdisjoint((flow.src, flow.dst))
        ]
        if arrived:
            key = work.kind, work.direction, work.layer, one.task.micro_batch
            ends[key] = max(ends.get(key, 0.0), *arrived)
    return max(at.end_s for at in times), ends


def errors(expected: Completions, found: Completions) -> list[float]:
    """Return found over expected completion times, minus 1."""
    assert expected.keys() == found.keys()
    return [found[key] / expected[key] - 1 for key in expected]
