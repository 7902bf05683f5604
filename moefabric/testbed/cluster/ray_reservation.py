"""Nodes of a Ray cluster for the parts of a fabric, reserved together by a placement group.

A part is a bundle of the placement group, so that Ray never splits it. Ray chooses the nodes, and
waits without end where parts don't fit. So `fit` checks that before, with the rules of Ray's
placement strategies (Ray documentation, "Placement Groups"). The head, which has the controllers,
is the node of this process. An actor on each node holds the programs there, in a process that Ray
has started, and ends with the reservation.
"""

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.core.machines import Strategy
from moefabric.core.resource_needs import ResourceNeeds, total_needs
from moefabric.runtime.environment import passed_environment
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed.cluster.ray_client import last_line, load_ray

_REMEDY = "lower the scale or add a node"
_SERVICE: Final = (sys.executable, "-m", "moefabric.testbed.cluster.service")
_RESERVE_S: Final = 60.0
"""Limit of a reservation. Ray offers a dead node until its heartbeats are missed, up to 30 s."""
START_S: Final = 60.0
"""Limit of the start of a Python process on a node."""
_PLACES: Final = {Strategy.STRICT_PACK: "on one node", Strategy.STRICT_SPREAD: "on a node each"}


@dataclass(frozen=True)
class NodeFacts:
    """Facts of a node that have to agree with those of the head, or that a fabric needs.

    Attributes:
        node: Host name.
        moefabric: Version of this package.
        sources: Digest of its source files.
        python: Major and minor version of Python.
        is_root: Whether programs that Ray starts there run as root.
    """

    node: str
    moefabric: str
    sources: str
    python: str
    is_root: bool


def own_facts() -> NodeFacts:
    """Return the facts of this machine."""
    return NodeFacts(
        node=platform.node(),
        moefabric=version("moefabric"),
        sources=_source_digest(),
        python=".".join(platform.python_version_tuple()[:2]),
        is_root=os.geteuid() == 0,
    )


def check_nodes(head: NodeFacts, nodes: Sequence[NodeFacts]) -> None:
    """Check that nodes can carry parts of a fabric.

    Raises:
        UnsupportedError: With all faults of all nodes, and the remedies.
    """
    if faults := [fault for node in nodes for fault in _faults(head, node)]:
        raise UnsupportedError("\n".join(faults))


def _faults(head: NodeFacts, node: NodeFacts) -> Iterator[str]:
    if node.python != head.python:
        yield (
            f"{node.node}: Python {node.python}, and {head.python} on {head.node}: start Ray there "
            "from an environment with the same Python"
        )
    if node.moefabric != head.moefabric:
        yield (
            f"{node.node}: moefabric {node.moefabric}, and {head.moefabric} on {head.node}: "
            "install the same version"
        )
    elif node.sources != head.sources:
        yield (
            f"{node.node}: moefabric {node.moefabric} with other source files than on {head.node}: "
            "install the same build"
        )
    if not node.is_root:
        yield (
            f"{node.node}: Ray doesn't run as root, which fabrics need: `sudo -E ray start` there, "
            "with RAY_AUTH_TOKEN"
        )


def _source_digest() -> str:
    """Return a digest of this package's source files, which editable installations may change."""
    root = Path(__file__).parents[2]
    paths = sorted(
        Path(folder, file)
        for folder, _, files in os.walk(root, followlinks=True)
        for file in files
        if file.endswith(".py")
    )
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class ClusterNode:
    """A node of a cluster.

    Attributes:
        name: Its host name, as users know it.
        node_id: Its identity in the cluster.
        address: Its IPv4 address in the cluster.
        free: What no other reservation has.
    """

    name: str
    node_id: str
    address: str
    free: ResourceNeeds


def check_room(
    parts: Mapping[str, ResourceNeeds], nodes: Collection[ClusterNode], strategy: Strategy
) -> None:
    """Check that Ray finds nodes for all parts, which are placed from the largest to the smallest.

    Args:
        parts: What each part needs, by name.
        nodes: The nodes of the cluster.
        strategy: How parts are spread.

    Raises:
        UnsupportedError: A part fits on no node, or the parts don't fit together; with numbers.
    """
    _check_each(parts, nodes)
    units = sorted(parts.values(), key=lambda needs: -needs.cores)
    if strategy is Strategy.STRICT_PACK:
        units = [total_needs(units)]
    left = [node.free for node in nodes]
    for needs in units:
        able = [free for free in left if needs.fit_in(free)]
        if not able:
            raise UnsupportedError(_together(parts, nodes, _PLACES.get(strategy, "together")))
        tightest = min(able, key=lambda free: free.cores)
        left.remove(tightest)
        if strategy is not Strategy.STRICT_SPREAD:
            left.append(tightest - needs)


def _check_each(parts: Mapping[str, ResourceNeeds], nodes: Collection[ClusterNode]) -> None:
    """Raise UnsupportedError if a part fits on no node."""
    cores = max((node.free.cores for node in nodes), default=0.0)
    memory = max((node.free.memory_bytes for node in nodes), default=0)
    for part, needs in parts.items():
        if needs.cores > cores:
            raise UnsupportedError(
                f"{part} needs {needs.cores:.3g} cores, no node has more than {cores:.3g} left; "
                f"{_REMEDY}"
            )
        if needs.memory_bytes > memory:
            raise UnsupportedError(
                f"{part} needs {needs.memory_bytes / 1e6:.0f} MB, "
                f"no node has more than {memory / 1e6:.0f} MB left; add a node with more"
            )


def _together(
    parts: Mapping[str, ResourceNeeds], nodes: Collection[ClusterNode], where: str
) -> str:
    needs = total_needs(parts.values())
    free = ", ".join(f"{node.name} {node.free}" for node in nodes)
    return f"{len(parts)} parts need {needs} {where}, and free are: {free}; {_REMEDY}"


def group_name(fabric: str) -> str:
    """Return the name of the placement group of a fabric."""
    return f"moefabric-{fabric}"


def head_actor(fabric: str) -> str:
    """Return the name of the actor on the head of a fabric."""
    return f"{fabric}/"


def release(ray: Any, fabric: str) -> None:
    """Give the nodes of a fabric back, and end its actors with all that they hold; the head's last.

    Args:
        ray: Ray, connected.
        fabric: Name of the fabric.
    """
    head = head_actor(fabric)
    with suppress(ValueError):  # it is gone
        ray.util.remove_placement_group(ray.util.get_placement_group(group_name(fabric)))
    names = [name for name in ray.util.list_named_actors() if name.startswith(head)]
    for name in sorted(names, reverse=True):
        with suppress(ValueError):  # it has just ended
            ray.kill(ray.get_actor(name))


class NodeActor:
    """Holds the machine service of its node, which ends with it; on the head, the reservation."""

    def __init__(self) -> None:
        self._service: subprocess.Popen[str] | None = None

    def facts(self) -> NodeFacts:
        """Return the versions that the node has installed."""
        return own_facts()

    def serve(self, fabric: str, address: str, secret: str) -> int:
        """Start the machine service, and return its TCP port.

        It ends with its part of the fabric. If the head is gone, the fabric's nodes are released.

        Args:
            fabric: Name of the fabric.
            address: IPv4 address at which it listens.
            secret: Shared secret, by which the service and the head authenticate each other.

        Raises:
            FabricError: The service ended at once; names its reason.
        """
        self._service = subprocess.Popen(
            [*_SERVICE, "--listen", address, "--once"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=passed_environment(),
        )
        assert self._service.stdin is not None
        assert self._service.stdout is not None
        self._service.stdin.write(secret + "\n")
        self._service.stdin.flush()
        line = self._service.stdout.readline()
        if not line:
            raise FabricError(f"its machine service exited {self._service.wait()}")
        watched = (self._service, fabric)
        threading.Thread(target=_release_without_head, args=watched, daemon=True).start()
        return int(json.loads(line)["port"])

    def keep(self, fabric: str) -> None:
        """Release the reservation when the fabric's process ends, which runs on this node."""
        threading.Thread(target=_release_after, args=(fabric,), daemon=True).start()

    def node_id(self) -> str:
        """Return the identity of the node in the cluster."""
        node_id: str = load_ray().get_runtime_context().get_node_id()
        return node_id


def remove_here(fabric: str) -> str:
    """Remove a fabric whose head is this node, and return the output of `moefabric down`.

    Raises:
        FabricError: `moefabric down` failed.
    """
    argv = [sys.executable, "-m", "moefabric", "down", fabric]
    command = subprocess.run(argv, capture_output=True, text=True, check=False)
    if command.returncode:
        raise FabricError(command.stderr.strip() or f"`moefabric down` exited {command.returncode}")
    return command.stdout


def _release_without_head(service: "subprocess.Popen[str]", fabric: str) -> None:
    """Wait until a machine service has ended, and release the fabric's nodes if no head does."""
    service.wait()
    ray: Any = load_ray()
    try:
        ray.get(ray.get_actor(head_actor(fabric)).node_id.remote())
    except (ValueError, ray.exceptions.RayError):
        release(ray, fabric)


def _release_after(fabric: str) -> None:
    """Wait until the fabric's process on this node has ended, and release the fabric's nodes."""
    with (
        suppress(FileNotFoundError),  # it has ended already
        RunDirectory.of_fabric(fabric).life_file.open() as file,
    ):
        fcntl.flock(file, fcntl.LOCK_SH)  # its process has the lock until its end
    release(load_ray(), fabric)


@dataclass(frozen=True)
class ReservedNode:
    """A node with parts of a fabric.

    Attributes:
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
        head_node = nodes[own_id]
        check_room({"head": head}, [head_node], strategy)
        without_head = {**nodes, own_id: replace(head_node, free=head_node.free - head)}
        check_room(parts, without_head.values(), strategy)
        try:
            self._reserve_head(head_node, head)
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
            actor = self._actor(head_actor(self._name) + node.name, bundle)
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
