"""Connection of this process to a Ray cluster."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from moefabric.core.errors import UnsupportedError
from moefabric.runtime.scratch_folder import scratch_folder

NAMESPACE: Final = "moefabric"
"""Ray's namespace of all named actors and placement groups of moefabric."""
_ANY: Final = "auto"
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Ray reports its use to nobody, and leaves variables of accelerators alone."""
_PARENT: Final = Path("/tmp")  # noqa: S108 - Ray's sockets need a short path; the folder is ours
_STORE_BYTES: Final = 128 << 20
"""Memory for objects that processes share: input files, and results on their way."""


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
        raise UnsupportedError(
            "Ray is not installed: run `packaging/setup cluster`, or "
            "`pip install 'moefabric[cluster]'`"
        ) from error
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
def connected(address: str) -> Iterator[Any]:
    """Connect to an existing cluster, and yield Ray until the end of the `with`.

    Actors that the process has started there without `lifetime="detached"` end with the `with`.

    Args:
        address: HOST:PORT of the cluster's head, or `auto` for the cluster of this machine.

    Raises:
        UnsupportedError: No cluster answers there, or Ray isn't installed.
    """
    where = f"{'this machine' if address == _ANY else address} has no Ray cluster"
    remedy = "start one with `ray start --head`, and join it on other machines with "
    remedy += "`ray start --address HEAD:6379`"
    with _session(f"{where}: {remedy}", address=address) as ray:
        yield ray


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
