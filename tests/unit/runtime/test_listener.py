"""Listeners without descriptors: connections are refused or wait, and the process goes on."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from moefabric.runtime.listener import SpareDescriptors


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Leave this process so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + 1 + left
    with ExitStack() as held:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with suppress(OSError):
            while True:
                held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield


def test_connection_without_descriptors_is_refused_and_later_ones_are_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        spare, address = SpareDescriptors(), listener.getsockname()
        with socket.create_connection(address) as refused, descriptors(0):
            assert spare.accept(listener) is None
            assert refused.recv(1) == b""
        with socket.create_connection(address) as client:
            accepted = spare.accept(listener)
            assert accepted is not None
            accepted.sendall(b".")
            assert client.recv(1) == b"."
            accepted.close()
        spare.release()


def test_released_descriptors_can_be_used() -> None:
    spare = SpareDescriptors(2)
    with descriptors(0), ExitStack() as opened:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        spare.release()
        for _ in range(2):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
