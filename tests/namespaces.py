"""Network namespaces that a test makes, wires and takes away; nothing outside them is touched."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count

_numbers = count()


def must(*argv: str) -> str:
    """Run a program to its end; what it printed. AssertionError with its own words if it failed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"{' '.join(argv)} exited {done.returncode}, saying: {done.stderr.strip()}"
    return done.stdout


class Island:
    """Namespaces `s0, s1, ...` joined by a veth pair (two of them) or by a bridge in a namespace of its own."""

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
        """The namespace's name for `ip netns`."""
        return f"{self.tag}-{name}"

    def inside(self, name: str, *argv: str) -> list[str]:
        """The argv that runs a program in there."""
        return ["ip", "netns", "exec", self.netns(name), *argv]

    def _namespace(self, name: str) -> None:
        must("ip", "netns", "add", self.netns(name))
        self.undo.callback(must, "ip", "netns", "delete", self.netns(name))
        must("ip", "-n", self.netns(name), "link", "set", "lo", "up")

    def _address(self, name: str) -> None:
        must("ip", "-n", self.netns(name), "address", "add", f"{self.addresses[name]}/24", "dev", "o0")
        must("ip", "-n", self.netns(name), "link", "set", "o0", "up")

    def _pair(self, a: str, b: str) -> None:
        there = ("peer", "name", "o0", "netns", self.netns(b))
        must("ip", "-n", self.netns(a), "link", "add", "o0", "type", "veth", *there)
        self._address(a)
        self._address(b)

    def _bridge(self) -> None:
        self._namespace("wire")
        wire = self.netns("wire")
        must("ip", "-n", wire, "link", "add", "br0", "type", "bridge")
        must("ip", "-n", wire, "link", "set", "br0", "up")
        for name in self.names:
            must(
                "ip",
                "-n",
                wire,
                "link",
                "add",
                name,
                "type",
                "veth",
                "peer",
                "name",
                "o0",
                "netns",
                self.netns(name),
            )
            must("ip", "-n", wire, "link", "set", name, "master", "br0", "up")
            self._address(name)


@contextmanager
def island(*names: str) -> Iterator[Island]:
    """Namespaces of these names on one link, gone at the end."""
    with ExitStack() as undo:
        yield Island(names, undo)
