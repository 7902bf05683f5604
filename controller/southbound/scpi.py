"""An optical switch over SCPI on TCP, as Polatis devices speak it: port lists in, answers by the line.

Set commands say nothing; what went wrong waits in the error queue; `*opc?` answers once all light has settled. Inputs are 1..N, outputs N+1..2N.
"""

import re
import socket
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from moefabric.circuits import CircuitSet, Transition, cross_connects, seen_circuits
from moefabric.errors import ControlError
from moefabric.topology import Fabric, Region

CrossConnect = tuple[int, int]

STATE: Final = ":oxc:swit:conn:stat?"
SETTLED: Final = "*opc?"
QUERIES: Final = frozenset({STATE, SETTLED})
_ADD, _SUB = ":oxc:swit:conn:add", ":oxc:swit:conn:sub"
_LISTS = re.compile(r"\(@([\d, ]*)\)\s*,\s*\(@([\d, ]*)\)")
_NO_ERROR = re.compile(r"\+?0\s*,")
_MOST_LINE: Final = 1 << 20


def port_lists(connects: Iterable[CrossConnect]) -> str:
    """Cross-connects as two SCPI lists, paired element by element: `(@1,4),(@16,13)`."""
    listed = tuple(connects)
    return f"(@{','.join(str(p) for p, _ in listed)}),(@{','.join(str(q) for _, q in listed)})"


def parsed_state(said: str) -> tuple[CrossConnect, ...]:
    """The inverse of `port_lists`, as `conn:stat?` answers. ValueError where it is no such answer."""
    found = _LISTS.fullmatch(said.strip())
    if not found:
        raise ValueError(f"{said!r} is not a pair of port lists")
    inputs, outputs = ([int(port) for port in listed.split(",") if port.strip()] for listed in found.groups())
    return tuple(zip(inputs, outputs, strict=True))


def obstacle(
    joined: Iterable[CrossConnect], out: Iterable[CrossConnect], into: Iterable[CrossConnect]
) -> str | None:
    """Why `out` can't be taken out of what is joined, or `into` not be put in then; None where nothing is in the way."""
    before, leaving = set(joined), set(out)
    if missing := sorted(leaving - before):
        return f"{_said(missing)} not connected"
    inputs, outputs = {p for p, _ in before - leaving}, {q for _, q in before - leaving}
    if busy := [c for c in into if c[0] in inputs or c[1] in outputs]:
        return f"{_said(busy)} busy"
    return None


def _said(connects: Iterable[CrossConnect]) -> str:
    return ", ".join(f"{p}-{q}" for p, q in connects)


class Scpi:
    """One persistent connection to an SCPI device: lines out, lines in. After a fault it is closed, and opened anew by the next question."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        timeout_s: float = 2.0,
        connect: Callable[[tuple[str, int], float], socket.socket] = socket.create_connection,
    ) -> None:
        """`connect` opens a connection to an address within some seconds: that of a program with another idea of waiting, where it has one."""
        self.name, self.address, self.timeout_s, self._dial = name, address, timeout_s, connect
        self._socket: socket.socket | None = None
        self._heard = b""

    def ask(self, program: str, timeout_s: float | None = None) -> str:
        """The one line that a program line is answered with. ControlError if none comes in time.

        A device that was started anew since the last question has hung up, and says so only now. It is called again, if all that is asked for is
        an answer: a command may have been done already.
        """
        patience = self.timeout_s if timeout_s is None else timeout_s
        called_before = self._socket is not None
        try:
            try:
                return self._asked(program, patience)
            except ConnectionError:
                self.close()
                if not (called_before and program in QUERIES):
                    raise
                return self._asked(program, patience)
        except OSError as fault:
            self.close()
            said = (
                f"no answer to {program} within {patience:g} s"
                if isinstance(fault, TimeoutError)
                else str(fault)
            )
            raise ControlError(f"{self.name} at {self.address[0]}:{self.address[1]}: {said}") from fault

    def _asked(self, program: str, patience: float) -> str:
        connected = self._connected()
        connected.settimeout(patience)
        connected.sendall(program.encode("ascii") + b"\n")
        return self._line(connected)

    def tell(self, program: str) -> None:
        """Send a line that is answered with nothing."""
        try:
            self._connected().sendall(program.encode("ascii") + b"\n")
        except OSError as fault:
            self.close()
            raise ControlError(f"{self.name} at {self.address[0]}:{self.address[1]}: {fault}") from fault

    def close(self) -> None:
        """Hang up; half-heard answers are forgotten."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._heard = None, b""

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._connect()
            # The error queue is the device's: what an earlier controller left there is none of ours.
            self._socket.sendall(b"*cls\n")
        return self._socket

    def _connect(self) -> socket.socket:
        made = self._dial(self.address, self.timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _line(self, connected: socket.socket) -> str:
        while b"\n" not in self._heard:
            if len(self._heard) > _MOST_LINE:
                raise ConnectionError(f"an answer of more than {_MOST_LINE} bytes")
            part = connected.recv(65536)
            if not part:
                raise ConnectionError("it hung up")
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode("ascii", "replace").strip()


class ScpiOcs:
    """A region's OCS behind its SCPI interface. Cross-connects of others on the same device are left alone."""

    def __init__(self, fabric: Fabric, region: Region, device: Scpi) -> None:
        if region.ocs is None:
            raise ValueError(f"{region.name} has no OCS")
        self.fabric, self.region, self.name, self._device = fabric, region, region.ocs.name, device

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. What is lit stays lit."""
        self._device.close()

    def lit(self) -> CircuitSet:
        """The circuits of `conn:stat?` whose both directions are joined. ControlError if the device doesn't answer."""
        return seen_circuits(self.fabric, self.region, self._joined())

    def reconfigure(self, transition: Transition) -> None:
        """Command the change in one line: take out first, so that no port is busy when it is needed.

        What is to go has to be there and what is to come has to be free, since devices differ in what they do otherwise. The error queue is asked
        in the same line. If the device disagrees, it is put back as it was: commands of a line stand alone, and the others have been done.
        ControlError then, with the device's words.
        """
        out = cross_connects(self.fabric, self.region, transition.teardown)
        into = cross_connects(self.fabric, self.region, transition.setup)
        if not out and not into:
            return
        before = self._joined()
        if why := obstacle(before, out, into):
            raise ControlError(f"{self.name} can't: {why}; nothing has changed")
        said = self._command(out, into)
        if said is None:
            return
        undone = "nothing has changed"
        try:
            self._restore(before)
        except ControlError as fault:
            undone = f"part of it may be done, for it can't be undone either: {fault}"
        raise ControlError(f"{self.name} refuses: {said}; {undone}")

    def settled(self, deadline_s: float) -> None:
        """Return when `*opc?` says 1. ControlError after `deadline_s`, or where it says anything else."""
        said = self._device.ask(SETTLED, deadline_s)
        if said.strip() != "1":
            raise ControlError(f"{self.name}: *opc? says {said!r} instead of 1")

    def _joined(self) -> tuple[CrossConnect, ...]:
        said = self._device.ask(STATE)
        try:
            return parsed_state(said)
        except ValueError as fault:
            self._device.close()
            raise ControlError(
                f"{self.name}: conn:stat? says {said[:80]!r}, which is no pair of port lists"
            ) from fault

    def _command(self, out: Iterable[CrossConnect], into: Iterable[CrossConnect]) -> str | None:
        """What the error queue says after the change; None is no error."""
        units = [
            f"{verb} {port_lists(listed)}"
            for verb, listed in ((_SUB, tuple(out)), (_ADD, tuple(into)))
            if listed
        ]
        said = self._device.ask(";".join([*units, ":syst:err?"]))
        if _NO_ERROR.match(said):
            return None
        self._device.tell("*cls")
        return said

    def _restore(self, before: tuple[CrossConnect, ...]) -> None:
        now = self._joined()
        out, into = set(now) - set(before), set(before) - set(now)
        if (out or into) and (said := self._command(sorted(out), sorted(into))) is not None:
            raise ControlError(said)
