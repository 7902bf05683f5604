"""A fabric on the nodes of a Ray cluster: placed, served, and removed from any of them."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from moefabric.core.errors import FabricError, SpecError
from moefabric.core.machines import Machine, MachinePlacement, Strategy
from moefabric.core.resource_needs import EPS, fabric_needs, head_needs
from moefabric.core.topology import Fabric
from moefabric.testbed.cluster.ray_client import connected
from moefabric.testbed.cluster.ray_reservation import START_S, Reservation, head_actor, remove_here
from moefabric.testbed.placed_fabric import Placer

_SECRET_BYTES: Final = 32


def placer(
    address: str,
    strategy: str = Strategy.PACK,
    *,
    detached: bool = False,
    open_cluster: bool = False,
) -> Placer:
    """Return a function that places a fabric on a Ray cluster while its context lasts.

    It reserves nodes, and starts a machine service on each but this one, which is the head. It
    raises UnsupportedError if the fabric doesn't fit, or a node can't carry it, and FabricError if
    a node failed.

    Args:
        address: HOST:PORT of the cluster's head, or `auto` for the cluster of this machine.
        strategy: How regions and EPS are spread over nodes.
        detached: Whether the nodes stay reserved after the context, until the fabric ends. After an
            exception they don't.
        open_cluster: Whether the cluster may do without a token.

    Raises:
        SpecError: There is no such strategy.
    """
    if strategy not in list(Strategy):
        raise SpecError([("spread", f"{strategy} is not one of {', '.join(Strategy)}")])
    chosen = Strategy(strategy)

    @contextmanager
    def placed(fabric: Fabric) -> Iterator[MachinePlacement]:
        needs = head_needs(fabric), fabric_needs(fabric)
        with connected(address, open_cluster=open_cluster) as ray:
            reservation = Reservation(ray, fabric.name, *needs, chosen, detached=detached)
            try:
                yield _placement(fabric, reservation)
                if detached:
                    head = reservation.nodes[0].node.name
                    reservation.call("keep", {head: [fabric.name]})
            except BaseException:
                reservation.release()
                raise
            if not detached:
                reservation.release()

    return placed


def _placement(fabric: Fabric, reservation: Reservation) -> MachinePlacement:
    """Start the machine services, and return the machines with their parts."""
    head, *others = reservation.nodes
    secret_of = {reserved.node.name: secrets.token_hex(_SECRET_BYTES) for reserved in others}
    ports = reservation.call(
        "serve",
        {
            reserved.node.name: [fabric.name, reserved.node.address, secret_of[reserved.node.name]]
            for reserved in others
        },
    )
    machines = [
        Machine(head.node.name, head.node.address),
        *(
            Machine(reserved.node.name, reserved.node.address, port, secret_of[reserved.node.name])
            for reserved, port in zip(others, ports, strict=True)
        ),
    ]
    place = {part: reserved.node.name for reserved in reservation.nodes for part in reserved.parts}
    eps = place.pop(EPS, head.node.name)
    return MachinePlacement.of(fabric, machines, place, eps)


def remove_fabric(address: str, name: str) -> str:
    """Remove a fabric that `up` has left on a cluster, from any node; return the printed text.

    Args:
        address: HOST:PORT of the cluster's head, or `auto`.
        name: Name of the fabric.

    Raises:
        FabricError: The cluster has no such fabric, or its head doesn't remove it.
    """
    with connected(address, open_cluster=True) as ray:  # nothing new runs there
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        try:
            head = ray.get_actor(head_actor(name))
            affinity = NodeAffinitySchedulingStrategy(ray.get(head.node_id.remote()), soft=False)
            removal = ray.remote(num_cpus=0, max_retries=0)(remove_here)
            # The actor itself ends with the fabric.
            result = removal.options(scheduling_strategy=affinity).remote(name)
            output: str = ray.get(result, timeout=START_S)
        except ValueError as error:
            raise FabricError(f"{name}: no fabric of that name on the cluster {address}") from error
        except ray.exceptions.RayTaskError as error:
            raise FabricError(str(error.cause)) from error
        except ray.exceptions.RayError as error:
            raise FabricError(
                f"{name}: its head doesn't answer; if it is gone, its parts end within 30 s"
            ) from error
    return output
