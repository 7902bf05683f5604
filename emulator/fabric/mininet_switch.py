"""OpenFlow 1.3 switch in eBPF for any Mininet network.

    Mininet(topo=SingleSwitchTopo(4), switch=BpfSwitch, controller=RemoteController)

One process serves all switches that are started together.
"""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from moefabric.emulator.fabric import mininet_package  # noqa: F401 - finds Debian's Mininet

# isort: split
from mininet.node import Switch

from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.emulator.fabric.datapath import ARGV, SwitchProcess, bpf_refusal
from moefabric.emulator.fabric.plan import FABRIC, Interface, SwitchPlan
from moefabric.emulator.linux.line_requests import end_program
from moefabric.emulator.linux.processes import module_environment
from moefabric.runtime.waiting import Deadline

_TIMEOUT_S: Final = 10.0


class _SwitchService:
    """Process that serves switches, and the folder of their sockets."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="moefabric-switches-")
        self.folder = Path(self._folder.name)
        self.popen = subprocess.Popen(
            ARGV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=module_environment(),
            start_new_session=True,
        )
        self.process = SwitchProcess(self.popen, self.folder)
        self.switches: set[str] = set()

    def remove(self, name: str) -> None:
        """Remove a switch; after the last one, end the process."""
        self.switches.discard(name)
        if self.switches:
            return
        end_program(self.popen, _TIMEOUT_S)
        self._folder.cleanup()


class BpfSwitch(Switch):
    """OpenFlow 1.3 switch in eBPF, in the network namespace of the Mininet process."""

    service: _SwitchService | None = None
    controllers: Sequence[Any] = ()

    @classmethod
    def setup(cls) -> None:
        """Raise UnsupportedError if this kernel doesn't support the switch."""
        if reason := bpf_refusal():
            raise UnsupportedError(f"BpfSwitch: {reason}; see `moefabric doctor`")

    def start(self, controllers: Sequence[Any]) -> None:
        """Store the controller; Mininet then calls `batchStartup`, which starts the switch."""
        if len(controllers) > 1:
            raise FabricError(f"{self.name}: follows one controller, {len(controllers)} given")
        self.controllers = controllers

    @classmethod
    def batchStartup(cls, switches: Iterable[Self]) -> list[Self]:  # noqa: N802 - Mininet's name
        """Start all switches at once, connect them, and return them."""
        started, service = list(switches), _SwitchService()
        deadline = Deadline.after(_TIMEOUT_S)
        service.process.make([switch.plan for switch in started], deadline)
        for switch in started:
            switch.service = service
            service.switches.add(switch.name)
        addresses = {s.name: (c.IP(), int(c.port)) for s in started for c in s.controllers}
        service.process.connect(addresses, deadline)
        return started

    @property
    def plan(self) -> SwitchPlan:
        """Plan of the switch for the process that serves it."""
        ports = [Interface(FABRIC, intf.name, number) for number, intf in self.intfs.items()]
        numbered = tuple(port for port in ports if port.port)
        return SwitchPlan(self.name, self.name, int(self.dpid, 16), numbered)

    @property
    def management(self) -> Path:
        """Unix socket for OpenFlow tools: `ovs-ofctl -O OpenFlow13 dump-flows unix:PATH`."""
        assert self.service is not None, "the switch was not started"
        return self.service.folder / f"{self.name}.mgmt"

    def connected(self) -> bool:
        """Return whether the switch is connected, for Mininet's `waitConnected`."""
        if self.service is None:
            return False
        return self.name in self.service.process.connected(Deadline.after(_TIMEOUT_S))

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803, FBT001, FBT002 - Mininet's
        """Remove the switch, and with the last one the process that serves it."""
        super().stop(deleteIntfs)
        if self.service is not None:
            self.service.remove(self.name)
            self.service = None
