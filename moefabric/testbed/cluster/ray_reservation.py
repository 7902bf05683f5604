"""Nodes of a Ray cluster for the parts of a fabric, reserved together by a placement group.

A part is a bundle of the placement group, so that Ray never splits it. The head, which has the
controllers, is the node of this process. An actor on each node
(`moefabric.testbed.cluster.ray_actor`) holds the programs there and ends with the reservation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.core.machines import Strategy
from moefabric.core.resource_needs import ResourceNeeds
from moefabric.testbed.cluster.fit import ClusterNode, fit
from moefabric.testbed.cluster.node_facts import check_nodes, own_facts
from moefabric.testbed.cluster.ray_actor import NodeActor
from moefabric.testbed.cluster.ray_client import (
    group_name,
    head_actor,
    last_line,
    node_actor,
    release,
)

_RESERVE_S: Final = 60.0
"""Limit of a reservation. Ray offers a dead node until its heartbeats are missed, up to 30 s."""
START_S: Final = 60.0
"""Limit of the start of a Python process on a node."""
_HEAD: Final = "head"


@dataclass(frozen=True)
class ReservedNode:
    """A node with parts of a fabric.

    Attributes:
        node: The node.
        parts: Names of its parts; the head may have none.
        actor: Handle of its actor.
    """

    node: ClusterNode
    parts: tuple[str, ...]
    actor: Any


def cluster_nodes(ray: Any) -> list[ClusterNode]:
    """Return the living nodes of a cluster, each with its free resources.

    A node is named by its host name, followed by its address if other nodes have that name too.
    """
    state: Any = import_module("ray._private.state")  # no public function returns what is free
    free = state.available_resources_per_node()
    alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] in free]
    names = Counter(node["NodeManagerHostname"] for node in alive)
    return [
        ClusterNode(
            name=name if names[name] == 1 else f"{name}-{node['NodeManagerAddress']}",
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            free=ResourceNeeds(left.get("CPU", 0.0), int(left.get("memory", 0))),
        )
        for node in alive
        for name, left in [(node["NodeManagerHostname"], free[node["NodeID"]])]
    ]


class Reservation:
    """Nodes that are reserved for a fabric, until `release` or the end of this process.

    Args:
        ray: Ray, connected (`moefabric.testbed.cluster.ray_client.connected`).
        name: Name of the fabric.
        head: What the head needs.
        parts: What each other part needs, by name.
        strategy: How parts are spread over nodes.
        detached: Whether the reservation outlives this process.

    Attributes:
        nodes: The nodes with their parts, the head first.

    Raises:
        UnsupportedError: The parts don't fit, or a node can't carry parts; names numbers and
            remedies.
    """

    def __init__(
        self,
        ray: Any,
        name: str,
        head: ResourceNeeds,
        parts: Mapping[str, ResourceNeeds],
        strategy: Strategy = Strategy.PACK,
        *,
        detached: bool = False,
    ) -> None:
        self._ray, self._name = ray, name
        self._lifetime = "detached" if detached else None
        self.nodes: list[ReservedNode] = []
        own_id = ray.get_runtime_context().get_node_id()
        nodes = {node.node_id: node for node in cluster_nodes(ray)}
        own = nodes[own_id]
        fit({_HEAD: head}, [own], strategy)
        without_head = {**nodes, own_id: replace(own, free=own.free - head)}
        fit(parts, list(without_head.values()), strategy)
        try:
            self._reserve_head(own, head)
            self._reserve_parts(parts, nodes, strategy)
            check_nodes(own_facts(), self.call("facts"))
        except BaseException:
            self.release()
            raise

    def _reserve_head(self, node: ClusterNode, needs: ResourceNeeds) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        affinity = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        size = {"num_cpus": needs.cores, "memory": needs.memory_bytes}
        actor = self._actor(head_actor(self._name), affinity, **size)
        self.nodes.append(ReservedNode(node, (), actor))

    def _reserve_parts(
        self,
        parts: Mapping[str, ResourceNeeds],
        nodes: Mapping[str, ClusterNode],
        strategy: Strategy,
    ) -> None:
        """Reserve all parts at once, and start an actor on each further node with parts."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        util = self._ray.util
        group = util.placement_group(
            [{"CPU": needs.cores, "memory": needs.memory_bytes} for needs in parts.values()],
            strategy=strategy.name,
            name=group_name(self._name),
            lifetime=self._lifetime,
        )
        if not group.wait(_RESERVE_S):
            raise UnsupportedError(
                f"{self._name}: its parts have no nodes after {_RESERVE_S:.0f} s: others have "
                "reserved them meanwhile, or one has died; `ray status` shows what is free"
            )
        bundles = util.placement_group_table(group)["bundles_to_node_id"]
        places = [nodes[bundles[index]] for index in range(len(parts))]
        (head,) = self.nodes
        for node in dict.fromkeys([head.node, *places]):
            own_parts = tuple(p for p, place in zip(parts, places, strict=True) if place == node)
            if node == head.node:
                self.nodes[0] = replace(head, parts=own_parts)
                continue
            bundle = PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=places.index(node)
            )
            actor = self._actor(node_actor(self._name, node.name), bundle)
            self.nodes.append(ReservedNode(node, own_parts, actor))

    def _actor(self, name: str, place: Any, **size: float) -> Any:
        """Start an actor, and return its handle before it has started."""
        actor = self._ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(NodeActor)
        options = {"lifetime": self._lifetime, "scheduling_strategy": place, **size}
        return actor.options(name=name, **options).remote()

    def call(self, method: str, arguments: Mapping[str, Sequence[Any]] | None = None) -> list[Any]:
        """Call a method of actors, and return their results in the order of `nodes`.

        Args:
            method: Name of the method.
            arguments: Its arguments, by name of the node. Default: none, on all nodes.

        Raises:
            UnsupportedError: A node can't load this package.
            FabricError: A node failed; the message names it.
        """
        if arguments is None:
            arguments = {reserved.node.name: () for reserved in self.nodes}
        called = [reserved for reserved in self.nodes if reserved.node.name in arguments]
        pending = [getattr(r.actor, method).remote(*arguments[r.node.name]) for r in called]
        return [self._result(r, result) for r, result in zip(called, pending, strict=True)]

    def _result(self, reserved: ReservedNode, result: Any) -> Any:
        errors, node = self._ray.exceptions, reserved.node.name
        try:
            return self._ray.get(result, timeout=START_S)
        except errors.GetTimeoutError as error:
            raise FabricError(
                f"{node}: no answer within {START_S:.0f} s; look into Ray's logs there "
                "(/tmp/ray/session_latest/logs)"
            ) from error
        except errors.RayTaskError as error:
            raise FabricError(f"{node}: {error.cause}") from error
        except errors.RayError as error:
            reason = last_line(error)
            raise UnsupportedError(
                f"{node}: no process of moefabric there (Ray: {reason}): start Ray from an "
                "environment with moefabric[cluster]"
            ) from error

    def release(self) -> None:
        """Give the nodes back, and end the actors with all that they hold."""
        release(self._ray, self._name)
