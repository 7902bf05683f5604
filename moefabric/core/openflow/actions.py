"""Actions (OpenFlow 1.3.5, 7.2.5) and instructions (7.2.4): values, decoding and encoding."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.constants import ErrorCode, OpenFlowError, PortNumber, refuse_if
from moefabric.core.openflow.match import BY_NAME, FlowError, decode_set_field

_EXPERIMENTER: Final = 0xFFFF
_INSTRUCTIONS: Final = frozenset(ofp.InstructionType)
_UNSUPPORTED: Final = {ofp.InstructionType.WRITE_METADATA, ofp.InstructionType.METER}
_LENGTHS: Final[Mapping[int, int]] = {ofp.ActionType.OUTPUT: 12, ofp.ActionType.GROUP: 4}
"""Lengths of action bodies in bytes."""
_HEADER: Final = struct.Struct("!HH4x")
_OUTPUT: Final = struct.Struct("!HHIH6x")

IN_PORT, ALL, CONTROLLER = PortNumber.IN_PORT, PortNumber.ALL, PortNumber.CONTROLLER
_RESERVED: Final[Mapping[int, PortNumber]] = {
    IN_PORT: IN_PORT,
    PortNumber.FLOOD: ALL,  # no spanning tree excludes ports from flooding
    ALL: ALL,
    CONTROLLER: CONTROLLER,
}


@dataclass(frozen=True)
class Output:
    """Sends the packet to a port or a reserved port, or `max_len` bytes to the controller.

    A packet leaves by the port where it arrived only with IN_PORT, not with that port's number.
    """

    port: int
    max_len: int = ofp.WHOLE_FRAME

    def __str__(self) -> str:
        reserved = _RESERVED.get(self.port)
        return f"output:{self.port if reserved is None else reserved.name.lower()}"


TO_TABLE: Final = Output(PortNumber.TABLE)
"""Processes the packet by the flow tables; valid in packet-outs only."""
REWRITABLE: Final = ("eth_dst", "eth_src", "ip_dscp")


@dataclass(frozen=True)
class SetField:
    """Sets a field of the packet for all following actions."""

    name: str
    value: int

    def __post_init__(self) -> None:
        if self.name not in REWRITABLE:
            raise FlowError(f"set_field {self.name}: only {', '.join(REWRITABLE)} can be set")
        if not 0 <= self.value < 1 << (bits := BY_NAME[self.name].bits):
            raise FlowError(f"set_field {self.name}={self.value:#x}: the field has {bits} bits")

    def __str__(self) -> str:
        return f"set_field:{self.name}={self.value:#x}"


@dataclass(frozen=True)
class ToGroup:
    """Processes the packet by the group with this number."""

    id: int

    def __str__(self) -> str:
        return f"group:{self.id}"


Action = Output | SetField | ToGroup
Actions = tuple[Action, ...]


def group_ids(actions: Iterable[Action]) -> Iterator[int]:
    """Yield the numbers of the groups that the actions send packets to."""
    return (action.id for action in actions if isinstance(action, ToGroup))


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
        detail = f"instruction {kind}"
        refuse_if(kind in bodies, ErrorCode.INSTRUCTION_UNKNOWN, f"{detail} twice")
        refuse_if(kind == _EXPERIMENTER, ErrorCode.INSTRUCTION_BAD_EXPERIMENTER)
        refuse_if(kind not in _INSTRUCTIONS, ErrorCode.INSTRUCTION_UNKNOWN, detail)
        refuse_if(kind in _UNSUPPORTED, ErrorCode.INSTRUCTION_UNSUPPORTED, detail)
        bodies[kind] = body
    goto = bodies.get(ofp.InstructionType.GOTO_TABLE)
    if goto is not None:
        refuse_if(len(goto) != 4, ErrorCode.INSTRUCTION_BAD_LEN, "goto-table")
        is_last = goto[0] > ofp.MAX_TABLE
        refuse_if(is_last, ErrorCode.INSTRUCTION_BAD_TABLE, f"table {goto[0]}")
    apply = decode_actions(bodies.get(ofp.InstructionType.APPLY_ACTIONS, b"")[4:])
    write = decode_actions(bodies.get(ofp.InstructionType.WRITE_ACTIONS, b"")[4:])
    clear = ofp.InstructionType.CLEAR_ACTIONS in bodies
    return Instructions(apply, write, clear, None if goto is None else goto[0], wire)


def _elements(wire: bytes, bad_length: ErrorCode) -> Iterator[tuple[int, bytes]]:
    """Yield types and bodies of instructions or actions, whose lengths are multiples of 8."""
    at = 0
    while at < len(wire):
        refuse_if(len(wire) - at < 8, bad_length, "truncated header")
        kind, length = struct.unpack_from("!HH", wire, at)
        if length < 8 or length % 8 or at + length > len(wire):
            raise OpenFlowError(bad_length, f"type {kind} of {length} bytes")
        yield kind, wire[at + 4 : at + length]
        at += length


@lru_cache(maxsize=4096)
def decode_actions(wire: bytes) -> Actions:
    """Decode the actions of an instruction or a bucket.

    Raises:
        OpenFlowError: With an error code of type OFPET_BAD_ACTION (7.4.4).
    """
    actions, detail = decode_packet_out_actions(wire), "OFPP_TABLE outside a packet-out"
    refuse_if(TO_TABLE in actions, ErrorCode.ACTION_BAD_OUT_PORT, detail)
    return actions


@lru_cache(maxsize=4096)
def decode_packet_out_actions(wire: bytes) -> Actions:
    """Decode the actions of a packet-out, which may include an output to the tables.

    Raises:
        OpenFlowError: With an error code of type OFPET_BAD_ACTION (7.4.4).
    """
    return tuple(_action(*element) for element in _elements(wire, ErrorCode.ACTION_BAD_LEN))


def _action(kind: int, body: bytes) -> Action:
    if len(body) != _LENGTHS.get(kind, len(body)):
        raise OpenFlowError(ErrorCode.ACTION_BAD_LEN, f"action {kind}")
    match kind:
        case ofp.ActionType.OUTPUT:
            return _output(*struct.unpack_from("!IH", body))
        case ofp.ActionType.GROUP:
            number, code = int.from_bytes(body), ErrorCode.ACTION_BAD_OUT_GROUP
            refuse_if(number > ofp.MAX_GROUP, code, f"group {number:#x}")
            return ToGroup(number)
        case ofp.ActionType.SET_FIELD:
            name, value = decode_set_field(body)
            refuse_if(name not in REWRITABLE, ErrorCode.ACTION_BAD_SET_TYPE, name)
            return SetField(name, value)
        case ofp.ActionType.EXPERIMENTER:
            raise OpenFlowError(ErrorCode.ACTION_BAD_EXPERIMENTER)
    raise OpenFlowError(ErrorCode.ACTION_BAD_TYPE, f"action {kind}")


def _output(port: int, max_length: int) -> Output:
    if port == PortNumber.TABLE:
        return TO_TABLE
    if port not in _RESERVED and not 0 < port <= PortNumber.MAX:
        raise OpenFlowError(ErrorCode.ACTION_BAD_OUT_PORT, f"port {port:#x}")
    return Output(_RESERVED.get(port, port), max_length)


def encode_actions(actions: Iterable[Action]) -> bytes:
    """Encode a list of actions."""
    return b"".join(map(_encode_action, actions))


def _encode_action(action: Action) -> bytes:
    if isinstance(action, Output):
        return _OUTPUT.pack(ofp.ActionType.OUTPUT, _OUTPUT.size, action.port, action.max_len)
    if isinstance(action, ToGroup):
        return struct.pack("!HHI", ofp.ActionType.GROUP, 8, action.id)
    encoded = BY_NAME[action.name].encoded(action.value)
    length = (4 + len(encoded) + 7) // 8 * 8
    return struct.pack("!HH", ofp.ActionType.SET_FIELD, length) + encoded.ljust(length - 4, b"\0")


@lru_cache(maxsize=4096)
def encode_apply(actions: Actions) -> bytes:
    """Encode the instruction to apply actions at once; no bytes if there are none."""
    body = encode_actions(actions)
    return _HEADER.pack(ofp.InstructionType.APPLY_ACTIONS, 8 + len(body)) + body if body else b""
