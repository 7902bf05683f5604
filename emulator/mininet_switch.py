"""A switch for any Mininet network, moved by eBPF in the kernel and steered by any OpenFlow 1.3 controller.

    Mininet(topo=SingleSwitchTopo(4), switch=BpfSwitch, controller=RemoteController)

One process, of the caller's, serves all switches that are started together.
"""

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from mininet.node import Switch

from emulator.bpf_switches import ARGV, Door
from emulator.datapath import bpf_refusal
from emulator.waiting import Deadline
from moefabric.errors import FabricError, UnsupportedError

_PATIENCE_S: Final = 10.0
_SOURCES: Final = str(Path(__file__).resolve().parent.parent)


class _Service:
    """The process that serves switches, and the folder of their sockets."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="moefabric-switches-")
        self.folder = Path(self._folder.name)
        search = os.pathsep.join(filter(None, (_SOURCES, os.environ.get("PYTHONPATH"))))
        self.popen = subprocess.Popen(
            ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": search},
            start_new_session=True,
        )  # fmt: skip
        self.door = Door(self.popen)
        self.served: set[str] = set()

    def leave(self, name: str) -> None:
        """End with the last switch."""
        self.served.discard(name)
        if self.served:
            return
        self.door.close()
        try:
            self.popen.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._folder.cleanup()


class BpfSwitch(Switch):
    """An OpenFlow 1.3 switch in eBPF, in the namespace that Mininet runs in."""

    service: _Service | None = None
    controllers: Sequence[Any] = ()

    @classmethod
    def setup(cls) -> None:
        """UnsupportedError where this kernel can't."""
        if why := bpf_refusal():
            raise UnsupportedError(f"BpfSwitch: {why}; see `moefabric doctor`")

    def start(self, controllers: Sequence[Any]) -> None:
        """Take note; the switch works once `batchStartup` was called, as Mininet does."""
        if len(controllers) > 1:
            raise FabricError(f"{self.name}: follows one controller, {len(controllers)} given")
        self.controllers = controllers

    @classmethod
    def batchStartup(cls, switches: Iterable[Self]) -> list[Self]:  # noqa: N802 - Mininet's name
        """Plug in all switches at once and connect them; those started."""
        started, service, deadline = list(switches), _Service(), Deadline.after(_PATIENCE_S)
        service.door.make([switch.wanted() for switch in started], deadline, service.folder)
        for switch in started:
            switch.service = service
            service.served.add(switch.name)
        service.door.connect(
            {s.name: (c.IP(), int(c.port)) for s in started for c in s.controllers}, deadline
        )
        return started

    def wanted(self) -> dict[str, Any]:
        """This switch as its process is told of it."""
        ports = {number: intf.name for number, intf in self.intfs.items() if number}
        return {"name": self.name, "datapath_id": int(self.dpid, 16), "ports": ports}

    @property
    def management(self) -> Path:
        """Unix socket at which OpenFlow tools find the running switch: `ovs-ofctl -O OpenFlow13 dump-flows unix:PATH`."""
        assert self.service is not None, "the switch was not started"
        return self.service.folder / f"{self.name}.mgmt"

    def connected(self) -> bool:
        """Whether it speaks with its controller; `Mininet.waitConnected` asks this."""
        if self.service is None:
            return False
        return self.name in self.service.door.connected(Deadline.after(_PATIENCE_S))

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803, FBT001, FBT002 - Mininet's signature
        """Take the switch away, and with the last one the process that serves it."""
        super().stop(deleteIntfs)
        if self.service is not None:
            self.service.leave(self.name)
            self.service = None
