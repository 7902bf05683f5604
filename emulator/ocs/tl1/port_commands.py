"""TL1 commands for ports and cross-connects (which TL1 calls patches)."""

import re
from collections.abc import Callable, Iterable

from moefabric.emulator.ocs.cross_connects import RefusedError
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.port_settings import Admin
from moefabric.emulator.ocs.tl1 import parameters
from moefabric.emulator.ocs.tl1.front_end import Execute, Result, Tl1Session
from moefabric.emulator.ocs.tl1.syntax import Command, DeniedError

SHUTTERS = {Admin.ENABLED: "OPEN", Admin.DISABLED: "CLOSED", Admin.FAILED: "FAILED"}
MONITOR_SETTINGS = {
    "WAVE": ("wavelength_nm", parameters.decimal(1260, 1640)),
    "OFFSET": ("offset_db", parameters.decimal(-100, 100)),
    "ATIME": ("averaging", parameters.whole(1, 8)),
}
BARE_LABEL = re.compile(r"[A-Za-z0-9_./+ -]*")


def change_ports(
    change: Callable[[OcsDevice, list[int]], None], *, settles: bool = False
) -> Execute:
    """Make a command that changes the ports that it names: `OPR-PORT-SHUTTER::1&&4:c:;`."""

    def execute(session: Tl1Session, command: Command) -> Result:
        change(session.device, _ports(session, command))
        return Result(settles=settles)

    return execute


def list_ports(
    describe: Callable[[OcsDevice, int], str | None], *, unique: bool = False
) -> Execute:
    """Make a command with a line `"port:description"` for each port that has a description.

    Args:
        unique: whether a port that is named twice is listed once.
    """

    def execute(session: Tl1Session, command: Command) -> Result:
        numbers: Iterable[int] = parameters.ports(command.aid, session.device.ports.all)
        described = (
            (port, describe(session.device, port))
            for port in (dict.fromkeys(numbers) if unique else numbers)
        )
        return Result([f"{port}:{text}" for port, text in described if text is not None])

    return execute


def _ports(session: Tl1Session, command: Command) -> list[int]:
    """Return the ports of a command that changes state, which must name them."""
    if not command.aid.text.strip():
        raise DeniedError("IIAC", "Too few parameters (0/1)")
    return parameters.ports(command.aid, session.device.ports.all)


# ---- cross-connects


def enter_patch(session: Tl1Session, command: Command) -> Result:
    """`ENT-PATCH::1&2,9&10:c:;`: connects all pairs or none, unless the mirrors fail."""
    device = session.device
    size = device.ports.size
    pairs = parameters.port_pairs(command.aid, size.input_numbers, size.output_numbers)
    version = device.version
    try:
        device.add(pairs)
    except RefusedError as refused:
        if device.version == version:
            raise
        output_of = device.connects.output_of
        entered = [f"{p},{q}" for p, q in pairs if output_of.get(p) == q]
        code = session.options.code(refused.reason)
        raise DeniedError(code, str(refused), lines=entered) from refused
    return Result(settles=True)


def delete_patch(session: Tl1Session, command: Command) -> Result:
    """`DLT-PATCH::1&2:c:;`: disconnects inputs or outputs; `ALL` or no ports: all."""
    if command.aid.value.upper() in ("", "ALL"):
        session.device.clear()
    else:
        session.device.sub_ports(parameters.ports(command.aid, session.device.ports.all))
    return Result(settles=True)


def retrieve_patch(session: Tl1Session, command: Command) -> Result:
    """`RTRV-PATCH:::c:;`: `"1,9"` for each cross-connect of the ports, in their order."""
    device = session.device
    pairs = map(device.connects.pair_of, parameters.ports(command.aid, device.ports.all))
    unique = dict.fromkeys(pair for pair in pairs if pair is not None)
    return Result([f"{p},{q}" for p, q in unique])


# ---- shutters and power


def shutter(device: OcsDevice, port: int) -> str:
    """`RTRV-PORT-SHUTTER`: `"1:OPEN"`."""
    return SHUTTERS[device.ports.admin(port)]


def powers(session: Tl1Session, command: Command) -> Result:
    """`RTRV-PORT-POWER`: `"1:-12.34"` for each port with a monitor."""
    device = session.device
    readings = device.light.read_dbm(parameters.ports(command.aid, device.ports.all))
    return Result([f"{port}:{dbm:.2f}" for port, dbm in readings.items()])


# ---- labels


def edit_label(session: Tl1Session, command: Command) -> None:
    """`ED-PORT-LABEL::1&2:c:::LABEL=a&"b c";`: one label for each port."""
    numbers = _ports(session, command)
    fields = parameters.named(command, ["LABEL"])["LABEL"].split("&")
    labels = [field.value for field in fields]
    most = session.options.label_chars
    bad = any(not field.is_quoted and not BARE_LABEL.fullmatch(field.value) for field in fields)
    if bad or any(len(x) > most or not x.isprintable() or not x.isascii() for x in labels):
        raise DeniedError("IPNV", "Parameter not valid")
    if len(labels) != len(numbers):
        raise DeniedError("IPNV", f"{len(labels)} labels for {len(numbers)} ports")
    for port, text in zip(numbers, labels, strict=True):
        session.device.ports.configure([port], label=text)


def delete_labels(device: OcsDevice, numbers: list[int]) -> None:
    """`DLT-PORT-LABEL::1&2:c:;`: deletes labels."""
    device.ports.configure(numbers, label="")


def label(device: OcsDevice, port: int) -> str:
    """`RTRV-PORT-LABEL`: `"1:src"`."""
    return device.ports.settings(port).label


# ---- power monitors


def set_monitors(session: Tl1Session, command: Command) -> None:
    """`SET-PORT-PMON::1&&12:c:::WAVE=1310,OFFSET=0.5,ATIME=4;`: sets power monitors."""
    numbers = _ports(session, command)
    changes = parameters.settings(command, MONITOR_SETTINGS)
    session.device.ports.configure(numbers, **changes)


def monitor(device: OcsDevice, port: int) -> str | None:
    """`RTRV-PORT-PMON`: `"1:1550.00,0.00,4"`, i.e. wavelength, offset, averaging."""
    if not device.light.has_monitor(port):
        return None
    settings = device.ports.settings(port)
    return f"{settings.wavelength_nm:.2f},{settings.offset_db:.2f},{settings.averaging}"
