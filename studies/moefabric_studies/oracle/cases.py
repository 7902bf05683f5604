"""The cases that other simulators judge: all-to-alls of the examples on their fabrics."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from moefabric import (
    NS_PER_S,
    CircuitSet,
    DemandMatrix,
    Fabric,
    Flow,
    Policy,
    Scale,
    flows,
    policy_named,
)
from moefabric.api import predictions
from moefabric.api.networks import best_split, planned_flows
from moefabric.api.plugins import ExperimentSpec, FabricChoice, load_experiment, read_yaml
from moefabric_studies.oracle.own_simulators import fluid_bound_s
from moefabric_studies.oracle.results import INTO_THE_DARK
from moefabric_studies.oracle.scenario import FlowStep, Outage, Scenario, routed_flows, scenario
from moefabric_studies.raw_tables import FrozenPart

_OPENING_S: Final = 100e-6
"""Time in which connections and their windows open before circuits go dark, as those of a job are
open that has run for a while."""
MTU: Final = 9000
"""Jumbo frames: a sixth of the packets of an MTU of 1,500 bytes."""


@dataclass(frozen=True)
class Case:
    """Flows of one demand on one fabric.

    Attributes:
        group: The experiment; only cases of one group and demand are compared.
        demand: Name of the demand.
        fabric: Name of the fabric, or of what it does about dark circuits.
        factor: Modelled bytes and times are multiplied by it; rates aren't.
        scenario: The flows.
        predicted_s: The model's completion time.
    """

    group: str
    demand: str
    fabric: str
    factor: float
    scenario: Scenario
    predicted_s: float


class Selection(FrozenPart):
    """Demands of an experiment, in a case each."""

    file: str
    """The experiment's file."""
    demands: tuple[tuple[int, int, Literal["dispatch", "combine"]], ...]
    """Iteration, layer and kind of each demand."""
    factor: float
    """Modelled bytes and times are multiplied by it."""
    fabrics: tuple[str, ...] = ()
    """Fabrics of the experiment; all if empty."""
    group: str = ""
    """Name of the cases; the file's if empty."""
    fewer_flows: bool = False
    """Whether the EPS also carries the demand in fewer flows, one or two for each pair of servers,
    as paced runs do (`moefabric.core.flows.consolidated_flows`)."""


class Selections(FrozenPart):
    """`cases.yaml`."""

    collectives: tuple[Selection, ...]
    """Whole all-to-alls."""
    first: Selection
    """A first all-to-all whose circuits are dark."""


def cases(folder: Path) -> list[Case]:
    """Return all cases for packet simulators.

    Args:
        folder: Folder of the examples.
    """
    chosen = Selections.model_validate(read_yaml(Path(__file__).with_name("cases.yaml")))
    cases = [case for selection in chosen.collectives for case in _collectives(folder, selection)]
    return cases + list(_dark_cases(folder, chosen.first))


@dataclass(frozen=True)
class _Fabric:
    """A fabric of an experiment, wired with jumbo frames, and its workload."""

    choice: FabricChoice
    fabric: Fabric
    work: predictions.Workload
    policy: Policy

    def demand(self, iteration: int, layer: int, kind: str) -> DemandMatrix:
        demand = self.work.layer_of(iteration, layer, 0).demand
        return demand if kind == "dispatch" else demand.combine()

    def circuits(self, iteration: int, layer: int, current: CircuitSet) -> CircuitSet:
        """Return the circuits for a dispatch, or for all of them if they never change."""
        demand = (
            self.demand(iteration, layer, "dispatch")
            if self.policy.reconfigures
            else self.work.total_demand()
        )
        return predictions.deserved_circuits(self.fabric, self.policy, demand, current)


def _fabrics(folder: Path, selection: Selection) -> Iterator[_Fabric]:
    spec = load_experiment(folder / selection.file)
    for choice in spec.fabrics:
        if not selection.fabrics or choice.name in selection.fabrics:
            yield _fabric(spec, choice, folder)


def _fabric(spec: ExperimentSpec, choice: FabricChoice, folder: Path) -> _Fabric:
    fabric = replace(spec.build_fabric(choice, "oracle", Scale()), mtu=MTU)
    return _Fabric(
        choice, fabric, predictions.workload_on(spec, fabric, folder), policy_named(choice.policy)
    )


def _collectives(folder: Path, selection: Selection) -> Iterator[Case]:
    group, factor = selection.group or Path(selection.file).stem, selection.factor
    for wired in _fabrics(folder, selection):
        for iteration, layer, kind in selection.demands:
            lit = wired.circuits(iteration, layer, CircuitSet())
            demand, name = wired.demand(iteration, layer, kind), f"{iteration}.{layer} {kind}"
            spread = flows(wired.fabric, lit, wired.policy.split(wired.fabric, demand, lit))
            variants = {wired.choice.name: spread}
            if selection.fewer_flows and not wired.fabric.optical:
                fewer = planned_flows(wired.fabric, wired.policy, demand, lit)
                variants[f"{wired.choice.name}, fewer flows"] = fewer
            for fabric_name, sent in variants.items():
                seconds = _seconds(wired.fabric, lit, sent)
                step = _step(wired.fabric, lit, sent, seconds)
                whole = scenario(f"{group} {name} {fabric_name}", wired.fabric, [step])
                scaled = whole.scaled(factor)
                yield Case(group, name, fabric_name, factor, scaled, seconds * factor)


def _step(
    fabric: Fabric, lit: CircuitSet, sent: tuple[Flow, ...], seconds: float, start_s: float = 0.0
) -> FlowStep:
    return FlowStep(routed_flows(fabric, lit, sent, seconds, start_s))


def _dark_cases(folder: Path, selection: Selection) -> Iterator[Case]:
    """Yield the cases of a first all-to-all whose circuits are dark."""
    spec = load_experiment(folder / selection.file)
    [wired] = [w for w in _fabrics(folder, selection) if w.choice.name == "mixnet-block"]
    fabric, policy = wired.fabric, wired.policy
    [(iteration, layer, kind)] = selection.demands
    current = wired.circuits(iteration, layer - 1, CircuitSet())
    target = wired.circuits(iteration, layer, current)
    demand = wired.demand(iteration, layer, kind)
    ocs = fabric.regions[0].ocs
    assert ocs is not None
    settle_s = ocs.settle_ns / NS_PER_S
    dark_s = settle_s + predictions.ControlPrediction.fixed(spec.control_s).changed_s
    whole = flows(fabric, target, policy.split(fabric, demand, target))
    stale = flows(fabric, current, policy.split(fabric, demand, current))
    whole_s, stale_s = (_seconds(fabric, *sent) for sent in ((target, whole), (current, stale)))
    part = best_split(fabric, demand, current, target, dark_s)
    early, late = flows(fabric, part.kept, part.now), flows(fabric, part.new, part.later)
    divided = _step(fabric, part.kept, early, part.seconds).flows
    divided += _step(fabric, part.new, late, part.seconds - dark_s, dark_s).flows
    changed = {frozenset((str(c.a), str(c.b))) for c in target.circuits - current.circuits}
    at_once = _step(fabric, target, whole, whole_s)
    outages = tuple(
        Outage((start, end), _OPENING_S / selection.factor, settle_s)
        for start, end in dict.fromkeys(link for flow in at_once.flows for link in flow.route)
        if frozenset((start, end)) in changed and start < end
    )
    name = f"{iteration}.{layer} {kind}, {dark_s * 1e3:g} ms without new circuits"
    variants: dict[str, tuple[FlowStep, float, tuple[Outage, ...]]] = {
        "block": (_step(fabric, target, whole, whole_s, dark_s), dark_s + whole_s, ()),
        "reuse": (_step(fabric, current, stale, stale_s), stale_s, ()),
        "divert": (FlowStep(divided), part.seconds, ()),
        INTO_THE_DARK: (at_once, dark_s + whole_s, outages),
    }
    for variant, (step, seconds, dark) in variants.items():
        case = replace(scenario(f"first {variant}", fabric, [step]), outages=dark)
        factor = selection.factor
        scaled = case.scaled(factor)
        yield Case("first-all-to-all", name, variant, factor, scaled, seconds * factor)


def _seconds(fabric: Fabric, lit: CircuitSet, sent: tuple[Flow, ...]) -> float:
    return fluid_bound_s(scenario("", fabric, [_step(fabric, lit, sent, 1.0)]))


def sharing_cases(folder: Path) -> Iterator[Scenario]:
    """Yield the scenarios for SimGrid: a pipeline's iterations, and 128 servers.

    Cables have no propagation delay, because SimGrid weighs flows by their latency.

    Args:
        folder: Folder of the examples.
    """
    spec = load_experiment(folder / "pipeline.yaml")
    for choice in spec.fabrics:
        yield _iteration(spec, _fabric(spec, choice, folder))
    spec = load_experiment(folder / "paper-scale.yaml")
    for choice in spec.fabrics[:2]:
        wired = _fabric(spec, choice, folder)
        demand = wired.work.layers(0)[0].demand
        lit = predictions.deserved_circuits(wired.fabric, wired.policy, demand, CircuitSet())
        sent = planned_flows(wired.fabric, wired.policy, demand, lit)
        title = f"{len(wired.fabric.servers)} servers, {choice.name}"
        yield scenario(title, wired.fabric, [_step(wired.fabric, lit, sent, 1.0)], delay_s=0.0)


def _iteration(spec: ExperimentSpec, wired: _Fabric) -> Scenario:
    """Return a whole iteration of an experiment's jobs, with its dependencies."""
    fabric, policy = wired.fabric, wired.policy
    work = predictions.workload_of(wired.choice, wired.work)
    jobs = predictions.Jobs.of(spec, fabric, work)
    control = predictions.ControlPrediction.fixed(spec.control_s)
    moves = policy.reconfigures
    planner = predictions.TaskPlanner(fabric, policy, CircuitSet(), moves=moves, control=control)
    steps: list[FlowStep] = []
    for job in jobs.all:
        [planned] = planner.plan([jobs.tasks(job, 0, predictions.Substitutions())])
        first = len(steps)
        for task in planned:
            sent = task.flows
            routed = () if sent is None else routed_flows(fabric, sent.circuits, sent.flows, 1.0)
            after = tuple(first + number for number in task.step.after)
            steps.append(FlowStep(routed, after, task.step.seconds))
    return scenario(f"pipeline, {wired.choice.name}", fabric, steps, delay_s=0.0)
