"""Instructions (OpenFlow 1.3.5, 7.2.4) and actions (7.2.5): decoding and encoding."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from moefabric.emulator.openflow_switch.flows.flow import (
    ALL,
    CONTROLLER,
    IN_PORT,
    REWRITABLE,
    Action,
    Output,
    SetField,
    ToGroup,
)
from moefabric.emulator.openflow_switch.protocol import constants as ofp
from moefabric.emulator.openflow_switch.protocol import oxm
from moefabric.emulator.openflow_switch.protocol.constants import ErrorCode, OpenFlowError

Actions = tuple[Action, ...]
_RESERVED: Final = {
    ofp.PortNumber.IN_PORT: IN_PORT,
    ofp.PortNumber.FLOOD: ALL,  # no spanning tree excludes ports from flooding
    ofp.PortNumber.ALL: ALL,
    ofp.PortNumber.CONTROLLER: CONTROLLER,
}
RESERVED_NUMBERS: Final = {reserved: number for number, reserved in _RESERVED.items()}
"""The OpenFlow numbers of the reserved ports."""
_EXPERIMENTER: Final = 0xFFFF
_LENGTHS: Final[Mapping[int, int]] = {ofp.ActionType.OUTPUT: 12, ofp.ActionType.GROUP: 4}
"""Lengths of action bodies in bytes."""


@dataclass(frozen=True)
class ToTable:
    """Processes the packet by the flow tables (OFPP_TABLE); valid in packet-outs only."""

    def __str__(self) -> str:
        return "output:table"


@dataclass(frozen=True)
class Instructions:
    """Instructions of a flow entry (5.9).

    `apply` is executed at once. `write` is added to the action set, which `clear` empties first.
    `goto` is the next table.
    """

    apply: Actions = ()
    write: Actions = ()
    clear: bool = False
    goto: int | None = None
    wire: bytes = field(default=b"", compare=False, repr=False)
    """The encoding that the controller sent, which flow statistics return."""

    @property
    def actions(self) -> Actions:
        """All actions, applied and written."""
        return (*self.apply, *self.write)


@lru_cache(maxsize=4096)
def decode_instructions(wire: bytes) -> Instructions:
    """Decode the instructions of a flow-mod.

    Raises:
        OpenFlowError: With an error code of a bad instruction or action (7.4.4).
    """
    bodies = dict[int, bytes]()
    for kind, body in _elements(wire, ErrorCode.INSTRUCTION_BAD_LEN):
        if kind in bodies:
            raise OpenFlowError(ErrorCode.INSTRUCTION_UNKNOWN, f"instruction {kind} twice")
        bodies[kind] = body
    _check_supported(bodies)
    goto = bodies.get(ofp.InstructionType.GOTO_TABLE)
    return Instructions(
        decode_actions(bodies.get(ofp.InstructionType.APPLY_ACTIONS, b"")[4:]),
        decode_actions(bodies.get(ofp.InstructionType.WRITE_ACTIONS, b"")[4:]),
        ofp.InstructionType.CLEAR_ACTIONS in bodies,
        None if goto is None else _next_table(goto),
        wire,
    )


def _elements(wire: bytes, bad_length: ErrorCode) -> Iterator[tuple[int, bytes]]:
    """Yield types and bodies of instructions or actions, whose lengths are multiples of 8."""
    at = 0
    while at < len(wire):
        if len(wire) - at < 8:
            raise OpenFlowError(bad_length, "truncated header")
        kind, length = struct.unpack_from("!HH", wire, at)
        if length < 8 or length % 8 or at + length > len(wire):
            raise OpenFlowError(bad_length, f"type {kind} of {length} bytes")
        yield kind, wire[at + 4 : at + length]
        at += length


def _check_supported(kinds: dict[int, bytes]) -> None:
    for kind in kinds:
        if kind == _EXPERIMENTER:
            raise OpenFlowError(ErrorCode.INSTRUCTION_BAD_EXPERIMENTER)
        if kind not in set(ofp.InstructionType):
            raise OpenFlowError(ErrorCode.INSTRUCTION_UNKNOWN, f"instruction {kind}")
        if kind in {ofp.InstructionType.WRITE_METADATA, ofp.InstructionType.METER}:
            raise OpenFlowError(ErrorCode.INSTRUCTION_UNSUPPORTED, ofp.InstructionType(kind).name)


def _next_table(body: bytes) -> int:
    if len(body) != 4:
        raise OpenFlowError(ErrorCode.INSTRUCTION_BAD_LEN, "goto-table")
    if body[0] > ofp.MAX_TABLE:
        raise OpenFlowError(ErrorCode.INSTRUCTION_BAD_TABLE, f"table {body[0]}")
    return body[0]


@lru_cache(maxsize=4096)
def decode_actions(wire: bytes) -> Actions:
    """Decode the actions of an instruction or a bucket.

    Raises:
        OpenFlowError: With an error code of type OFPET_BAD_ACTION (7.4.4).
    """
    listed = list[Action]()
    for action in decode_packet_out_actions(wire):
        if isinstance(action, ToTable):
            raise OpenFlowError(ErrorCode.ACTION_BAD_OUT_PORT, "OFPP_TABLE outside a packet-out")
        listed.append(action)
    return tuple(listed)


@lru_cache(maxsize=4096)
def decode_packet_out_actions(wire: bytes) -> tuple[Action | ToTable, ...]:
    """Decode the actions of a packet-out, which may include an output to the tables.

    Raises:
        OpenFlowError: With an error code of type OFPET_BAD_ACTION (7.4.4).
    """
    return tuple(_action(*element) for element in _elements(wire, ErrorCode.ACTION_BAD_LEN))


def _action(kind: int, body: bytes) -> Action | ToTable:
    if len(body) != _LENGTHS.get(kind, len(body)):
        raise OpenFlowError(ErrorCode.ACTION_BAD_LEN, f"action {kind}")
    match kind:
        case ofp.ActionType.OUTPUT:
            return _output(*struct.unpack_from("!IH", body))
        case ofp.ActionType.GROUP:
            if (number := int.from_bytes(body)) > ofp.MAX_GROUP:
                raise OpenFlowError(ErrorCode.ACTION_BAD_OUT_GROUP, f"group {number:#x}")
            return ToGroup(number)
        case ofp.ActionType.SET_FIELD:
            name, value = oxm.decode_set_field(body)
            if name not in REWRITABLE:
                raise OpenFlowError(ErrorCode.ACTION_BAD_SET_TYPE, name)
            return SetField(name, value)
        case ofp.ActionType.EXPERIMENTER:
            raise OpenFlowError(ErrorCode.ACTION_BAD_EXPERIMENTER)
    raise OpenFlowError(ErrorCode.ACTION_BAD_TYPE, f"action {kind}")


def _output(port: int, max_length: int) -> Output | ToTable:
    if port == ofp.PortNumber.TABLE:
        return ToTable()
    if port in _RESERVED:
        return Output(_RESERVED[ofp.PortNumber(port)], max_length)
    if not 0 < port <= ofp.PortNumber.MAX:
        raise OpenFlowError(ErrorCode.ACTION_BAD_OUT_PORT, f"port {port:#x}")
    return Output(port, max_length)


def port_number(output: Output) -> int:
    """Return the OpenFlow number of the port of an output."""
    return output.port if isinstance(output.port, int) else RESERVED_NUMBERS[output.port]


def encode_actions(actions: Actions) -> bytes:
    """Encode a list of actions."""
    return b"".join(map(_encode_action, actions))


def _encode_action(action: Action) -> bytes:
    if isinstance(action, Output):
        port = port_number(action)
        return struct.pack("!HHIH6x", ofp.ActionType.OUTPUT, 16, port, action.max_len)
    if isinstance(action, ToGroup):
        return struct.pack("!HHI", ofp.ActionType.GROUP, 8, action.id)
    oxm_field = oxm.encode_set_field(action.name, action.value)
    length = (4 + len(oxm_field) + 7) // 8 * 8
    return struct.pack("!HH", ofp.ActionType.SET_FIELD, length) + oxm_field.ljust(length - 4, b"\0")
