"""The SCPI commands that every instrument has: those of IEEE 488.2, and SYSTem."""

import ipaddress
from collections.abc import Callable

from emulator.ocs.scpi_status import OPERATION_COMPLETE, Status
from emulator.ocs.scpi_words import CommandError, number
from emulator.ocs.store import Store


class Wait:
    """The reply of a command that is told later, if at all: when all light has settled."""

    def __init__(self, reply: str | None = None, *, holds: bool = False) -> None:
        self.reply = reply
        self.holds = holds
        """Whether commands behind it wait too."""


Answer = str | Wait | None
Execute = Callable[[Store, Status, str], Answer]


def refuse_parameters(parameters: str) -> None:
    if parameters:
        raise CommandError(-108, parameters[:64])


def asked(query: Callable[[Store, Status], Answer]) -> Execute:
    """A command without parameters."""

    def alone(store: Store, status: Status, parameters: str) -> Answer:
        refuse_parameters(parameters)
        return query(store, status)

    return alone


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


def _reset(store: Store, _status: Status) -> None:
    if store.profile.reset == "clear":
        store.clear()


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


COMMANDS: tuple[tuple[str, Execute], ...] = (
    ("*CLS", asked(_clear)),
    ("*ESE", _set_event_mask),
    ("*ESE?", asked(_event_mask)),
    ("*ESR?", asked(_events)),
    ("*IDN?", asked(_identity)),
    ("*OPC", asked(_tell_complete)),
    ("*OPC?", asked(_is_complete)),
    ("*RST", asked(_reset)),
    ("*SRE", _set_service_mask),
    ("*SRE?", asked(_service_mask)),
    ("*STB?", asked(_status_byte)),
    ("*TST?", asked(_self_test)),
    ("*WAI", asked(_wait)),
    ("SYSTem:COMMunicate:NETWork:ADDRess", _set_address),
    ("SYSTem:COMMunicate:NETWork:ADDRess?", asked(_address)),
    ("SYSTem:ERRor[:NEXT]?", asked(_next_error)),
    ("SYSTem:ERRor:ALL?", asked(_all_errors)),
    ("SYSTem:ERRor:COUNt?", asked(_error_count)),
    ("SYSTem:VERSion?", asked(_version)),
)
