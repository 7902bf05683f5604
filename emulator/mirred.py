"""The crossbar where BPF is refused: a tc u32 filter on each port sends all that enters out of another interface (mirred).

The same seam as emulator.crossbar, and less: a matching moves filter by filter, 1-3 ms each, not at once; the dark time is kept by
a thread of this process, not by the kernel, so light that had not settled when the process died stays dark; frames are not
counted; and whoever moves it needs CAP_SYS_ADMIN and CAP_NET_ADMIN. Who falls back to it should say so.
"""

import socket
import threading
import time
from collections.abc import Mapping

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from emulator import namespaces
from emulator.crossbar import INGRESS, INGRESS_NUMBER, make_ingress
from emulator.light import Light, Ports, check
from moefabric.errors import FabricError

ETH_P_ALL, PRIORITY = 0x0003, 1
FILTER = PRIORITY << 16 | socket.htons(ETH_P_ALL)  # as tcm_info has it
DEADLINE_S = 30.0


class MirredCrossbar:
    """A crossbar of tc filters. One thread, which lives in the ports' namespace, moves them."""

    def __init__(self, ports: Ports, interfaces: Mapping[int, int], netns: str) -> None:
        """Take over the filters on these interfaces (index by port) in the namespace at that path, as they are.

        FabricError if the namespace can't be entered or an interface is not there.
        """
        self.ports = ports
        self._interfaces, self._netns = dict(interfaces), netns
        self._lights: dict[int, Light] = {}
        self._changed = threading.Condition()
        self._asked = self._applied = 0
        self._failed: str | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._live, name="mirrors", daemon=True)
        self._lit: dict[int, int] = {}
        with self._changed:
            self._thread.start()
            self._wait_applied()

    def show(self) -> dict[int, Light]:
        with self._changed:
            return dict(self._lights)

    def load(self, lights: Mapping[int, Light]) -> None:
        check(self.ports, lights)
        behind = {self.ports.inputs + port for port in self._interfaces}
        if absent := sorted({light.out_port for light in lights.values()} - behind):
            raise FabricError(f"crossbar {self.ports}: no interface is behind outputs {absent}")
        with self._changed:
            self._lights = dict(lights)
            self._asked += 1
            self._changed.notify_all()
            self._wait_applied()

    def close(self) -> None:
        """Let go; what is lit stays lit."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=DEADLINE_S)

    def _wait_applied(self) -> None:
        """Wait, with the lock held, until what was asked for last is in force."""
        done = self._changed.wait_for(lambda: self._failed or self._applied > self._asked, timeout=DEADLINE_S)
        if self._failed or not done:
            raise FabricError(f"crossbar of filters: {self._failed or 'the mirrors did not move in time'}")

    def _live(self) -> None:
        try:
            namespaces.within(self._netns, self._live_there, timeout_s=threading.TIMEOUT_MAX)
        except (FabricError, NetlinkError, OSError) as fault:
            with self._changed:
                self._failed = str(fault)
                self._changed.notify_all()

    def _live_there(self) -> bool:
        with IPRoute(groups=0) as kernel:
            self._take_over(kernel)
            self._move_for_ever(kernel)
        return True

    def _take_over(self, kernel: IPRoute) -> None:
        port_of = {index: port for port, index in self._interfaces.items()}
        for port, index in self._interfaces.items():
            make_ingress(kernel, index)
            if (out := _redirected_to(kernel, index)) in port_of:
                self._lit[port] = self.ports.inputs + port_of[out]
        with self._changed:
            self._lights = {port: Light(out_port, 0) for port, out_port in self._lit.items()}

    def _move_for_ever(self, kernel: IPRoute) -> None:
        with self._changed:
            while not self._closing:
                now_ns = time.monotonic_ns()
                due = {p: light.out_port for p, light in self._lights.items() if light.lit_at_ns <= now_ns}
                self._move(kernel, due)
                self._applied = self._asked + 1
                self._changed.notify_all()
                later = [light.lit_at_ns for light in self._lights.values() if light.lit_at_ns > now_ns]
                self._changed.wait((min(later) - now_ns) / 1e9 if later else None)

    def _move(self, kernel: IPRoute, target: Mapping[int, int]) -> None:
        """Dark first, so that no output ever has the light of two inputs."""
        for port in [p for p, out_port in self._lit.items() if target.get(p) != out_port]:
            kernel.tc("del-filter", None, self._interfaces[port], parent=INGRESS, info=FILTER)
            del self._lit[port]
        for port in sorted(target.keys() - self._lit.keys()):
            _redirect(kernel, self._interfaces[port], self._interfaces[target[port] - self.ports.inputs])
            self._lit[port] = target[port]


def _redirect(kernel: IPRoute, from_index: int, to_index: int) -> None:
    action = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": to_index}
    kernel.tc(
        *("add-filter", "u32", from_index),
        parent=INGRESS,
        prio=PRIORITY,
        protocol=ETH_P_ALL,
        target=0x10001,
        keys=["0x0/0x0+0"],
        action=action,
    )


def _redirected_to(kernel: IPRoute, index: int) -> int | None:
    """The interface that a filter sends this one's frames to, if there is one."""
    for found in kernel.get_filters(index=index, parent=INGRESS_NUMBER):
        way = ("TCA_OPTIONS", "TCA_U32_ACT", "TCA_ACT_PRIO_1", "TCA_ACT_OPTIONS", "TCA_MIRRED_PARMS")
        if (parameters := found.get_nested(*way)) is not None:
            return int(parameters["ifindex"])
    return None
