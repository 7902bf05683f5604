"""Prediction of a run: the arrival of each flow, as max-min fairness gives it.

The planner chooses circuits, splits bytes and gives each flow a pace, by the fluid model. The
prediction takes only the orders of the agents from the plan: who sends how many bytes by which NIC
at which pace. Routes are those of the forwarding rules, rates of links those of the fabric, and a
task starts when the tasks before it should have ended. A simulation of all flows of all iterations
then says when each flow arrives. Only tasks of independent regions, which meet on links by
milliseconds, are predicted from the measured starts of all of them.

Links are queues that lose nothing. Where several tasks share a full link, each flow has an equal
share, or its pace if that is less: Linux lets a connection have two frames in all queues together
(TCP small queues; a frame counts until the receiver's kernel has it), so that a full link serves
the flows that wait for it in turn, as a NIC with many queue pairs does. For `transport: tcp` no
flow has a pace. Connections are warm: their windows are open before the first iteration, so that
nothing is lost at the start.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow, PacedFlow
from moefabric.core.routes import Link, route
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.execution.iteration_state import IterationState, SentTask
from moefabric.prediction.job_prediction import links_goodput, predict_iterations
from moefabric.simulator.event_simulation import Step, StepTimes, simulate
from moefabric.simulator.fair_sharing import Stream
from moefabric.simulator.fluid import goodput_bps


def ordered_streams(
    fabric: Fabric,
    circuits: CircuitSet,
    ordered: Sequence[PacedFlow],
    after_s: float = 0.0,
    latency_s: float = 0.0,
) -> tuple[Stream, ...]:
    """Return the ordered flows as streams of the simulation, in the model's units.

    Paces exceed planned rates by a headroom, so that the flows of one order overload its bottleneck
    a little. There they lose in proportion, because the queue stays shorter than their frames.

    Args:
        fabric: The wired fabric.
        circuits: Circuits that are lit.
        ordered: The transfers of the agents.
        after_s: Model seconds from the start of the task to the start of these transfers.
        latency_s: Model seconds from their end to that of the task.
    """
    scale, load = fabric.scale, defaultdict[Link, float](float)
    streams = []
    for flow in ordered:
        size = flow.bytes * scale.bytes
        links = route(fabric, circuits, Flow(flow.src, flow.dst, flow.path, size))
        pace_bps = inf
        if flow.rate_bps is not None:
            pace_bps = flow.rate_bps * scale.bytes * scale.dilation
            for link in links:
                load[link] += pace_bps
        streams.append(Stream(size, links, pace_bps, after_s, latency_s))
    carried = {link: min(1.0, goodput_bps(fabric, link) / bps) for link, bps in load.items()}
    return tuple(
        replace(s, max_rate_bps=s.max_rate_bps * min(carried.get(link, 1.0) for link in s.links))
        for s in streams
    )


def add_predictions(fabric: Fabric, states: Sequence[IterationState]) -> None:
    """Add the predicted times of iterations, transfers and flows to their records.

    Args:
        fabric: The fabric on which the iterations ran.
        states: The iterations, one or several of each job.
    """
    by_job = defaultdict[int, list[IterationState]](list)
    for state in sorted(states, key=lambda state: (state.job.number, state.run.number)):
        by_job[state.job.number].append(state)
    rows = [[list(zip(s.tasks, s.steps, strict=True)) for s in job] for job in by_job.values()]
    times = dict[tuple[IterationState, int], StepTimes]()
    for job, predictions in zip(by_job.values(), predict_iterations(fabric, rows), strict=True):
        for state, prediction in zip(job, predictions, strict=True):
            state.run.predicted_s = prediction.seconds
            state.run.compute_ns = fabric.scale.wall_ns(prediction.compute_s * NS_PER_S)
            times |= {(state, task.number): prediction.tasks[task.number] for task in state.sent}
    sent = [(state, task) for state in states for task in state.sent]
    times |= _met_on_links(fabric, [(s, t) for s, t in sent if not s.tasks[t.number].barrier])
    predicted = {}
    for state, task in sent:
        simulated = times[state, task.number]
        for run, streams in task.runs:
            start_s = simulated.start_s + run.server.seconds
            flows_s = tuple(simulated.stream_ends_s[n] - start_s for n in streams)
            predicted[id(run)] = replace(run, flows_s=flows_s)
    for state in states:
        for runs in (state.run.collectives, state.run.transfers):
            runs[:] = [predicted.get(id(run), run) for run in runs]


def _met_on_links(
    fabric: Fabric, sent: Sequence[tuple[IterationState, SentTask]]
) -> dict[tuple[IterationState, int], StepTimes]:
    """Return the predicted times of independent tasks, given when each of them started.

    Tasks of independent regions meet on links, or just miss each other: some milliseconds of a
    start decide whether a transfer lasts once or twice its time alone. Late starts are errors of
    the iteration, which is predicted from dependencies.
    """
    if not sent:
        return {}
    wall_s = NS_PER_S * fabric.scale.dilation
    starts_s = [task.start_ns / wall_s - task.before_s for _, task in sent]
    first_s = min(starts_s)
    steps = [
        Step(streams=state.steps[task.number].streams, not_before_s=start_s - first_s)
        for (state, task), start_s in zip(sent, starts_s, strict=True)
    ]
    times = simulate(steps, links_goodput(fabric, steps))
    tasks = ((state, task.number) for state, task in sent)
    return dict(zip(tasks, times, strict=True))
