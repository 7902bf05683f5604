"""SCPI over TCP as Polatis devices implement it.

Set commands have no answer; their errors go to the error queue. The query `*opc?` is answered once
all light has settled. Inputs are ports 1..N, outputs N+1..2N.
"""

import re
from collections.abc import Iterable
from typing import Final

from moefabric.controller.southbound.ocs.connection import DeviceConnection
from moefabric.controller.southbound.ocs.cross_connects import CrossConnect, CrossConnectChange
from moefabric.core.errors import ControlError
from moefabric.core.ocs_dialect import DriverSettings
from moefabric.runtime.waiting import Deadline

_STATE: Final = ":oxc:swit:conn:stat?"
_OPERATION_COMPLETE: Final = "*opc?"
_STATE_WHEN_COMPLETE: Final = f"{_OPERATION_COMPLETE};*wai;{_STATE}"
_SIZE: Final = ":oxc:swit:size?"
_CLEAR_ERRORS: Final = b"*cls\n"
_ADD, _SUB, _ERROR = ":oxc:swit:conn:add", ":oxc:swit:conn:sub", ":syst:err?"
_LISTS = re.compile(r"\(@([\d, ]*)\)\s*,\s*\(@([\d, ]*)\)")
_TWO_NUMBERS = re.compile(r"(\d+)\s*,\s*(\d+)\s*;")
_NO_ERROR = re.compile(r"\+?0\s*,")
_END = re.compile(rb"\n")


def format_port_lists(connects: Iterable[CrossConnect]) -> str:
    """Return cross-connects as two SCPI lists, paired by position: `(@1,4),(@16,13)`."""
    pairs = tuple(connects)
    return f"(@{','.join(str(p) for p, _ in pairs)}),(@{','.join(str(q) for _, q in pairs)})"


def parse_port_lists(answer: str) -> tuple[CrossConnect, ...]:
    """Return the cross-connects of a `conn:stat?` answer, the inverse of `format_port_lists`.

    Raises:
        ValueError: if the answer is not a pair of port lists.
    """
    match = _LISTS.fullmatch(answer.strip())
    if not match:
        raise ValueError(f"{answer!r} is not a pair of port lists")
    inputs, outputs = (
        list(map(int, ports.split(","))) if ports.strip() else [] for ports in match.groups()
    )
    return tuple(zip(inputs, outputs, strict=True))


class ScpiDriver:
    """A `DeviceDriver` that speaks SCPI."""

    def __init__(self, connection: DeviceConnection) -> None:
        self._connection, self.name = connection, connection.name

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def cross_connects(self) -> tuple[CrossConnect, ...]:
        """Return the cross-connects of `conn:stat?`; raise ControlError for a malformed answer."""
        return self._parsed(self._query(_STATE))

    def size(self) -> tuple[int, int] | None:
        """Return inputs and outputs by `size?`; None if the device doesn't know the query."""
        answer = self._query(f"{_SIZE};{_ERROR}")  # else no answer tells that it is unknown
        match = _TWO_NUMBERS.match(answer)
        if match is None:
            self._connection.send(_CLEAR_ERRORS)
        return (int(match[1]), int(match[2])) if match else None

    def _parsed(self, answer: str) -> tuple[CrossConnect, ...]:
        try:
            return parse_port_lists(answer)
        except ValueError as error:
            self.close()
            raise ControlError(
                f"{self.name}: conn:stat? says {answer[:80]!r}, which is no pair of port lists"
            ) from error

    def apply(self, change: CrossConnectChange) -> str | None:
        """Send `sub` and `add` on one line, then read the error queue; return its error if any.

        The device treats the commands separately: it may refuse one and execute the other.
        """
        commands = [
            f"{command} {format_port_lists(connects)}"
            for command, connects in ((_SUB, change.remove), (_ADD, change.add))
            if connects
        ]
        answer = self._query(";".join([*commands, _ERROR]))
        if _NO_ERROR.match(answer):
            return None
        self._connection.send(_CLEAR_ERRORS)
        return answer

    def wait_settled(self, deadline_s: float) -> None:
        """Wait until `*opc?` answers 1; raise ControlError for any other answer."""
        self._send(_OPERATION_COMPLETE)
        self._check_completion(self._read(_OPERATION_COMPLETE, Deadline.after(deadline_s)))

    def settled_cross_connects(self, deadline_s: float) -> tuple[CrossConnect, ...]:
        """Ask for the state behind `*opc?` in the same line, whose answers come together."""
        self._send(_STATE_WHEN_COMPLETE)
        answers = self._read(_OPERATION_COMPLETE, Deadline.after(deadline_s))
        complete, _, state = answers.partition(";")
        self._check_completion(complete)
        return self._parsed(state)

    def _check_completion(self, answer: str) -> None:
        if answer != "1":
            raise ControlError(f"{self.name}: *opc? says {answer!r} instead of 1")

    def _query(self, line: str) -> str:
        self._send(line)
        return self._read(line)

    def _send(self, lines: str) -> None:
        # The device has one error queue for all sessions, so it may hold errors of others.
        prefix = b"" if self._connection.is_open else _CLEAR_ERRORS
        self._connection.send(prefix + lines.encode("ascii") + b"\n")

    def _read(self, line: str, deadline: Deadline | None = None) -> str:
        answer = self._connection.read_until(_END, line, deadline)
        return answer.decode("ascii", "replace").strip()


class Scpi:
    """SCPI over TCP, which has no accounts."""

    default_port: int = 5025
    factory_account: tuple[str, str] = ("", "")

    def open(self, settings: DriverSettings) -> ScpiDriver:
        """Return a driver that speaks SCPI."""
        return ScpiDriver(DeviceConnection.of(settings))
