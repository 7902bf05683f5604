"""What the fluid model says of an experiment before a packet is sent: no root, no fabric."""

from pathlib import Path
from statistics import median

from controller.planner.plan import policy_named
from moefabric.baseline import baseline
from moefabric.circuits import CircuitSet
from moefabric.experiment.costs import against_eps, cost
from moefabric.experiment.first import first_foretold
from moefabric.experiment.jobs import Jobs
from moefabric.experiment.jobs import predicted as predicted_apart
from moefabric.experiment.results import Json, wiring
from moefabric.experiment.walk import Walk, Walked
from moefabric.experiment.workload import Workload, workload_on
from moefabric.scaling import propose
from moefabric.spec.experiment import ExperimentSpec, FabricChoice
from moefabric.topology import Fabric, Scale


def predicted(spec: ExperimentSpec, folder: Path) -> Json:
    """Per fabric: iteration, exposed communication and all-to-all seconds, as the fluid model has them."""
    fabrics: list[Json] = []
    for choice in spec.fabrics:
        fabric = spec.wired(choice, "predict", Scale())
        work = workload_on(spec, fabric, folder).under(choice.first)
        iterations = _walked(spec, choice, fabric, work, work.iterations)
        guesses = (
            {number: work.guesses(number) for number in range(work.iterations)} if work.foresight else None
        )
        a2a = [seconds for each in iterations for seconds in each.collectives_s]
        total = sum(each.seconds for each in iterations) / len(iterations)
        compute = sum(each.compute_s for each in iterations) / len(iterations)
        fabrics.append(
            {
                "fabric": choice.name,
                "policy": choice.policy,
                "wiring": wiring(fabric),
                "iteration_s": total,
                "compute_s": compute,
                "exposed_comm_s": total - compute,
                "all_to_all_s": median(a2a),
                "light_share": sum(e.by_light for e in iterations)
                / max(1.0, sum(e.bytes for e in iterations)),
                "reconfigurations": sum(each.moves for each in iterations),
                "cost": cost(fabric, total),
                "first": choice.first,
                "first_all_to_all": first_foretold([each.firsts for each in iterations], guesses),
            }
        )
    base = baseline(fabrics)
    for entry in fabrics:
        entry["all_to_all_vs_eps"] = entry["all_to_all_s"] / base["all_to_all_s"] if base else None
    against_eps(fabrics)
    return {"experiment": spec.experiment, "fabrics": fabrics}


def proposed_scale(spec: ExperimentSpec, folder: Path, datapath: str) -> Scale:
    """The scale that the file gives, or else the one at which this machine tells the truth."""
    if spec.scale != "auto":
        return Scale(spec.scale.bytes, spec.scale.dilation)
    wired = {choice: spec.wired(choice, "scale", Scale()) for choice in spec.fabrics}
    shortest = min(
        seconds
        for choice, fabric in wired.items()
        for work in [workload_on(spec, fabric, folder).under(choice.first)]
        for seconds in _walked(spec, choice, fabric, work, 1)[0].collectives_s
    )
    together = spec.group if spec.training.apart else None
    emulated = (fabric for choice, fabric in wired.items() if not choice.hosts)
    return propose(emulated, shortest, datapath, together=together)


def _walked(
    spec: ExperimentSpec, choice: FabricChoice, fabric: Fabric, work: Workload, iterations: int
) -> list[Walked]:
    """So many iterations, with the light that the policy would have moved; what is lit once is lit for the whole job."""
    policy = policy_named(choice.policy)
    walk = Walk(fabric, policy, CircuitSet(), moves=policy.moves)
    if not policy.moves:
        walk.lit = walk.target(work.whole_demand())
    if not spec.training.apart:
        return [walk.iteration(work.operations(number)) for number in range(iterations)]
    jobs = Jobs(fabric, work, spec.training.shape)
    return [
        Walked(
            each.seconds,
            each.compute_s,
            [seconds for _, seconds in each.all_to_alls],
            bytes=sum(flow.bytes for sent, _ in each.all_to_alls for flow in sent.flows),
            by_light=sum(flow.bytes for sent, _ in each.all_to_alls for flow in sent.flows if flow.by_light),
            moves=each.moves,
            firsts=list(each.firsts),
        )
        for each in predicted_apart(jobs, policy, walk.lit, iterations, moves=policy.moves)
    ]
