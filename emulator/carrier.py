"""Carrier: whether the far end of a NIC's fibre gives the NIC a link. A veth whose peer is down has none."""

import logging
import socket
import struct
from collections.abc import Iterable, Mapping

from emulator import namespaces
from emulator.crossbar import interface_indices
from emulator.loop import Timer, Timers

log = logging.getLogger(__name__)

NETLINK_ROUTE, RTM_NEWLINK, NLM_F_REQUEST, IFF_UP = 0, 16, 1, 1
HEADER, LINK = struct.Struct("=IHHII"), struct.Struct("=BxHiII")  # nlmsghdr, ifinfomsg (rtnetlink(7))


def _set(index: int, *, up: bool) -> bytes:
    flags = IFF_UP if up else 0
    body = LINK.pack(socket.AF_UNSPEC, 0, index, flags, IFF_UP)
    return HEADER.pack(HEADER.size + len(body), RTM_NEWLINK, NLM_F_REQUEST, 0, 0) + body


class Carrier:
    """The ends of fibres at an OCS, set down and up at the instants that the OCS says."""

    def __init__(self, interfaces: Mapping[int, str], netns: str, timers: Timers) -> None:
        """Interfaces by port, all in the namespace at that path. FabricError for one that isn't there."""
        self._timers = timers
        self._index = namespaces.within(netns, lambda: interface_indices(interfaces))
        self._kernel = namespaces.within(
            netns,
            lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_ROUTE),
        )
        self._up: dict[int, bool] = {}
        self._due: dict[int, Timer] = {}

    def close(self) -> None:
        """Set none any more; they stay as they are."""
        for timer in self._due.values():
            timer.cancel()
        self._kernel.close()

    def change(self, links: Mapping[int, int | None]) -> None:
        """These ports have a link from that instant (CLOCK_MONOTONIC, ns), or never (None), and none until then."""
        now = self._timers.now_ns()
        ours = {port: at for port, at in links.items() if port in self._index}
        for port in ours:
            if (timer := self._due.pop(port, None)) is not None:
                timer.cancel()
        self._set([port for port, at in ours.items() if at is None or at > now], up=False)
        together: dict[int, list[int]] = {}
        for port, at in ours.items():
            if at is not None:
                together.setdefault(max(at, now), []).append(port)
        for at, ports in together.items():
            self._await(at, ports, now)

    def _await(self, at_ns: int, ports: list[int], now_ns: int) -> None:
        if at_ns <= now_ns:
            self._set(ports, up=True)
            return
        for port in ports:
            self._due[port] = self._timers.at(at_ns, lambda port=port: self._set([port], up=True))  # type: ignore[misc]

    def _set(self, ports: Iterable[int], *, up: bool) -> None:
        """Tell the kernel of those that aren't so already; it has done it when this returns."""
        changed = [port for port in ports if self._up.get(port) is not up]
        for port in changed:
            self._up[port] = up
            self._kernel.send(_set(self._index[port], up=up))
        self._read_refusals()

    def _read_refusals(self) -> None:
        """The kernel answers only what it refuses."""
        while True:
            try:
                said = self._kernel.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            (code,) = struct.unpack_from("=i", said, HEADER.size)
            log.error("a link was not set: error %d", -code)
