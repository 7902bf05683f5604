"""Network namespaces that a test makes, connects and removes."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from moefabric.emulator.linux import namespaces
from tests.support.paths import REPOSITORY

_numbers = count()


def must(*argv: str) -> str:
    """Run a program and return its output; AssertionError with its error output if it fails."""
    process = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert process.returncode == 0, (
        f"{' '.join(argv)} exited {process.returncode}, saying: {process.stderr.strip()}"
    )
    return process.stdout


def isolated_result(*arguments: str, folder: Path | None = None) -> Any:
    """Run Python in network and mount namespaces of its own; return the JSON that it prints last.

    Args:
        arguments: Arguments of the interpreter.
        folder: For run directories; None if it makes no fabric.
    """
    process = subprocess.run(
        ["unshare", "--net", "--mount", "--fork", "--kill-child", sys.executable, *arguments],
        cwd=REPOSITORY,
        env=os.environ
        | {"PYTHONPATH": str(REPOSITORY)}
        | ({"MOEFABRIC_RUN_DIR": str(folder)} if folder else {}),
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


class Island:
    """Namespaces joined by a veth pair (two of them) or by a bridge in another namespace."""

    def __init__(self, names: Sequence[str], undo: ExitStack) -> None:
        self.tag = f"mft{os.getpid()}-{next(_numbers)}"
        self.undo = undo
        self.names = tuple(names)
        self.addresses = {name: f"10.99.0.{i + 1}" for i, name in enumerate(names)}
        for name in names:
            self._namespace(name)
        if len(names) == 2:
            self._pair(*names)
        else:
            self._bridge()

    def netns(self, name: str) -> str:
        """Return the name of a namespace for `ip netns`."""
        return f"{self.tag}-{name}"

    def inside(self, name: str, *argv: str) -> list[str]:
        """Return the argv that runs a program in a namespace."""
        return ["ip", "netns", "exec", self.netns(name), *argv]

    def _namespace(self, name: str) -> None:
        must("ip", "netns", "add", self.netns(name))
        self.undo.callback(must, "ip", "netns", "delete", self.netns(name))
        must("ip", "-n", self.netns(name), "link", "set", "lo", "up")

    def _address(self, name: str) -> None:
        ip = ("ip", "-n", self.netns(name))
        must(*ip, "address", "add", f"{self.addresses[name]}/24", "dev", "o0")
        must(*ip, "link", "set", "o0", "up")

    def _pair(self, a: str, b: str) -> None:
        peer = ("peer", "name", "o0", "netns", self.netns(b))
        must("ip", "-n", self.netns(a), "link", "add", "o0", "type", "veth", *peer)
        self._address(a)
        self._address(b)

    def _bridge(self) -> None:
        self._namespace("wire")
        link = ("ip", "-n", self.netns("wire"), "link")
        must(*link, "add", "br0", "type", "bridge")
        must(*link, "set", "br0", "up")
        for name in self.names:
            peer = ("peer", "name", "o0", "netns", self.netns(name))
            must(*link, "add", name, "type", "veth", *peer)
            must(*link, "set", name, "master", "br0", "up")
            self._address(name)


@contextmanager
def island(*names: str) -> Iterator[Island]:
    """Yield namespaces of these names on one link; remove them afterwards."""
    with ExitStack() as undo:
        yield Island(names, undo)


@contextmanager
def own_network() -> Iterator[None]:
    """Give the calling thread, and its later children, a network namespace of its own."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        namespaces.enter_new()
        must("ip", "link", "set", "lo", "up")
        yield
    finally:
        namespaces.enter(f"/proc/self/fd/{before}")
        os.close(before)


@contextmanager
def own_machine() -> Iterator[None]:
    """Give the calling thread a network namespace and a folder for run directories of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="mf", dir="/tmp") as folder,  # Unix sockets: short paths
        own_network(),
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        monkeypatch.setenv("MOEFABRIC_RUN_DIR", folder)
        yield
