"""Selection of the crossbar that this machine supports, its installation and its handoff."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
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


class InstalledCrossbar:
    """Crossbar that this process has attached to interfaces and another process adopts.

    The other process passes `fd` and `facts` to `adopt_crossbar`.
    """

    def __init__(self, kind: str, ports: Ports, interfaces: Mapping[int, str], netns: str) -> None:
        """Attach interfaces, by port, in the namespace at a path.

        Raises:
            FabricError: if `kind` is unknown or an interface can't be attached.
        """
        self.facts: dict[str, Any] = {"crossbar": kind, "ports": ports.inputs}
        with ExitStack() as undo:
            if kind == BPF:
                crossbar = BpfCrossbar.create(ports)
                undo.callback(crossbar.close)
                self.fd = crossbar.fd
                crossbar.attach(interfaces, netns)
            elif kind == MIRRED:
                indices = namespaces.run_in(
                    netns, lambda: bpf_crossbar.interface_indices(interfaces)
                )
                self.fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
                undo.callback(os.close, self.fd)
                self.facts["interfaces"] = {str(port): index for port, index in indices.items()}
            else:
                raise FabricError(f"no crossbar is called {kind}; {BPF} and {MIRRED} are")
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Release the crossbar; its cross-connects stay."""
        self._undo.close()


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
