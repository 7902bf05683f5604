"""A Ray cluster of this machine alone, for the time of a `with`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import UnsupportedError
from moefabric.runtime.scratch_folder import scratch_folder
from moefabric.testbed.cluster.ray_client import NAMESPACE, initialise, load_ray

_PARENT: Final = Path("/tmp")  # noqa: S108 - Ray's sockets need a short path; the folder is ours
_STORE_BYTES: Final = 128 << 20
"""Memory for objects that processes share: input files, and results on their way."""


@contextmanager
def local_cluster(cores: int | None = None) -> Iterator[Any]:
    """Start Ray, and yield it until the end of the `with`. Its processes end with this one.

    Args:
        cores: CPU cores that tasks may reserve. Default: those that this process may use.

    Raises:
        UnsupportedError: Ray isn't installed, or doesn't start.
    """
    ray: Any = load_ray()
    with scratch_folder("moefabric-ray-", _PARENT) as folder:
        try:
            initialise(
                ray,
                address="local",
                num_cpus=cores or len(os.sched_getaffinity(0)),
                object_store_memory=_STORE_BYTES,
                include_dashboard=False,
                namespace=NAMESPACE,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=str(folder),
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UnsupportedError(f"Ray doesn't start on this machine: {reason}") from error
        try:
            yield ray
        finally:
            ray.shutdown()
