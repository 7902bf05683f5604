"""The actor on each node of a fabric; it runs in a process that Ray has started there."""

import fcntl
import json
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed.cluster.node_facts import NodeFacts, own_facts
from moefabric.testbed.cluster.ray_client import head_actor, load_ray, release

_SERVICE: Final = (sys.executable, "-m", "moefabric.testbed.cluster.service")


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
