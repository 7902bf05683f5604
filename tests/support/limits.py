"""Limits of resources in tests."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Limit the size of files, in bytes: as on a full file system, write(2) fails beyond it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
