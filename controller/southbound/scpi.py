"""SCPI on TCP, as Polatis devices speak it: port lists in, answers by the line.

Set commands say nothing; what went wrong waits in the error queue; `*opc?` answers once all light has settled. Inputs are 1..N, outputs N+1..2N.
"""

import re
from collections.abc import Iterable
from typing import Final

from controller.southbound.crossconnects import CrossConnect, Moves
from controller.southbound.line import Line, Patience
from moefabric.errors import ControlError

STATE: Final = ":oxc:swit:conn:stat?"
SETTLED: Final = "*opc?"
_ADD, _SUB, _ERROR = ":oxc:swit:conn:add", ":oxc:swit:conn:sub", ":syst:err?"
_LISTS = re.compile(r"\(@([\d, ]*)\)\s*,\s*\(@([\d, ]*)\)")
_NO_ERROR = re.compile(r"\+?0\s*,")
_END = re.compile(rb"\n")


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


class ScpiDevice:
    """A device that speaks SCPI at the other end of a line."""

    def __init__(self, line: Line) -> None:
        self._line, self.name = line, line.name

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def joined(self) -> tuple[CrossConnect, ...]:
        """What `conn:stat?` lists. ControlError for an answer that is none."""
        said = self._ask(STATE)
        try:
            return parsed_state(said)
        except ValueError as fault:
            self._line.close()
            raise ControlError(
                f"{self.name}: conn:stat? says {said[:80]!r}, which is no pair of port lists"
            ) from fault

    def move(self, moves: Moves) -> str | None:
        """`sub` and `add` in one line, the error queue asked behind them: what it says, None where it is empty.

        Commands of a line stand alone: one may be refused and the others done.
        """
        units = [
            f"{verb} {port_lists(listed)}"
            for verb, listed in ((_SUB, moves.out), (_ADD, moves.into))
            if listed
        ]
        said = self._ask(";".join([*units, _ERROR]))
        if _NO_ERROR.match(said):
            return None
        self._line.send(b"*cls\n")
        return said

    def settled(self, deadline_s: float) -> None:
        """Return when `*opc?` says 1. ControlError after `deadline_s`, or where it says anything else."""
        if (said := self._ask(SETTLED, Patience.of(deadline_s))) != "1":
            raise ControlError(f"{self.name}: *opc? says {said!r} instead of 1")

    def _ask(self, program: str, patience: Patience | None = None) -> str:
        """The one line that a program line is answered with."""
        # The error queue is the device's: what an earlier controller left there is none of ours.
        greeting = b"" if self._line.is_open else b"*cls\n"
        self._line.send(greeting + program.encode("ascii") + b"\n")
        return self._line.hear(_END, program, patience).decode("ascii", "replace").strip()
