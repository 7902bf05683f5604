"""Networks: routes, circuits, splits of bytes and prices, as pure functions of fabrics."""

from moefabric.core import network_cost
from moefabric.core.forwarding import relay_trees, tree_route
from moefabric.core.machine_speed import fabric_frame_segments, frame_bits
from moefabric.core.network_cost import PRICES, NetworkInventory, paper_network_usd
from moefabric.core.nic import NicKind
from moefabric.core.paths import relay_lanes, relay_root
from moefabric.core.routes import Link, Route, is_forwarding
from moefabric.core.server_paths import ServerPaths
from moefabric.core.transport import PACED
from moefabric.planner import joint, mixnet, static, topoopt, waterfill
from moefabric.planner.arrays import circuit_counts, circuit_matrix
from moefabric.planner.delayed_split import best_split
from moefabric.planner.even_circuits import even_order
from moefabric.planner.nic_assignment import assign_nics
from moefabric.planner.relay_linear_program import RelayLinearProgram
from moefabric.planner.sending.flow_pacing import planned_flows
from moefabric.runtime.measured_speed import machine_speed
from moefabric.simulator.fair_sharing import max_min_rates
from moefabric.simulator.fluid import goodput_share, link_rate_bps, route_latency_s
from moefabric.simulator.server_times import gather_and_scatter

__all__ = [
    "PACED", "PRICES", "Link", "NetworkInventory", "NicKind", "RelayLinearProgram", "Route",
    "ServerPaths", "assign_nics", "best_split", "circuit_counts", "circuit_matrix",
    "even_order", "fabric_frame_segments", "frame_bits", "gather_and_scatter",
    "goodput_share", "is_forwarding", "joint", "link_rate_bps", "machine_speed", "max_min_rates",
    "mixnet", "network_cost", "paper_network_usd", "planned_flows", "relay_lanes", "relay_root",
    "relay_trees", "route_latency_s", "static", "topoopt", "tree_route", "waterfill",
]  # fmt: skip
