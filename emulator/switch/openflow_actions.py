"""What an entry does with its packets, as OpenFlow writes it: instructions (OpenFlow 1.3.5, 7.2.4) and actions (7.2.5) read from bytes."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from emulator.switch import openflow_match as match
from emulator.switch.flow import ALL, CONTROLLER, IN_PORT, REWRITABLE, Action, Output, SetField, ToGroup
from emulator.switch.openflow_numbers import (
    MAX_GROUP,
    MAX_TABLE,
    ActionType,
    InstructionType,
    OpenFlowError,
    PortNumber,
    Refusal,
)

Actions = tuple[Action, ...]
_RESERVED: Final = {
    PortNumber.IN_PORT: IN_PORT,
    PortNumber.FLOOD: ALL,  # there is no spanning tree whose ports it would leave out
    PortNumber.ALL: ALL,
    PortNumber.CONTROLLER: CONTROLLER,
}
NUMBERS: Final = {reserved: number for number, reserved in _RESERVED.items()}
"""The port numbers of what is no port."""


@dataclass(frozen=True)
class ToTable:
    """Through the flow tables, as if the packet had just come in: an action of packet-outs alone."""

    def __str__(self) -> str:
        return "output:table"


TO_TABLE: Final = ToTable()


@dataclass(frozen=True)
class Instructions:
    """At once (`apply`); at the end, in OpenFlow's own order, after forgetting what was to be done at the end if `clear`; and the table after this one."""

    apply: Actions = ()
    write: Actions = ()
    clear: bool = False
    goto: int | None = None
    wire: bytes = field(default=b"", compare=False, repr=False)
    """How the controller wrote them, which is how it reads them in statistics."""

    @property
    def actions(self) -> Actions:
        return (*self.apply, *self.write)


@lru_cache(maxsize=4096)
def instructions(wire: bytes) -> Instructions:
    """OpenFlowError with one of the codes for a bad instruction or action (7.4.3, 7.4.2)."""
    told, at = dict[int, bytes](), 0
    while at < len(wire):
        kind, length = _head(wire, at, Refusal.INSTRUCTION_BAD_LEN)
        if kind in told:
            raise OpenFlowError(Refusal.INSTRUCTION_UNKNOWN, f"instruction {kind} twice")
        told[kind] = wire[at + 4 : at + length]
        at += length
    _check_known(told)
    goto = told.get(InstructionType.GOTO_TABLE)
    return Instructions(
        apply=_of_instruction(told.get(InstructionType.APPLY_ACTIONS)),
        write=_of_instruction(told.get(InstructionType.WRITE_ACTIONS)),
        clear=InstructionType.CLEAR_ACTIONS in told,
        goto=None if goto is None else _goto(goto),
        wire=wire,
    )


def _head(wire: bytes, at: int, refusal: Refusal) -> tuple[int, int]:
    """Type and length of what is at `at`, which is a multiple of 8 bytes."""
    if len(wire) - at < 8:
        raise OpenFlowError(refusal, "less than its head")
    kind, length = struct.unpack_from("!HH", wire, at)
    if length < 8 or length % 8 or at + length > len(wire):
        raise OpenFlowError(refusal, f"type {kind} of {length} bytes")
    return kind, length


def _check_known(told: dict[int, bytes]) -> None:
    for kind in told:
        if kind == 0xFFFF:
            raise OpenFlowError(Refusal.INSTRUCTION_BAD_EXPERIMENTER)
        if kind not in set(InstructionType):
            raise OpenFlowError(Refusal.INSTRUCTION_UNKNOWN, f"instruction {kind}")
        if kind in {InstructionType.WRITE_METADATA, InstructionType.METER}:
            raise OpenFlowError(Refusal.INSTRUCTION_UNSUPPORTED, InstructionType(kind).name)


def _goto(body: bytes) -> int:
    if len(body) != 4:
        raise OpenFlowError(Refusal.INSTRUCTION_BAD_LEN, "goto-table")
    if body[0] > MAX_TABLE:
        raise OpenFlowError(Refusal.INSTRUCTION_BAD_TABLE, f"table {body[0]}")
    return body[0]


def _of_instruction(body: bytes | None) -> Actions:
    return () if body is None else actions(body[4:])


@lru_cache(maxsize=4096)
def actions(wire: bytes) -> Actions:
    """A list of actions. OpenFlowError with one of the codes for a bad action."""
    listed = tuple(_actions(wire))
    if TO_TABLE in listed:
        raise OpenFlowError(Refusal.ACTION_BAD_OUT_PORT, "output to the tables is for packet-outs")
    return tuple(action for action in listed if not isinstance(action, ToTable))


def packet_out_actions(wire: bytes) -> tuple[Action | ToTable, ...]:
    """A list of actions which may send the packet through the tables. OpenFlowError with one of the codes for a bad action."""
    return tuple(_actions(wire))


def _actions(wire: bytes) -> Iterator[Action | ToTable]:
    at = 0
    while at < len(wire):
        kind, length = _head(wire, at, Refusal.ACTION_BAD_LEN)
        yield _action(kind, wire[at + 4 : at + length])
        at += length


def _action(kind: int, body: bytes) -> Action | ToTable:
    known = ActionType(kind) if kind in set(ActionType) else None
    if known is ActionType.OUTPUT:
        if len(body) != 12:
            raise OpenFlowError(Refusal.ACTION_BAD_LEN, "output")
        return _output(*struct.unpack_from("!IH", body))
    if known is ActionType.GROUP:
        if len(body) != 4:
            raise OpenFlowError(Refusal.ACTION_BAD_LEN, "group")
        return _to_group(int.from_bytes(body, "big"))
    if known is ActionType.SET_FIELD:
        return _set_field(body)
    if known is ActionType.EXPERIMENTER:
        raise OpenFlowError(Refusal.ACTION_BAD_EXPERIMENTER)
    raise OpenFlowError(Refusal.ACTION_BAD_TYPE, known.name if known else f"action {kind}")


def _output(port: int, max_length: int) -> Action | ToTable:
    if port == PortNumber.TABLE:
        return TO_TABLE
    if port in _RESERVED:
        return Output(_RESERVED[PortNumber(port)], max_length)
    if not 0 < port <= PortNumber.MAX:
        raise OpenFlowError(Refusal.ACTION_BAD_OUT_PORT, f"port {port:#x}")
    return Output(port, max_length)


def _to_group(number: int) -> ToGroup:
    if number > MAX_GROUP:
        raise OpenFlowError(Refusal.ACTION_BAD_OUT_GROUP, f"group {number:#x}")
    return ToGroup(number)


def _set_field(body: bytes) -> SetField:
    name, value = match.set_field(body)
    if name not in REWRITABLE:
        raise OpenFlowError(Refusal.ACTION_BAD_SET_TYPE, name)
    return SetField(name, value)


def encoded(listed: Actions) -> bytes:
    """The same list as bytes: what group descriptions are written with."""
    return b"".join(_encoded(action) for action in listed)


def _encoded(action: Action) -> bytes:
    if isinstance(action, Output):
        port = action.port if isinstance(action.port, int) else NUMBERS[action.port]
        return struct.pack("!HHIH6x", ActionType.OUTPUT, 16, port, action.max_len)
    if isinstance(action, ToGroup):
        return struct.pack("!HHI", ActionType.GROUP, 8, action.id)
    oxm = match.set_field_oxm(action.name, action.value)
    length = (4 + len(oxm) + 7) // 8 * 8
    return struct.pack("!HH", ActionType.SET_FIELD, length) + oxm.ljust(length - 4, b"\0")
