"""What a switch of ours doesn't have, and how it says so: meters, queues, and configuration of ports and tables."""

import struct
from collections.abc import Container

from emulator.switch import messages, written
from emulator.switch.messages import Message
from emulator.switch.openflow_numbers import ALL_TABLES, OpenFlowError, PortNumber, Refusal, Type
from emulator.switch.table import TABLES

_DEPRECATED = 3  # OFPTC_DEPRECATED_MASK
_ADD, _MODIFY, _DELETE = range(3)


def check_configuration(ports: Container[int], asked: Message) -> None:
    """OpenFlowError for a change of ports, tables or meters, unless it changes nothing."""
    if asked.type == Type.PORT_MOD:
        _check_port(ports, asked)
    elif asked.type == Type.TABLE_MOD:
        _check_table(asked)
    else:
        _check_meter(asked)


def _check_port(ports: Container[int], asked: Message) -> None:
    port, _, mask = messages.numbers(asked, "I4x8xII8x")
    if port not in ports:
        raise OpenFlowError(Refusal.PORT_MOD_BAD_PORT, f"port {port:#x}")
    if mask:
        raise OpenFlowError(Refusal.PORT_MOD_BAD_CONFIG, f"mask {mask:#x}")


def _check_table(asked: Message) -> None:
    """What 1.3 still knows of it means nothing (7.3.3)."""
    table, config = messages.numbers(asked, "B3xI")
    if table >= TABLES and table != ALL_TABLES:
        raise OpenFlowError(Refusal.TABLE_MOD_BAD_TABLE, f"table {table}")
    if config & ~_DEPRECATED:
        raise OpenFlowError(Refusal.TABLE_MOD_BAD_CONFIG, f"{config:#x}")


def _check_meter(asked: Message) -> None:
    """There are none and none can be had; to delete what isn't is no fault (6.6)."""
    command, _, meter = messages.numbers(asked, "HHI")
    if command == _ADD:
        raise OpenFlowError(Refusal.METER_OUT_OF_METERS, f"meter {meter}")
    if command == _MODIFY:
        raise OpenFlowError(Refusal.METER_UNKNOWN, f"meter {meter}")
    if command != _DELETE:
        raise OpenFlowError(Refusal.METER_BAD_COMMAND, f"command {command}")


def queues(ports: Container[int], asked: Message) -> bytes:
    """The reply that a port has none. OpenFlowError if there is no such port."""
    (port,) = messages.numbers(asked, "I4x")
    if port not in ports and port != PortNumber.ANY:
        raise OpenFlowError(Refusal.QUEUE_BAD_PORT, f"port {port:#x}")
    return written.message(Type.QUEUE_GET_CONFIG_REPLY, asked.xid, struct.pack("!I4x", port))
