"""A switch in memory: what its flows mean, for tests and for people without root."""

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from emulator.switch.errors import FlowError
from emulator.switch.flow import ALL, CONTROLLER, IN_PORT, Flow, FlowKey, Group
from emulator.switch.packet import IPV4, VLAN_TAGS, fields
from emulator.switch.seam import Count, Port, Punt
from emulator.switch.steps import Groups, emissions, live, slot

Sent = tuple[int, bytes]
"""A frame that leaves, after its port."""
_AT: Final = {"eth_dst": (0, 6), "eth_src": (6, 12)}


def rewritten(frame: bytes, changes: Iterable[tuple[str, int]]) -> bytes:
    """The frame with these fields set. A DSCP is set in IPv4 alone, and the header's checksum follows."""
    for name, value in changes:
        if name in _AT:
            start, end = _AT[name]
            frame = frame[:start] + value.to_bytes(end - start) + frame[end:]
        elif name == "ip_dscp":
            frame = _with_dscp(frame, value)
    return frame


def _with_dscp(frame: bytes, dscp: int) -> bytes:
    at = 18 if int.from_bytes(frame[12:14]) in VLAN_TAGS else 14
    if int.from_bytes(frame[at - 2 : at]) != IPV4 or len(frame) < at + 20:
        return frame
    old = int.from_bytes(frame[at : at + 2])
    new = old & 0xFF03 | dscp << 2
    checksum = ~int.from_bytes(frame[at + 10 : at + 12]) & 0xFFFF
    total = checksum + (~old & 0xFFFF) + new  # RFC 1624, equation 3
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    fixed = (~total & 0xFFFF).to_bytes(2)
    return frame[:at] + new.to_bytes(2) + frame[at + 2 : at + 10] + fixed + frame[at + 12 :]


class MemoryDatapath:
    """Flows and ports without a kernel. `forward` is a frame's way through; `sent` holds what packet-out has sent."""

    def __init__(self, ports: Iterable[Port]) -> None:
        self._ports = {port.number: port for port in ports}
        self._flows: dict[FlowKey, Flow] = {}
        self._groups: Groups = {}
        self._counts: dict[FlowKey, Count] = {}
        self._punts: deque[Punt] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.sent: list[Sent] = []

    @property
    def ports(self) -> Mapping[int, Port]:
        return dict(self._ports)

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        table, through = {flow.key: flow for flow in flows}, {group.id: group for group in groups}
        for flow in table.values():
            emissions(flow, through, 0, partial(live, self._ports))
        self._flows, self._groups = table, through
        self._counts = {key: self._counts.get(key, Count()) for key in table}

    def port_changed(self, number: int, *, up: bool) -> None:
        if number not in self._ports:
            raise FlowError(f"no port {number}")
        self._ports[number] = Port(number, self._ports[number].name, up)

    def counters(self, of: Iterable[FlowKey] | None = None) -> Mapping[FlowKey, Count]:
        return (
            dict(self._counts)
            if of is None
            else {key: self._counts[key] for key in of if key in self._counts}
        )

    def flow_for(self, packet: Mapping[str, int]) -> Flow | None:
        """The flow that takes a packet of these fields."""
        return max(
            (f for f in self._flows.values() if f.match.fits(packet)), key=lambda f: f.rank, default=None
        )

    def forward(self, in_port: int, frame: bytes) -> Sequence[Sent]:
        """Take a frame in by a port: it is counted, and what leaves by ports is returned in order."""
        packet = fields(frame, in_port)
        if (flow := self.flow_for(packet)) is None:
            return ()
        seen = self._counts[flow.key]
        self._counts[flow.key] = Count(seen.packets + 1, seen.bytes + len(frame))
        left: list[Sent] = []
        for emission in emissions(flow, self._groups, slot(packet), partial(live, self._ports)):
            dressed = rewritten(frame, emission.rewritten)
            match emission.port:
                case number if isinstance(number, int):
                    left += [(number, dressed)] if number in self._ports and number != in_port else []
                case _ if emission.port is IN_PORT:
                    left.append((in_port, dressed))
                case _ if emission.port is ALL:
                    left += [(number, dressed) for number in sorted(self._ports) if number != in_port]
                case _ if emission.port is CONTROLLER:
                    self._punt(
                        Punt(in_port, dressed[: emission.max_len], len(dressed), flow.key, emission.max_len)
                    )
        return left

    def _punt(self, punt: Punt) -> None:
        self._punts.append(punt)
        os.eventfd_write(self._bell, 1)

    def send(self, port: int, frame: bytes) -> None:
        if port not in self._ports:
            raise FlowError(f"no port {port}")
        self.sent.append((port, frame))

    def fileno(self) -> int:
        return self._bell

    def received(self) -> Sequence[Punt]:
        with suppress(BlockingIOError):  # nobody has rung
            os.eventfd_read(self._bell)
        return tuple(self._punts.popleft() for _ in range(len(self._punts)))

    def close(self) -> None:
        """Let go of the bell; twice is no fault."""
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
