"""What the fluid model says of an experiment before a packet is sent: no root, no fabric."""

from pathlib import Path
from statistics import median

from controller.planner.plan import policy_named
from controller.planner.policy import Policy
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.results import Json
from moefabric.experiment.sending import lit_together, planned_flows
from moefabric.experiment.workload import Workload, workload_on
from moefabric.fluid import predict_regions
from moefabric.iteration import Collective, Compute, Reconfigure
from moefabric.scaling import propose
from moefabric.spec.experiment import ExperimentSpec, FabricChoice
from moefabric.topology import Fabric, Region, Scale
from moefabric.units import NS_PER_S


def predicted(spec: ExperimentSpec, folder: Path) -> Json:
    """Per fabric: iteration, exposed communication and all-to-all seconds, as the fluid model has them."""
    fabrics = []
    for choice in spec.fabrics:
        fabric = spec.wired(choice, "predict", Scale())
        work = workload_on(spec, fabric, folder)
        iterations = [_iteration(choice, fabric, work, number) for number in range(work.iterations)]
        a2a = [seconds for each in iterations for seconds in each["collectives_s"]]
        total = sum(each["seconds"] for each in iterations) / len(iterations)
        compute = sum(each["compute_s"] for each in iterations) / len(iterations)
        fabrics.append(
            {
                "fabric": choice.name,
                "policy": choice.policy,
                "iteration_s": total,
                "compute_s": compute,
                "exposed_comm_s": total - compute,
                "all_to_all_s": median(a2a),
                "light_share": sum(e["light"] for e in iterations)
                / max(1.0, sum(e["bytes"] for e in iterations)),
                "reconfigurations": sum(each["moves"] for each in iterations),
            }
        )
    base = next((f["all_to_all_s"] for f in fabrics if f["policy"] == "eps"), None)
    for entry in fabrics:
        entry["all_to_all_vs_eps"] = entry["all_to_all_s"] / base if base else None
    return {"experiment": spec.experiment, "fabrics": fabrics}


def proposed_scale(spec: ExperimentSpec, folder: Path, datapath: str) -> Scale:
    """The scale that the file gives, or else the one at which this machine tells the truth."""
    if spec.scale != "auto":
        return Scale(spec.scale.bytes, spec.scale.dilation)
    wired = {choice: spec.wired(choice, "scale", Scale()) for choice in spec.fabrics}
    shortest = min(
        seconds
        for choice, fabric in wired.items()
        for seconds in _iteration(choice, fabric, workload_on(spec, fabric, folder), 0)["collectives_s"]
    )
    return propose((fabric for choice, fabric in wired.items() if not choice.hosts), shortest, datapath)


def _iteration(choice: FabricChoice, fabric: Fabric, work: Workload, number: int) -> Json:
    """One iteration, with the light that the policy would have moved; settling is waited for in the forward pass."""
    policy = policy_named(choice.policy)
    moving = policy.moves
    settle = max((_settle_s(region) for region in fabric.regions), default=0.0)
    lit = CircuitSet()
    if not moving or number:
        lit = _lit(policy, fabric, work.layers(number - 1 if moving else 0)[0].demand, lit)
    seconds = compute = sent = light = 0.0
    moves, collectives = 0, []
    for operation in work.operations(number):
        match operation:
            case Compute(meanwhile=meanwhile):
                wait = 0.0
                if meanwhile is not None and moving:
                    lit, changed = _moved(policy, fabric, meanwhile, lit)
                    moves, wait = moves + changed, settle * bool(changed)
                compute += operation.slowest_s
                seconds += max(operation.slowest_s, wait)
            case Reconfigure() if moving:
                lit, changed = _moved(policy, fabric, operation, lit)
                moves, seconds = moves + changed, seconds + settle * bool(changed)
            case Collective():
                planned = planned_flows(fabric, policy, operation.demand, lit)
                needed = [p.seconds for p in predict_regions(fabric, lit, planned).values()]
                collectives += needed
                seconds += max(needed, default=0.0)
                sent += sum(flow.bytes for flow in planned)
                light += sum(flow.bytes for flow in planned if flow.by_light)
    return {
        "seconds": seconds, "compute_s": compute, "collectives_s": collectives, "bytes": sent, "light": light, "moves": moves
    }  # fmt: skip


def _settle_s(region: Region) -> float:
    return (region.ocs.settle_ns + region.ocs.link_up_ns) / NS_PER_S if region.ocs else 0.0


def _lit(policy: Policy, fabric: Fabric, demand: DemandMatrix, lit: CircuitSet) -> CircuitSet:
    """What the policy lights for a demand, region by region."""
    return lit_together(
        policy.circuits(fabric, region, demand.of(region.servers), lit)
        for region in fabric.regions
        if region.ocs is not None
    )


def _moved(policy: Policy, fabric: Fabric, wanted: Reconfigure, lit: CircuitSet) -> tuple[CircuitSet, int]:
    """The light that is wanted, and in how many regions it isn't what was lit."""
    target = _lit(policy, fabric, wanted.demand, lit)
    change = lit.towards(target)
    moving = {fabric.region_of[c.a.server].name for each in (change.teardown, change.setup) for c in each}
    return target, len(moving)
