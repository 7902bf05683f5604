"""The driver of switches that speak the protocol."""

import re

from moefabric.controller.southbound.ocs.connection import DeviceConnection
from moefabric.controller.southbound.ocs.cross_connects import CrossConnect, CrossConnectChange
from moefabric.core.errors import ControlError
from moefabric.core.ocs_dialect import DriverSettings
from moefabric.runtime.waiting import Deadline

_END = re.compile(rb"\n")


class LineDriver:
    """A `DeviceDriver` over a connection that opens when it is needed."""

    def __init__(self, connection: DeviceConnection) -> None:
        self._connection, self.name = connection, connection.name

    def cross_connects(self) -> tuple[CrossConnect, ...]:
        """Return the cross-connects of the device."""
        pairs = re.findall(r"(\d+)-(\d+)", self._ask("list"))
        return tuple((int(p), int(q)) for p, q in pairs)

    def apply(self, change: CrossConnectChange) -> str | None:
        """Command removals, then additions; return the reason of the first refusal."""
        for verb, pairs in (("sub", change.remove), ("add", change.add)):
            reply = self._ask(f"{verb} {','.join(f'{p}-{q}' for p, q in pairs)}") if pairs else "ok"
            if reply != "ok":
                return reply.removeprefix("error ")
        return None

    def wait_settled(self, deadline_s: float) -> None:
        """Wait until all circuits have light."""
        if (reply := self._ask("wait", deadline_s)) != "ok":
            raise ControlError(f"{self.name}: wait says {reply!r}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, line: str, deadline_s: float | None = None) -> str:
        self._connection.send(f"{line}\n".encode("ascii"))
        deadline = None if deadline_s is None else Deadline.after(deadline_s)
        return self._connection.read_until(_END, line, deadline).decode("ascii").strip()


class Line:
    """The protocol over TCP, which has no accounts."""

    default_port = 4001
    factory_account = ("", "")

    def open(self, settings: DriverSettings) -> LineDriver:
        """Return a driver that has not connected yet."""
        return LineDriver(DeviceConnection.of(settings))
