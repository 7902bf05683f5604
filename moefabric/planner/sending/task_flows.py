"""The flows of a task, their routes, and their durations in the fluid model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow, PacedFlow, Share, flows
from moefabric.core.routes import route
from moefabric.core.topology import Fabric
from moefabric.planner.sending.flow_pacing import SplitPolicy, pace_flows, planned_flows
from moefabric.simulator.fair_sharing import Stream
from moefabric.simulator.fluid import Prediction, goodput_share, predict, predict_regions
from moefabric.simulator.server_times import ServerTimes, gather_and_scatter
from moefabric.workload.iterations.iteration import AllReduce, Collective, Transfer
from moefabric.workload.iterations.tasks import BackgroundTransfer, Task
from moefabric.workload.models.model import CountExchange
from moefabric.workload.placement.collective_order import ORDERED_KINDS

Groups = Mapping[str, Sequence[str]]
"""The servers that work for each region: its own, or backup servers in their places."""


def region_by_server(groups: Groups) -> dict[str, str]:
    """Return the region for which each server works."""
    return {server: region for region, servers in groups.items() for server in servers}


@dataclass(frozen=True)
class TaskFlows:
    """Flows that start together while `circuits` are lit.

    The flows of a region end together, at the time of the region's prediction. `server` are the
    times inside servers before and after them.
    """

    fabric: Fabric
    flows: tuple[Flow, ...]
    circuits: CircuitSet
    predictions: Mapping[str, Prediction]
    region_of: Mapping[str, str]
    server: ServerTimes = field(default_factory=ServerTimes)

    @property
    def seconds(self) -> float:
        """Model seconds from the start of the first flow to the end of the last one."""
        return max((prediction.seconds for prediction in self.predictions.values()), default=0.0)

    @property
    def whole_s(self) -> float:
        """Model seconds of the flows and inside servers."""
        return self.seconds + self.server.seconds

    def paced(self, *, greedy: bool = False) -> list[PacedFlow]:
        """Return the transfers of the agents, paced so that each region's flows end together."""
        seconds = [self._seconds(flow) for flow in self.flows]
        return pace_flows(self.fabric, self.flows, seconds, greedy=greedy)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """The flows at their pace, for the event simulation, with the times inside servers."""
        return self.streams_from(0.0)

    def streams_from(self, after_s: float) -> tuple[Stream, ...]:
        """Return the flows at their pace, `after_s` model seconds after the first ones start."""
        return tuple(
            Stream(
                flow.bytes,
                route(self.fabric, self.circuits, flow),
                8 * flow.bytes / self._seconds(flow),
                self.server.before_s + after_s,
                self.server.after_s,
            )
            for flow in self.flows
        )

    def _seconds(self, flow: Flow) -> float:
        return self.predictions[self.region_of[flow.src]].seconds


def with_counts(fabric: Fabric, server: ServerTimes, counts: CountExchange | None) -> ServerTimes:
    """Return times that begin with the exchange of token counts, if there is one.

    It takes a NIC of each server, the slowest of which bounds the ring.
    """
    if counts is None:
        return server
    counts_s = counts.seconds(min(fabric.rates_bps) * goodput_share(fabric.mtu))
    return replace(server, before_s=counts_s + server.before_s)


def _circuits_within(circuits: CircuitSet, working: Groups) -> CircuitSet:
    """Return the circuits whose two ends are at servers that work."""
    names = {server for servers in working.values() for server in servers}
    if all(names.issuperset(c.pair) for c in circuits.circuits):
        return circuits
    return CircuitSet(frozenset(c for c in circuits if names.issuperset(c.pair)))


def task_flows(
    fabric: Fabric,
    policy: SplitPolicy,
    task: Task,
    circuits: CircuitSet,
    groups: Groups,
    *,
    greedy: bool = False,
) -> TaskFlows | None:
    """Return the flows of a task over `circuits` of its regions; None if it sends nothing.

    Traffic between servers of different regions crosses the EPS, and ends at one time for all of
    these regions; in a fabric without electrical NICs, sums of gradients take circuits. Servers
    that don't work forward nothing. `greedy` flows are not consolidated.
    """
    lit, least_s = CircuitSet(), 0.0
    working = {region: groups[region] for region in task.regions}
    match task.work:
        case Collective(demand=demand, split_demands=assumed):
            lit = _circuits_within(circuits, working)
            planned = planned_flows(
                fabric, policy, demand, lit, working, greedy=greedy, split_demands=assumed
            )
        case AllReduce(pairs=pairs, bytes=size) if not fabric.electrical:
            lit = _circuits_within(circuits, working)
            servers = tuple(chain.from_iterable(working.values()))
            rings = DemandMatrix.of_pairs(servers, [(src, dst, size) for src, dst in pairs])
            planned = planned_flows(fabric, policy, rings, lit, working, greedy=greedy)
        case Transfer(pairs=pairs, bytes=size) | AllReduce(pairs=pairs, bytes=size) as work:
            planned = flows(fabric, lit, [Share(src, dst, 0.0, size) for src, dst in pairs])
            least_s = work.least_s if isinstance(work, AllReduce) else 0.0
        case BackgroundTransfer(flows=planned, seconds=least_s):
            pass
        case _:
            return None
    if not planned:
        return None
    region_of, server = region_by_server(groups), ServerTimes()
    if isinstance(task.work, Collective):
        predictions = predict_regions(fabric, lit, planned, region_of)
        if task.work.kind in ORDERED_KINDS:
            server = with_counts(fabric, gather_and_scatter(fabric, lit, planned), task.work.counts)
    else:
        together = predict(fabric, lit, planned)
        together = replace(together, seconds=max(together.seconds, least_s))
        predictions = dict.fromkeys(task.regions, together)
    return TaskFlows(fabric, planned, lit, predictions, region_of, server)
