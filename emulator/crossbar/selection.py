"""Selection of the crossbar that this machine supports, its installation and its handoff."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar import bpf_crossbar
from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar
from moefabric.emulator.crossbar.crossbar import Crossbar, Ports
from moefabric.emulator.crossbar.mirred_crossbar import MirredCrossbar
from moefabric.emulator.linux import namespaces

BPF: Final = "tc-bpf"
MIRRED: Final = "tc-mirred"


def choose_crossbar() -> tuple[str, str | None]:
    """Return the kind of crossbar for this machine, and why BPF is impossible, if it is."""
    reason = bpf_crossbar.crossbar_refusal()
    return (MIRRED, reason) if reason else (BPF, None)


@contextmanager
def installed_crossbar(
    kind: str, ports: Ports, interfaces: Mapping[int, str], netns: str
) -> Iterator[tuple[dict[str, Any], int]]:
    """Attach interfaces, by port, in the namespace at a path, to a crossbar.

    Yields:
        Facts and a descriptor with which another process adopts the crossbar (`adopt_crossbar`).
        Its cross-connects stay after the block.

    Raises:
        FabricError: if `kind` is unknown or an interface can't be attached.
    """
    facts: dict[str, Any] = {"crossbar": kind, "ports": ports.inputs}
    if kind == BPF:
        with closing(BpfCrossbar.create(ports)) as crossbar:
            crossbar.attach(interfaces, netns)
            yield facts, crossbar.fd
    elif kind == MIRRED:
        indices = namespaces.run_in(netns, lambda: bpf_crossbar.interface_indices(interfaces))
        facts["interfaces"] = {str(port): index for port, index in indices.items()}
        with Path(netns).open("rb") as namespace:
            yield facts, namespace.fileno()
    else:
        raise FabricError(f"no crossbar is called {kind}; {BPF} and {MIRRED} are")


def adopt_crossbar(facts: Mapping[str, Any], fd: int) -> Crossbar:
    """Return a crossbar that another process has installed, with its cross-connects.

    Raises:
        KeyError, TypeError, ValueError: if the facts are incomplete.
    """
    ports = Ports(int(facts["ports"]), int(facts["ports"]))
    if facts.get("crossbar", BPF) == BPF:
        return BpfCrossbar(ports, fd)
    interfaces = {int(port): int(index) for port, index in facts["interfaces"].items()}
    return MirredCrossbar(ports, interfaces, f"/proc/self/fd/{fd}")
