"""SCPI commands of an optical switch.

Every instrument has the commands of IEEE 488.2 and SYSTem. Commands and reply formats of the switch
follow public drivers of Polatis switches. Details that no public source documents (error codes, the
reply of `port?` for an output) follow SCPI-99 and IEEE 488.2. A refused command changes nothing and
adds an error to the queue.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from moefabric.emulator.ocs.cross_connects import Refusal, pair_up
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.port_settings import Admin
from moefabric.emulator.ocs.scpi.status import OPERATION_COMPLETE, ScpiError, Status
from moefabric.emulator.ocs.scpi.syntax import format_ports, header_pattern, number, port_lists

MAX_READINGS = 256
"""Maximum number of ports in a query of power monitors."""
ERROR_CODES = {
    Refusal.NO_SUCH_PORT: -222,
    Refusal.CONFLICT: -221,
    Refusal.NOT_CONNECTED: -200,
    Refusal.MISMATCH: -200,
    Refusal.FAILED: -241,
    Refusal.DENIED: -203,
    Refusal.HARDWARE: -240,
}
ADMIN_LETTERS = {Admin.ENABLED: "E", Admin.DISABLED: "D", Admin.FAILED: "F"}
NO_ERROR = '0,"No error"'
ADDRESS_FIELDS = {"IP": "ip", "Gateway": "gateway", "Mask": "mask", "Broadcast": "broadcast"}
"""Parts of an address, and the fields of SystemSettings that they show."""


@dataclass(frozen=True)
class Wait:
    """A wait until all light has settled.

    Attributes:
        reply: The reply to send then; None: the following commands wait.
    """

    reply: str | None


Answer = str | Wait | None
Execute = Callable[[OcsDevice, Status, str], Answer]
"""Executes a command; ScpiError or RefusedError if it is refused, and nothing has changed."""


def bare(action: Callable[[OcsDevice, Status], Answer]) -> Execute:
    """Return a command that refuses parameters."""

    def command(device: OcsDevice, status: Status, parameters: str) -> Answer:
        if parameters:
            raise ScpiError(-108, parameters[:64])
        return action(device, status)

    return command


# ---- common commands


def _address(device: OcsDevice, _status: Status) -> str:
    fields = vars(device.system)
    return " ".join(f'{name}="{fields[field]}"' for name, field in ADDRESS_FIELDS.items())


def _set_address(device: OcsDevice, _status: Status, parameters: str) -> None:
    if not parameters:
        raise ScpiError(-109, "an address")
    addresses = [part.strip().strip('"') for part in parameters.split(",")]
    if len(addresses) > len(ADDRESS_FIELDS):
        raise ScpiError(-108, "address, gateway, mask and broadcast are all")
    for address in addresses:
        try:
            ipaddress.IPv4Address(address)
        except ValueError as error:
            detail = f"an IPv4 address, not {address[:64] or 'nothing'}"
            raise ScpiError(-224, detail) from error
    device.configure_system(**dict(zip(ADDRESS_FIELDS.values(), addresses, strict=False)))


def _next_error(_device: OcsDevice, status: Status) -> str:
    return str(status.errors.pop(0)) if status.errors else NO_ERROR


def _all_errors(_device: OcsDevice, status: Status) -> str:
    errors = ",".join(map(str, status.errors))
    status.errors.clear()
    return errors or NO_ERROR


def _identity(device: OcsDevice, _status: Status) -> str:
    return ",".join(vars(device.identity).values())


def _reset(device: OcsDevice, _status: Status) -> None:
    if device.profile.reset == "clear":
        device.clear()


def _operation_complete(device: OcsDevice, status: Status) -> None:
    def complete() -> None:
        status.events |= OPERATION_COMPLETE

    device.when_settled(complete)


def _events(_device: OcsDevice, status: Status) -> str:
    events, status.events = status.events, 0
    return str(events)


def _set_event_mask(_device: OcsDevice, status: Status, parameters: str) -> None:
    status.event_mask = number(parameters, "a mask")


def _set_service_mask(_device: OcsDevice, status: Status, parameters: str) -> None:
    status.service_mask = number(parameters, "a mask") & ~64


# ---- cross-connects


def _sub(device: OcsDevice, _status: Status, parameters: str) -> None:
    inputs, outputs = port_lists(parameters, 2)
    if outputs:
        device.sub(pair_up(inputs, outputs))
        return
    size = device.ports.size  # `(@1),(@)`: disconnect the input from its output
    if unknown := sorted(set(inputs) - size.input_set):
        raise ScpiError(-222, f"{', '.join(map(str, unknown))}: inputs are 1..{size.inputs}")
    if len(set(inputs)) < len(inputs):
        raise ScpiError(-221, "an input is given twice")
    device.sub_ports(inputs)


def _connects(device: OcsDevice, _status: Status) -> str:
    output_of = device.connects.output_of
    return f"{format_ports(output_of)},{format_ports(output_of.values())}"


def _partner(device: OcsDevice, _status: Status, parameters: str) -> str:
    port = number(parameters, "a port number", 999_999_999)
    device.ports.check([port])
    return f'"{device.connects.partner(port) or ""}"'


# ---- ports


def _size(device: OcsDevice, _status: Status) -> str:
    return f"{device.ports.size.inputs},{device.ports.size.inputs}"


def _port_states(device: OcsDevice, _status: Status, parameters: str) -> str:
    ports = port_lists(parameters, 1)[0] if parameters else device.ports.all
    return f"({','.join(ADMIN_LETTERS[device.ports.admin(port)] for port in ports)})"


def _powers(device: OcsDevice, _status: Status, parameters: str) -> str:
    ports = port_lists(parameters, 1)[0]
    if len(ports) > MAX_READINGS:
        raise ScpiError(-222, f"{len(ports)} ports of at most {MAX_READINGS}")
    readings = device.light.read_dbm(ports)
    if blind := [str(port) for port in ports if port not in readings]:
        raise ScpiError(-241, f"no power monitor at port {','.join(blind)}")
    return f"({','.join(f'{readings[port]:.1f}' for port in ports)})"


def _with_pairs(method: Callable[[OcsDevice, list[tuple[int, int]]], None]) -> Execute:
    return lambda device, _, text: method(device, pair_up(*port_lists(text, 2)))


def _with_ports(method: Callable[[OcsDevice, list[int]], None]) -> Execute:
    return lambda device, _, text: method(device, port_lists(text, 1)[0])


COMMANDS: tuple[tuple[re.Pattern[str], Execute], ...] = tuple(
    (header_pattern(header), command)
    for header, command in (
        ("*CLS", bare(lambda _, status: status.clear())),
        ("*ESE", _set_event_mask),
        ("*ESE?", bare(lambda _, status: str(status.event_mask))),
        ("*ESR?", bare(_events)),
        ("*IDN?", bare(_identity)),
        ("*OPC", bare(_operation_complete)),
        ("*OPC?", bare(lambda _device, _status: Wait("1"))),
        ("*RST", bare(_reset)),
        ("*SRE", _set_service_mask),
        ("*SRE?", bare(lambda _, status: str(status.service_mask))),
        ("*STB?", bare(lambda _, status: str(status.byte))),
        ("*TST?", bare(lambda _device, _status: "0")),
        ("*WAI", bare(lambda _device, _status: Wait(None))),
        ("SYSTem:COMMunicate:NETWork:ADDRess", _set_address),
        ("SYSTem:COMMunicate:NETWork:ADDRess?", bare(_address)),
        ("SYSTem:ERRor[:NEXT]?", bare(_next_error)),
        ("SYSTem:ERRor:ALL?", bare(_all_errors)),
        ("SYSTem:ERRor:COUNt?", bare(lambda _, status: str(len(status.errors)))),
        ("SYSTem:VERSion?", bare(lambda _device, _status: "1999.0")),
        ("OXC:SWITch:CONNect:ADD", _with_pairs(OcsDevice.add)),
        ("OXC:SWITch:CONNect:ONLY", _with_pairs(OcsDevice.only)),
        ("OXC:SWITch:CONNect:SUB", _sub),
        ("OXC:SWITch:CONNect:STATe?", bare(_connects)),
        ("OXC:SWITch:CONNect:PORT?", _partner),
        ("OXC:SWITch:DISConnect:ALL", bare(lambda device, _: device.clear())),
        ("OXC:SWITch:PORT:DISable", _with_ports(OcsDevice.disable)),
        ("OXC:SWITch:PORT:ENABle", _with_ports(OcsDevice.enable)),
        ("OXC:SWITch:PORT:STATe?", _port_states),
        ("OXC:SWITch:SIZE?", bare(_size)),
        ("PMONitor:POWer?", _powers),
    )
)


@lru_cache(maxsize=256)
def find_command(spelling: str) -> Execute | None:
    """Return the command of a header without its leading colon."""
    return next((command for pattern, command in COMMANDS if pattern.fullmatch(spelling)), None)
