"""moefabric: a testbed for networks whose topology changes while a Mixture-of-Experts model trains.

Bytes, rates and seconds of experiments, demand and plans are those of the modelled cluster. Only
`Experiment.run` and a fabric's `up` need root.

Examples:
    Predict an experiment, run it, and look at its results::

        import moefabric

        experiment = moefabric.Experiment.load("examples/prototype.yaml")
        print(experiment.predict()["mixnet"].iteration_s)
        result = experiment.run()
        print(result.to_frame("collectives").groupby("fabric").measured_s.median())
        result.report("prototype.html")

    Bring a fabric up, give two servers a circuit, and run a program on one of them::

        with moefabric.load_fabric("examples/fabric.yaml").up() as lab:
            lab.light("s0~s1")
            print(lab.exec("s0", "ping -c 3 10.0.1.1").stdout)

    Plan the circuits of four servers for a demand matrix, and predict its completion time::

        from moefabric import CircuitSet, DemandMatrix, Eps, Fabric, Ocs, Region, plan, policy_named

        region = Region("r0", 0, ("s0", "s1", "s2", "s3"), Ocs("ocs0", ports=12))
        fabric = Fabric("lab", (region,), 8, 3, 1, 100e9, Eps(servers_per_leaf=4))
        rows = [[0, 9, 1, 1], [1, 0, 9, 1], [1, 1, 0, 9], [9, 1, 1, 0]]
        demand = DemandMatrix(region.servers, rows)
        chosen = plan(fabric, region, demand, policy_named("joint"), CircuitSet())
        print(chosen.circuits, chosen.predicted_s)

Names are imported when they are first used, so that `import moefabric` is cheap.
"""

TYPE_CHECKING = False  # like typing.TYPE_CHECKING; importing typing would take ten times as long
if TYPE_CHECKING:
    from moefabric.api.experiment import Experiment
    from moefabric.api.fabric import EmulatedFabric, load_fabric
    from moefabric.api.lab import Lab
    from moefabric.api.policy_check import check_policy
    from moefabric.api.result import Result
    from moefabric.api.sweep import Sweep, SweepResult
    from moefabric.config.model import load_model
    from moefabric.config.policies import policy_named
    from moefabric.core.circuits import Circuit, CircuitSet, Transition
    from moefabric.core.demand import DemandMatrix, Placement
    from moefabric.core.eps import Eps, EpsKind
    from moefabric.core.errors import (
        AgentError,
        ControlError,
        FabricError,
        MoefabricError,
        RankFailedError,
        SpecError,
        UnsupportedError,
    )
    from moefabric.core.flows import Flow, Share, Split, flows
    from moefabric.core.network_cost import inventory, network_usd
    from moefabric.core.nic import Nic
    from moefabric.core.ocs import Ocs
    from moefabric.core.routes import route
    from moefabric.core.topology import Fabric, Region
    from moefabric.core.units import (
        NS_PER_S,
        Scale,
        duration_ns,
        duration_text,
        rate_bps,
        rate_text,
        size_text,
    )
    from moefabric.planner.pair_order import PairOrderPolicy
    from moefabric.planner.plan import Plan, plan
    from moefabric.planner.policy import Policy, PolicyTraits
    from moefabric.simulator.event_simulation import Step, StepTimes, simulate, simulate_streams
    from moefabric.simulator.fair_sharing import Stream
    from moefabric.simulator.fluid import Prediction, bound_s, predict
    from moefabric.traces.formats import read_trace
    from moefabric.traces.gating_files import read_gating
    from moefabric.workload.gating.generator import GatingGenerator, GatingParameters
    from moefabric.workload.gating.traces import GatingTrace
    from moefabric.workload.graphs.execution_graph import ExecutionGraph
    from moefabric.workload.graphs.folding import fold
    from moefabric.workload.iterations.iteration import Layer, moe_layer
    from moefabric.workload.models.model import (
        GroupedAttention,
        HybridAttention,
        LatentAttention,
        Model,
        Training,
    )
    from moefabric.workload.models.model_summary import ModelSummary

__all__ = [
    "NS_PER_S", "AgentError", "Circuit", "CircuitSet", "ControlError", "DemandMatrix",
    "EmulatedFabric", "Eps", "EpsKind", "ExecutionGraph", "Experiment", "Fabric", "FabricError",
    "Flow", "GatingGenerator", "GatingParameters", "GatingTrace", "GroupedAttention",
    "HybridAttention", "Lab", "LatentAttention", "Layer", "Model", "ModelSummary", "MoefabricError",
    "Nic", "Ocs", "PairOrderPolicy", "Placement", "Plan", "Policy", "PolicyTraits", "Prediction",
    "RankFailedError", "Region", "Result", "Scale", "Share", "SpecError", "Split", "Step",
    "StepTimes", "Stream", "Sweep", "SweepResult", "Training", "Transition", "UnsupportedError",
    "bound_s", "check_policy", "duration_ns", "duration_text", "flows", "fold", "inventory",
    "load_fabric", "load_model", "moe_layer", "network_usd", "plan", "policy_named", "predict",
    "rate_bps", "rate_text", "read_gating", "read_trace", "route", "simulate", "simulate_streams",
    "size_text",
]  # fmt: skip

_MODULES = {
    "api.experiment": "Experiment",
    "api.fabric": "EmulatedFabric load_fabric",
    "api.lab": "Lab",
    "api.result": "Result",
    "config.model": "load_model",
    "api.sweep": "Sweep SweepResult",
    "config.policies": "policy_named",
    "core.circuits": "Circuit CircuitSet Transition",
    "core.demand": "DemandMatrix Placement",
    "core.eps": "Eps EpsKind",
    "core.errors": (
        "AgentError ControlError FabricError MoefabricError RankFailedError SpecError "
        "UnsupportedError"
    ),
    "core.flows": "Flow Share Split flows",
    "core.network_cost": "inventory network_usd",
    "core.nic": "Nic",
    "core.ocs": "Ocs",
    "core.routes": "route",
    "core.topology": "Fabric Region",
    "core.units": "NS_PER_S Scale duration_ns duration_text rate_bps rate_text size_text",
    "planner.pair_order": "PairOrderPolicy",
    "planner.plan": "Plan plan",
    "planner.policy": "Policy PolicyTraits",
    "api.policy_check": "check_policy",
    "simulator.event_simulation": "Step StepTimes simulate simulate_streams",
    "simulator.fair_sharing": "Stream",
    "simulator.fluid": "Prediction bound_s predict",
    "traces.formats": "read_trace",
    "workload.graphs.execution_graph": "ExecutionGraph",
    "workload.graphs.folding": "fold",
    "traces.gating_files": "read_gating",
    "workload.gating.traces": "GatingTrace",
    "workload.gating.generator": "GatingGenerator GatingParameters",
    "workload.iterations.iteration": "Layer moe_layer",
    "workload.models.model": "GroupedAttention HybridAttention LatentAttention Model Training",
    "workload.models.model_summary": "ModelSummary",
}
"""Public names by the module below `moefabric` that has them."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        from importlib import import_module

        for module, names in _MODULES.items():
            if name in names.split():
                return getattr(import_module(f"moefabric.{module}"), name)
        raise AttributeError(f"module 'moefabric' has no attribute {name!r}")
