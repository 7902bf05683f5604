"""News: what a switch tells a controller of its own accord (OpenFlow 1.3.5, 7.4), and which of it the controller wants (7.3.10)."""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from emulator.switch import openflow_statistics as statistics
from emulator.switch import written
from emulator.switch.openflow_numbers import Role, Type
from emulator.switch.openflow_switch import Arrival, Departure, Switch
from emulator.switch.seam import Port

_MODIFIED: Final = 2  # OFPPR_MODIFY
_NO_COOKIE: Final = (1 << 64) - 1


class _Kind(IntEnum):
    """Messages that a controller may want or not; their place in `ofp_async_config`."""

    PACKET_IN = 0
    PORT_STATUS = 1
    FLOW_REMOVED = 2


class News:
    """What one controller is told: for each kind of message it has two masks of reasons, as master or equal, and as slave."""

    def __init__(self, *, wanted: bool) -> None:
        """As OpenFlow has it before anything else is asked for, or nothing unless it is."""
        self.masks: tuple[int, ...] = (0b111, 0, 0b111, 0b111, 0b1111, 0) if wanted else (0,) * 6
        self.role = Role.EQUAL

    def _wants(self, kind: _Kind, reason: int) -> bool:
        return bool(self.masks[2 * kind + (self.role is Role.SLAVE)] >> reason & 1)

    def arrivals(self, arrivals: Iterable[Arrival]) -> Iterable[bytes]:
        """Packets."""
        for each in arrivals:
            if self._wants(_Kind.PACKET_IN, each.reason):
                table, cookie = (each.entry.table, each.entry.cookie) if each.entry else (0, _NO_COOKIE)
                yield written.packet_in(each.reason, table, cookie, each.in_port, each.frame, each.length)

    def departures(self, departed: Iterable[Departure], now_ns: int) -> Iterable[bytes]:
        """Entries that are no more, to whom it was promised."""
        for each in departed:
            if self._wants(_Kind.FLOW_REMOVED, each.why):
                body = statistics.removed(each.entry, each.why, each.carried, now_ns)
                yield written.message(Type.FLOW_REMOVED, 0, body)

    def port(self, switch: Switch, port: Port) -> Iterable[bytes]:
        """A port that has carrier now, or none any more."""
        if self._wants(_Kind.PORT_STATUS, _MODIFIED):
            it = switch.interface(port)
            body = struct.pack("!B7x", _MODIFIED) + statistics.port(port, it.address, it.rate_kbps)
            yield written.message(Type.PORT_STATUS, 0, body)
