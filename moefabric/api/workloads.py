"""Workloads: models, gating, iterations of training, graphs of operations, and their bytes."""

from moefabric.traces.gating_files import load_gating
from moefabric.traces.route_files import load_routes
from moefabric.workload.gating import copilot
from moefabric.workload.gating.job_gating import JobGating
from moefabric.workload.gating.presets import preset as gating_preset
from moefabric.workload.gating.token_routes import (
    Experts,
    LayerRoutes,
    Pairs,
    TokenRoutes,
    coactivation,
)
from moefabric.workload.gating.traces import add_noise, repeat_for_servers
from moefabric.workload.graphs.execution_graph import CollectiveKind, Node
from moefabric.workload.iterations.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.workload.iterations.job import (
    JobShape,
    StageContents,
    activation_bytes,
    gradient_bytes,
    stage_contents,
)
from moefabric.workload.models.model import (
    BACKWARD,
    BYTES_BF16,
    DIRECTIONS,
    ComputeModel,
    Direction,
)
from moefabric.workload.models.payload import BigMac, Payloads, PayloadTransform, Plain
from moefabric.workload.placement.collective_order import Bytes, CollectiveOrder
from moefabric.workload.placement.placements import groups_by_load

__all__ = [
    "BACKWARD", "BYTES_BF16", "DIRECTIONS", "BigMac", "Bytes", "Collective", "CollectiveKind",
    "CollectiveOrder", "Compute", "ComputeModel", "Direction", "Experts", "JobGating", "JobShape",
    "LayerRoutes", "Node", "Operation", "Pairs", "PayloadTransform", "Payloads", "Plain",
    "Reconfigure", "StageContents", "TokenRoutes", "activation_bytes", "add_noise", "coactivation",
    "copilot", "gating_preset", "gradient_bytes", "groups_by_load", "load_gating", "load_routes",
    "repeat_for_servers", "stage_contents",
]  # fmt: skip
