"""Connection of this process to a Ray cluster."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from moefabric.core.errors import UnsupportedError
from moefabric.runtime.missing_package import missing_package
from moefabric.runtime.scratch_folder import scratch_folder

NAMESPACE: Final = "moefabric"
"""Ray's namespace of all named actors and placement groups of moefabric."""
_ANY: Final = "auto"
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Ray reports its use to nobody, and leaves variables of accelerators alone."""
_SECRETS: Final = frozenset({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"})
"""Variables that hold the token of a cluster, or name its file."""
_PARENT: Final = Path("/tmp")  # noqa: S108 - Ray's sockets need a short path; the folder is ours
_STORE_BYTES: Final = 128 << 20
"""Memory for objects that processes share: input files, and results on their way."""
_VARIABLES: Final = (
    "`export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(openssl rand -hex 32)`, the same on all machines "
    "and for moefabric"
)
_ASK: Final = """
import os, sys
from ray._raylet import GcsClient
print("asks", flush=True)
try:
    GcsClient(address=sys.argv[1])
except Exception as error:
    print("refused" if "InvalidAuthToken" in str(error) else error, flush=True)
else:
    print("open", flush=True)
os._exit(0)
"""
"""Program that asks the head of a cluster for the cluster's identity."""
_ASK_S: Final = 30.0
_CONNECT_S: Final = 10.0
"""Time for a connection to the head of a cluster. Ray itself tries for minutes."""


def load_ray() -> ModuleType:
    """Return Ray.

    Raises:
        UnsupportedError: Ray isn't installed.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing_package("a sweep or a cluster", "ray", "pyarrow") from error
    # Ray tells whoever starts a cluster of one machine how to do without the token.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    module: ModuleType = ray
    return module


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, which is that of its cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason"


@contextmanager
def _session(failure: str, **options: Any) -> Iterator[Any]:
    """Connect to Ray, and yield it until the end of the `with`.

    Args:
        failure: Text of the error if it doesn't work; Ray's reason follows.
        **options: Arguments of `ray.init`.
    """
    ray: Any = load_ray()
    if ray.is_initialized():
        raise UnsupportedError("this process has a connection to Ray already: end it first")
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **options)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnsupportedError(f"{failure} (Ray: {reason})") from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def connected(address: str, *, open_cluster: bool = False) -> Iterator[Any]:
    """Connect to an existing cluster, and yield Ray until the end of the `with`.

    Actors that the process has started there without `lifetime="detached"` end with the `with`.

    Args:
        address: HOST:PORT of the cluster's head, or `auto` for the cluster of this machine.
        open_cluster: Whether the cluster may do without a token.

    Raises:
        UnsupportedError: No cluster answers there, or one without a token, or Ray isn't installed.
    """
    head = os.environ.get("RAY_ADDRESS", _ANY) if address == _ANY else address
    where = f"{'this machine' if head == _ANY else head} has no Ray cluster"
    remedy = f"start one with a token, {_VARIABLES}, and `ray start --head`, and join it on other "
    remedy += "machines with `ray start --address HEAD:6379`"
    if head != _ANY and (reason := _refusal(head)):
        raise UnsupportedError(f"{where} ({reason}): {remedy}")
    with _session(f"{where}: {remedy}", address=address) as ray:
        if not open_cluster:
            check_token(ray.get_runtime_context().gcs_address)
        yield ray


def _refusal(head: str) -> str:
    """Return why nothing answers at HOST:PORT; empty if something does."""
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except TimeoutError:
        return f"no answer within {_CONNECT_S:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "is not HOST:PORT"
    return ""


def check_token(head: str) -> None:
    """Check that a cluster answers nobody who lacks its token.

    Args:
        head: HOST:PORT of its head.

    Raises:
        UnsupportedError: It does, or it can't be asked.
    """
    reply = _reply_without_token(head)
    if reply == "refused":
        return
    if reply == "open":
        raise UnsupportedError(
            f"the Ray cluster {head} has no token, so that whoever reaches its ports runs programs "
            f"on its nodes: start Ray again after {_VARIABLES}; or give --open-cluster if nobody "
            "else reaches its network"
        )
    raise UnsupportedError(
        f"whether the Ray cluster {head} demands a token is not known (Ray: {reply or 'no answer'})"
        ": give --open-cluster if nobody else reaches its network"
    )


def _reply_without_token(head: str) -> str:
    """Return how a head answers a process that has no token: `open`, `refused`, or an error."""
    environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _ASK, head],
            env=environment | {"RAY_AUTH_MODE": "disabled"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {_ASK_S:.0f} s"
    _, _, reply = completed.stdout.partition("\n")
    return " ".join(reply.split())[:200]


@contextmanager
def local_cluster(cores: int | None = None) -> Iterator[Any]:
    """Start Ray, and yield it until the end of the `with`. Its processes end with this one.

    Args:
        cores: CPU cores that tasks may reserve. Default: those that this process may use.

    Raises:
        UnsupportedError: Ray isn't installed, or doesn't start.
    """
    handler = signal.getsignal(signal.SIGTERM)
    with (
        scratch_folder("moefabric-ray-", _PARENT) as folder,
        _session(
            "Ray doesn't start on this machine",
            address="local",
            num_cpus=cores or len(os.sched_getaffinity(0)),
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            _temp_dir=str(folder),
        ) as ray,
    ):
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's aborts the process
        yield ray
