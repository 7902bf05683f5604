"""Mirrors: which crossbar this machine can have, plugged in here, and taken over in another process."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from emulator import namespaces
from emulator.crossbar import BpfCrossbar, crossbar_support, interface_indices
from emulator.light import Crossbar, Ports
from moefabric.errors import FabricError

BPF: Final = "tc-bpf"
MIRRED: Final = "tc-mirred"


def choose() -> tuple[str, str | None]:
    """The crossbar for this machine, and why it is no better one: BPF, or else tc filters with what emulator.mirred lacks."""
    why = crossbar_support()
    return (MIRRED, why) if why else (BPF, None)


class Mirrors:
    """A crossbar plugged in by this process: `fd` and `facts` are what another one takes it over with."""

    def __init__(self, kind: str, ports: Ports, interfaces: Mapping[int, str], netns: str) -> None:
        """Plug in interfaces by port, all in the namespace at that path. FabricError where that fails."""
        self.facts: dict[str, Any] = {"crossbar": kind, "ports": ports.inputs}
        self._held = ExitStack()
        if kind == BPF:
            crossbar = BpfCrossbar.create(ports)
            self._held.callback(crossbar.close)
            self.fd = crossbar.fd
            try:
                crossbar.attach(interfaces, netns)
            except FabricError:
                self.close()
                raise
        elif kind == MIRRED:
            indices = namespaces.within(netns, lambda: interface_indices(interfaces))
            self.fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
            self._held.callback(os.close, self.fd)
            self.facts["interfaces"] = {str(port): index for port, index in indices.items()}
        else:
            raise FabricError(f"no crossbar is called {kind}; {BPF} and {MIRRED} are")

    def close(self) -> None:
        """Let go of the crossbar; what is lit stays lit."""
        self._held.close()


def taken_over(facts: Mapping[str, Any], fd: int) -> Crossbar:
    """The crossbar that was handed over, as it is lit. KeyError, TypeError or ValueError for facts that say too little."""
    ports = Ports(int(facts["ports"]), int(facts["ports"]))
    if facts.get("crossbar", BPF) == BPF:
        return BpfCrossbar(ports, fd)
    from emulator.mirred import MirredCrossbar  # its netlink library takes 0.3 s to import

    interfaces = {int(port): int(index) for port, index in facts["interfaces"].items()}
    return MirredCrossbar(ports, interfaces, f"/proc/self/fd/{fd}")
