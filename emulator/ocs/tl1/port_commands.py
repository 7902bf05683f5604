"""TL1 commands for ports and cross-connects (which TL1 calls patches)."""

import re
from collections.abc import Callable

from moefabric.emulator.ocs.cross_connects import RefusedError
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.flapping import FlapSettings
from moefabric.emulator.ocs.port_settings import Admin
from moefabric.emulator.ocs.tl1.command import CommandSession, Execute, Result
from moefabric.emulator.ocs.tl1.frames import quote
from moefabric.emulator.ocs.tl1.parameters import (
    choice,
    decimal,
    invalid_port,
    named,
    port_pairs,
    ports,
    positional,
    required_ports,
    whole,
)
from moefabric.emulator.ocs.tl1.syntax import Command, DeniedError

SHUTTERS = {Admin.ENABLED: "OPEN", Admin.DISABLED: "CLOSED", Admin.FAILED: "FAILED"}
ATTENUATIONS = {name: name for name in ("NONE", "ABSOLUTE", "RELATIVE", "CONVERGED")}
BARE_LABEL = re.compile(r"[A-Za-z0-9_./+ -]*")


def change_ports(
    change: Callable[[OcsDevice, list[int]], None], *, settles: bool = False
) -> Execute:
    """Make a command that changes named ports: `OPR-PORT-SHUTTER::1&&4:c:;`."""

    def execute(session: CommandSession, command: Command) -> Result:
        change(session.device, required_ports(command.aid, session.device.ports.all))
        return Result(settles=settles)

    return execute


def list_ports(
    describe: Callable[[OcsDevice, int], str | None], *, unique: bool = False
) -> Execute:
    """Make a command with a line `"port:description"` for each port that has a description.

    Args:
        describe: returns the description.
        unique: whether a port that is named twice is listed once.
    """

    def execute(session: CommandSession, command: Command) -> Result:
        device = session.device
        numbers = ports(command.aid, device.ports.all)
        described = [
            (p, describe(device, p)) for p in (dict.fromkeys(numbers) if unique else numbers)
        ]
        return Result(tuple(quote(f"{p}:{text}") for p, text in described if text is not None))

    return execute


# ---- cross-connects


def enter_patch(session: CommandSession, command: Command) -> Result:
    """`ENT-PATCH::1&2,9&10:c:;`: connects all pairs or none, unless the mirrors fail."""
    device = session.device
    size = device.ports.size
    pairs = port_pairs(command.aid, size.input_numbers, size.output_numbers)
    version = device.version
    try:
        device.add(pairs)
    except RefusedError as refused:
        if device.version == version:
            raise
        entered = tuple(
            quote(f"{p},{q}") for p, q in pairs if device.connects.output_of.get(p) == q
        )
        raise session.denied(refused, entered) from refused
    return Result(settles=True)


def delete_patch(session: CommandSession, command: Command) -> Result:
    """`DLT-PATCH::1&2:c:;`: disconnects inputs or outputs; `ALL` or no ports: all."""
    if command.aid.value.upper() in ("", "ALL"):
        session.device.clear()
    else:
        session.device.sub_ports(ports(command.aid, session.device.ports.all))
    return Result(settles=True)


def retrieve_patch(session: CommandSession, command: Command) -> Result:
    """`RTRV-PATCH:::c:;`: `"1,9"` for each cross-connect of the ports, in their order."""
    device = session.device
    pairs = map(device.connects.pair_of, ports(command.aid, device.ports.all))
    unique = dict.fromkeys(pair for pair in pairs if pair is not None)
    return Result(tuple(quote(f"{p},{q}") for p, q in unique))


# ---- shutters and power


def shutter(device: OcsDevice, port: int) -> str:
    """`RTRV-PORT-SHUTTER`: `"1:OPEN"`."""
    return SHUTTERS[device.ports.admin(port)]


def powers(session: CommandSession, command: Command) -> Result:
    """`RTRV-PORT-POWER`: `"1:-12.34"` for each port with a monitor."""
    device = session.device
    readings = device.monitors.read_dbm(ports(command.aid, device.ports.all))
    return Result(tuple(quote(f"{port}:{dbm:.2f}") for port, dbm in readings.items()))


# ---- labels


def edit_label(session: CommandSession, command: Command) -> Result:
    """`ED-PORT-LABEL::1&2:c:::LABEL=a&"b c";`: one label for each port."""
    device = session.device
    numbers = required_ports(command.aid, device.ports.all)
    fields = named(command, 2, ["LABEL"])["LABEL"].split("&")
    labels = [field.value for field in fields]
    most = session.options.label_chars
    bad = any(not field.is_quoted and not BARE_LABEL.fullmatch(field.value) for field in fields)
    if bad or any(len(x) > most or not x.isprintable() or not x.isascii() for x in labels):
        raise DeniedError("IPNV", "Parameter not valid")
    if len(labels) != len(numbers):
        raise DeniedError("IPNV", f"{len(labels)} labels for {len(numbers)} ports")
    for port, text in zip(numbers, labels, strict=True):
        device.configure(port, label=text)
    return Result()


def delete_labels(device: OcsDevice, numbers: list[int]) -> None:
    """`DLT-PORT-LABEL::1&2:c:;`: deletes labels."""
    for port in numbers:
        device.configure(port, label="")


def label(device: OcsDevice, port: int) -> str:
    """`RTRV-PORT-LABEL`: `"1:src"`."""
    return device.ports.settings(port).label


# ---- power monitors and attenuators


def set_monitors(session: CommandSession, command: Command) -> Result:
    """`SET-PORT-PMON::1&&12:c:::WAVE=1310,OFFSET=0.5,ATIME=4;`: sets power monitors."""
    numbers = required_ports(command.aid, session.device.ports.all)
    parameters = named(command, 2, ["WAVE", "OFFSET", "ATIME"])
    changes: dict[str, float | int] = {}
    if "WAVE" in parameters:
        changes["wavelength_nm"] = decimal(parameters["WAVE"].value, 1260, 1640)
    if "OFFSET" in parameters:
        changes["offset_db"] = decimal(parameters["OFFSET"].value, -100, 100)
    if "ATIME" in parameters:
        changes["averaging"] = whole(parameters["ATIME"].value, 1, 8)
    for port in numbers:
        session.device.configure(port, **changes)
    return Result()


def monitor(device: OcsDevice, port: int) -> str | None:
    """`RTRV-PORT-PMON`: `"1:1550.00,0.00,4"`, i.e. wavelength, offset, averaging."""
    settings = device.ports.settings(port)
    if not device.monitors.exists(port):
        return None
    return f"{settings.wavelength_nm:.2f},{settings.offset_db:.2f},{settings.averaging}"


def set_attenuation(session: CommandSession, command: Command) -> Result:
    """`SET-PORT-ATTEN::33:c:::MODE=ABSOLUTE,LEVEL=-10,REFS=1;`: outputs only."""
    device = session.device
    numbers = required_ports(command.aid, device.ports.all)
    if inputs := [port for port in numbers if device.ports.is_input(port)]:
        raise invalid_port(str(inputs[0]))
    parameters = named(command, 2, ["MODE", "LEVEL", "REFS"])
    if "MODE" not in parameters:
        raise DeniedError("IPMS", "Too few parameters (0/1) in block 2")
    changes = {
        "attenuation": choice(parameters["MODE"].value, ATTENUATIONS),
        "attenuation_db": (
            decimal(parameters["LEVEL"].value, -100, 100) if "LEVEL" in parameters else 0.0
        ),
        "reference": (
            whole(parameters["REFS"].value, 1, device.ports.size.inputs)
            if "REFS" in parameters
            else None
        ),
    }
    for port in numbers:
        device.configure(port, **changes)
    return Result()


def attenuation(device: OcsDevice, port: int) -> str | None:
    """`RTRV-PORT-ATTEN`: `"33:ABSOLUTE,-10.00,1"`, i.e. mode, level, reference."""
    if device.ports.is_input(port):
        return None
    settings = device.ports.settings(port)
    return f"{settings.attenuation},{settings.attenuation_db:.2f},{settings.reference or ''}"


# ---- flapping


def enter_flap(session: CommandSession, command: Command) -> Result:
    """`ENT-PORT-FLAP::1:c::1000,500,3;`: ms closed, ms open, cycles."""
    numbers = required_ports(command.aid, session.device.ports.all)
    block, restore, cycles = positional(command, 1, 1, 3)
    try:
        settings = FlapSettings(
            whole(block, 0, 999_999),
            whole(restore, 0, 999_999) if restore else None,
            whole(cycles, 0, 999_999) if cycles else 1,
        )
    except ValueError as error:
        raise DeniedError("IPNV", str(error)) from error
    session.device.flapper.configure(numbers, settings)
    return Result()


def flap(device: OcsDevice, port: int) -> str | None:
    """`RTRV-PORT-FLAP`: `"1:1000,500,3"` for each port with settings."""
    settings = device.flapper.get(port)
    if settings is None:
        return None
    return f"{settings.block_ms},{settings.restore_ms or ''},{settings.cycles}"


def start_flapping(device: OcsDevice, numbers: list[int]) -> None:
    """`OPR-PORT-FLAP::1:c;`: starts flapping."""
    if unknown := [port for port in numbers if device.flapper.get(port) is None]:
        raise DeniedError("SNVS", f"Port {unknown[0]} has no flap settings")
    device.flapper.start(numbers)


def stop_flapping(device: OcsDevice, numbers: list[int]) -> None:
    """`RLS-PORT-FLAP::1:c;`: stops flapping."""
    device.flapper.stop(numbers)
