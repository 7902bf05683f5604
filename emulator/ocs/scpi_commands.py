"""What each SCPI command of an optical switch does and says: commands and reply formats after public drivers of Polatis switches.

Each command stands alone: one that is refused changes nothing and is queued as an error. What no public source tells (exact
error codes, the reply of `port?` on an output) follows SCPI-99 and IEEE 488.2.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from emulator.ocs.matching import Refusal, RefusedError, paired
from emulator.ocs.port import Admin
from emulator.ocs.scpi_words import CommandError, ScpiError, listed, number, port_lists, spelled
from emulator.ocs.store import Store

ERRORS_KEPT = 32
POWERS_IN_A_QUERY = 256
POWER_ON, OPERATION_COMPLETE = 128, 1
"""Bits of the standard event status register (IEEE 488.2, 11.5.1)."""


@dataclass
class Status:
    """What SCPI keeps of what went wrong: the error queue and the registers of IEEE 488.2."""

    errors: list[ScpiError] = field(default_factory=list)
    events: int = POWER_ON
    event_mask: int = 0
    service_mask: int = 0

    def add(self, error: ScpiError) -> None:
        """Queue an error; a full queue ends in `queue overflow` and forgets what comes after."""
        self.events |= error.event_bit
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append(error)
        else:
            self.errors[-1] = ScpiError(-350)

    def clear(self) -> None:
        """`*cls`."""
        self.errors.clear()
        self.events = 0

    def restart(self) -> None:
        """As after power-on."""
        self.errors.clear()
        self.events, self.event_mask, self.service_mask = POWER_ON, 0, 0

    @property
    def byte(self) -> int:
        """The status byte: bit 2 the error queue, bit 5 an event that is asked for, bit 6 the sum of what is asked for."""
        summed = 4 * bool(self.errors) + 32 * bool(self.events & self.event_mask)
        return summed + 64 * bool(summed & self.service_mask)


class Wait:
    """The reply of a command that is told later, if at all: when all light has settled."""

    def __init__(self, reply: str | None = None, *, holds: bool = False) -> None:
        self.reply = reply
        self.holds = holds
        """Whether commands behind it wait too."""


Answer = str | Wait | None
Execute = Callable[[Store, Status, str], Answer]

CODES = {
    Refusal.NO_SUCH_PORT: -222,
    Refusal.CONFLICT: -221,
    Refusal.NOT_CONNECTED: -200,
    Refusal.MISMATCH: -200,
    Refusal.FAILED: -241,
    Refusal.DENIED: -203,
    Refusal.HARDWARE: -240,
}


def execute(command: Execute, store: Store, status: Status, parameters: str) -> Answer:
    """Do a command. CommandError, and nothing has changed, where it is refused."""
    try:
        return command(store, status, parameters)
    except RefusedError as refused:
        raise CommandError(CODES[refused.kind], str(refused)) from refused


def _no(parameters: str) -> None:
    if parameters:
        raise CommandError(-108, parameters[:64])


def _asked(query: Callable[[Store, Status], Answer]) -> Execute:
    """A command without parameters."""

    def asked(store: Store, status: Status, parameters: str) -> Answer:
        _no(parameters)
        return query(store, status)

    return asked


# ---- cross-connects


def _add(store: Store, _status: Status, parameters: str) -> None:
    store.add(paired(*port_lists(parameters, 2)))


def _only(store: Store, _status: Status, parameters: str) -> None:
    store.only(paired(*port_lists(parameters, 2)))


def _sub(store: Store, _status: Status, parameters: str) -> None:
    inputs, outputs = port_lists(parameters, 2)
    if outputs:
        store.sub(paired(inputs, outputs))
        return
    if strange := sorted(set(inputs) - store.ports.input_set):  # `(@1),(@)`: from wherever its light goes
        raise CommandError(-222, f"{', '.join(map(str, strange))}: inputs are 1..{store.ports.inputs}")
    if len(set(inputs)) < len(inputs):
        raise CommandError(-221, "an input twice")
    store.sub_ports(inputs)


def _none(store: Store, _status: Status) -> None:
    store.clear()


def _reset(store: Store, _status: Status) -> None:
    if store.profile.reset == "clear":
        store.clear()


def _state(store: Store, _status: Status) -> str:
    joined = store.connects.joined
    return f"{listed(joined)},{listed(joined.values())}"


def _partner(store: Store, _status: Status, parameters: str) -> str:
    """The port that one port is joined to, asked from either side."""
    if not parameters:
        raise CommandError(-109, "a port number")
    if not re.fullmatch(r"[0-9]{1,9}", parameters):
        raise CommandError(-104, f"a port number, not {parameters[:64]}")
    return f'"{store.partner(int(parameters)) or ""}"'


def _size(store: Store, _status: Status) -> str:
    return f"{store.ports.inputs},{store.ports.outputs}"


# ---- ports


def _disable(store: Store, _status: Status, parameters: str) -> None:
    store.disable(port_lists(parameters, 1)[0])


def _enable(store: Store, _status: Status, parameters: str) -> None:
    store.enable(port_lists(parameters, 1)[0])


LETTER = {Admin.ENABLED: "E", Admin.DISABLED: "D", Admin.FAILED: "F"}


def _port_state(store: Store, _status: Status, parameters: str) -> str:
    ports = port_lists(parameters, 1)[0] if parameters else list(store.all_ports)
    return f"({','.join(LETTER[store.admin(port)] for port in ports)})"


def _power(store: Store, _status: Status, parameters: str) -> str:
    ports = port_lists(parameters, 1)[0]
    if len(ports) > POWERS_IN_A_QUERY:
        raise CommandError(-222, f"{len(ports)} ports of at most {POWERS_IN_A_QUERY}")
    readings = store.powers_dbm(ports)
    if blind := [str(port) for port in ports if port not in readings]:
        raise CommandError(-241, f"no power monitor at port {','.join(blind)}")
    return f"({','.join(f'{readings[port]:.1f}' for port in ports)})"


# ---- the system


def _address(store: Store, _status: Status) -> str:
    said = {
        "IP": store.system.ip,
        "Gateway": store.system.gateway,
        "Mask": store.system.mask,
        "Broadcast": store.system.broadcast,
    }
    return " ".join(f'{key}="{value}"' for key, value in said.items())


def _set_address(store: Store, _status: Status, parameters: str) -> None:
    if not parameters:
        raise CommandError(-109, "an address")
    given = [part.strip().strip('"') for part in parameters.split(",")]
    if len(given) > 4:
        raise CommandError(-108, "address, gateway, mask and broadcast are all")
    for one in given:
        try:
            ipaddress.IPv4Address(one)
        except ValueError as wrong:
            raise CommandError(-224, f"an IPv4 address, not {one[:64] or 'nothing'}") from wrong
    store.configure_system(**dict(zip(("ip", "gateway", "mask", "broadcast"), given, strict=False)))


def _next_error(_store: Store, status: Status) -> str:
    return str(status.errors.pop(0)) if status.errors else '0,"No error"'


def _all_errors(_store: Store, status: Status) -> str:
    said = ",".join(map(str, status.errors)) or '0,"No error"'
    status.errors.clear()
    return said


def _error_count(_store: Store, status: Status) -> str:
    return str(len(status.errors))


def _version(_store: Store, _status: Status) -> str:
    return "1999.0"


# ---- IEEE 488.2


def _identity(store: Store, _status: Status) -> str:
    who = store.identity
    return f"{who.vendor},{who.model},{who.serial},{who.firmware}"


def _is_complete(_store: Store, _status: Status) -> Wait:
    return Wait("1")


def _tell_complete(store: Store, status: Status) -> None:
    def complete() -> None:
        status.events |= OPERATION_COMPLETE

    store.when_settled(complete)


def _wait(_store: Store, _status: Status) -> Wait:
    return Wait(holds=True)


def _clear(_store: Store, status: Status) -> None:
    status.clear()


def _status_byte(_store: Store, status: Status) -> str:
    return str(status.byte)


def _events(_store: Store, status: Status) -> str:
    said, status.events = status.events, 0
    return str(said)


def _event_mask(_store: Store, status: Status) -> str:
    return str(status.event_mask)


def _set_event_mask(_store: Store, status: Status, parameters: str) -> None:
    status.event_mask = number(parameters, "a mask")


def _service_mask(_store: Store, status: Status) -> str:
    return str(status.service_mask)


def _set_service_mask(_store: Store, status: Status, parameters: str) -> None:
    status.service_mask = number(parameters, "a mask") & ~64


def _self_test(_store: Store, _status: Status) -> str:
    return "0"


COMMANDS: tuple[tuple[re.Pattern[str], Execute], ...] = tuple(
    (spelled(header), command)
    for header, command in (
        ("*CLS", _asked(_clear)),
        ("*ESE", _set_event_mask),
        ("*ESE?", _asked(_event_mask)),
        ("*ESR?", _asked(_events)),
        ("*IDN?", _asked(_identity)),
        ("*OPC", _asked(_tell_complete)),
        ("*OPC?", _asked(_is_complete)),
        ("*RST", _asked(_reset)),
        ("*SRE", _set_service_mask),
        ("*SRE?", _asked(_service_mask)),
        ("*STB?", _asked(_status_byte)),
        ("*TST?", _asked(_self_test)),
        ("*WAI", _asked(_wait)),
        ("OXC:SWITch:CONNect:ADD", _add),
        ("OXC:SWITch:CONNect:ONLY", _only),
        ("OXC:SWITch:CONNect:SUB", _sub),
        ("OXC:SWITch:CONNect:STATe?", _asked(_state)),
        ("OXC:SWITch:CONNect:PORT?", _partner),
        ("OXC:SWITch:DISConnect:ALL", _asked(_none)),
        ("OXC:SWITch:PORT:DISable", _disable),
        ("OXC:SWITch:PORT:ENABle", _enable),
        ("OXC:SWITch:PORT:STATe?", _port_state),
        ("OXC:SWITch:SIZE?", _asked(_size)),
        ("PMONitor:POWer?", _power),
        ("SYSTem:COMMunicate:NETWork:ADDRess", _set_address),
        ("SYSTem:COMMunicate:NETWork:ADDRess?", _asked(_address)),
        ("SYSTem:ERRor[:NEXT]?", _asked(_next_error)),
        ("SYSTem:ERRor:ALL?", _asked(_all_errors)),
        ("SYSTem:ERRor:COUNt?", _asked(_error_count)),
        ("SYSTem:VERSion?", _asked(_version)),
    )
)


def found(spelling: str) -> Execute | None:
    """The command of that spelling, without the leading colon."""
    return next((command for pattern, command in COMMANDS if pattern.fullmatch(spelling)), None)
