"""TL1 commands for single ports: shutters, labels, power, power monitors, attenuation, flapping."""

import re

from emulator.ocs.flaps import Flap
from emulator.ocs.port import Admin
from emulator.ocs.tl1.done import Caller, Done
from emulator.ocs.tl1.frames import quoted
from emulator.ocs.tl1.parameters import (
    chosen,
    invalid_port,
    named,
    named_ports,
    number,
    ports,
    positional,
    whole,
)
from emulator.ocs.tl1.words import Command, DeniedError

SHUTTERS = {Admin.ENABLED: "OPEN", Admin.DISABLED: "CLOSED", Admin.FAILED: "FAILED"}
ATTENUATIONS = {name: name for name in ("NONE", "ABSOLUTE", "RELATIVE", "CONVERGED")}
BARE_LABEL = re.compile(r"[A-Za-z0-9_./+ -]*")


def close(caller: Caller, command: Command) -> Done:
    """`OPR-PORT-SHUTTER::1&&4:c:;`."""
    caller.store.disable(named_ports(command.aid, caller.store.all_ports))
    return Done(settles=True)


def open_(caller: Caller, command: Command) -> Done:
    """`RLS-PORT-SHUTTER::1&&4:c:;`."""
    caller.store.enable(named_ports(command.aid, caller.store.all_ports))
    return Done(settles=True)


def shutters(caller: Caller, command: Command) -> Done:
    """`"1:OPEN"` for each."""
    asked = ports(command.aid, caller.store.all_ports)
    return Done(tuple(quoted(f"{port}:{SHUTTERS[caller.store.admin(port)]}") for port in asked))


def powers(caller: Caller, command: Command) -> Done:
    """`"1:-12.34"` for each that has a monitor."""
    read = caller.store.powers_dbm(ports(command.aid, caller.store.all_ports))
    return Done(tuple(quoted(f"{port}:{dbm:.2f}") for port, dbm in read.items()))


def label(caller: Caller, command: Command) -> Done:
    """`ED-PORT-LABEL::1&2:c:::LABEL=a&"b c";`: one for each port."""
    asked = named_ports(command.aid, caller.store.all_ports)
    words = named(command, 2, ["LABEL"])["LABEL"].split("&")
    labels = [word.plain for word in words]
    most = caller.store.profile.tl1.label_chars
    bad = any(not word.is_quoted and not BARE_LABEL.fullmatch(word.plain) for word in words)
    if bad or any(len(one) > most or not one.isprintable() or not one.isascii() for one in labels):
        raise DeniedError("IPNV", "Parameter not valid")
    if len(labels) != len(asked):
        raise DeniedError("IPNV", f"{len(labels)} labels for {len(asked)} ports")
    for port, text in zip(asked, labels, strict=True):
        caller.store.configure(port, label=text)
    return Done()


def unlabel(caller: Caller, command: Command) -> Done:
    """`DLT-PORT-LABEL::1&2:c:;`."""
    for port in named_ports(command.aid, caller.store.all_ports):
        caller.store.configure(port, label="")
    return Done()


def labels(caller: Caller, command: Command) -> Done:
    """`"1:src"` for each, without a name where there is none."""
    asked = ports(command.aid, caller.store.all_ports)
    return Done(tuple(quoted(f"{port}:{caller.store.settings(port).label}") for port in asked))


def monitor(caller: Caller, command: Command) -> Done:
    """`SET-PORT-PMON::1&&12:c:::WAVE=1310,OFFSET=0.5,ATIME=4;`."""
    asked = named_ports(command.aid, caller.store.all_ports)
    told = named(command, 2, ["WAVE", "OFFSET", "ATIME"])
    changes: dict[str, float | int] = {}
    if "WAVE" in told:
        changes["wavelength_nm"] = number(told["WAVE"].plain, 1260, 1640)
    if "OFFSET" in told:
        changes["offset_db"] = number(told["OFFSET"].plain, -100, 100)
    if "ATIME" in told:
        changes["averaging"] = whole(told["ATIME"].plain, 1, 8)
    for port in asked:
        caller.store.configure(port, **changes)
    return Done()


def monitors(caller: Caller, command: Command) -> Done:
    """`"1:1550.00,0.00,4"` for each that has a monitor: wavelength, offset, averaging."""
    store = caller.store
    asked = [port for port in ports(command.aid, store.all_ports) if store.has_monitor(port)]
    read = {port: store.settings(port) for port in asked}
    return Done(
        tuple(
            quoted(f"{port}:{at.wavelength_nm:.2f},{at.offset_db:.2f},{at.averaging}")
            for port, at in read.items()
        )
    )


def attenuate(caller: Caller, command: Command) -> Done:
    """`SET-PORT-ATTEN::33:c:::MODE=ABSOLUTE,LEVEL=-10,REFS=1;`: of outputs alone."""
    store = caller.store
    asked = named_ports(command.aid, store.all_ports)
    if wrong := [port for port in asked if port in store.ports.input_set]:
        raise invalid_port(str(wrong[0]))
    told = named(command, 2, ["MODE", "LEVEL", "REFS"])
    if "MODE" not in told:
        raise DeniedError("IPMS", "Too few parameters (0/1) in block 2")
    mode = chosen(told["MODE"].plain, ATTENUATIONS)
    level = number(told["LEVEL"].plain, -100, 100) if "LEVEL" in told else 0.0
    reference = whole(told["REFS"].plain, 1, store.ports.inputs) if "REFS" in told else None
    for port in asked:
        store.configure(port, attenuation=mode, attenuation_db=level, reference=reference)
    return Done()


def attenuations(caller: Caller, command: Command) -> Done:
    """`"33:ABSOLUTE,-10.00,1"` for each output: mode, level, reference."""
    store = caller.store
    asked = [port for port in ports(command.aid, store.all_ports) if port not in store.ports.input_set]
    read = {port: store.settings(port) for port in asked}
    return Done(
        tuple(
            quoted(f"{port}:{at.attenuation},{at.attenuation_db:.2f},{at.reference or ''}")
            for port, at in read.items()
        )
    )


def flap(caller: Caller, command: Command) -> Done:
    """`ENT-PORT-FLAP::1:c::1000,500,3;`: closed and open for so many ms, so many times."""
    asked = named_ports(command.aid, caller.store.all_ports)
    block, restore, cycles = positional(command, 1, 1, 3)
    try:
        caller.store.flaps.set(
            asked,
            Flap(
                whole(block, 0, 999_999),
                whole(restore, 0, 999_999) if restore else None,
                whole(cycles, 0, 999_999) if cycles else 1,
            ),
        )
    except ValueError as wrong:
        raise DeniedError("IPNV", str(wrong)) from wrong
    return Done()


def flaps(caller: Caller, command: Command) -> Done:
    """`"1:1000,500,3"` for each that was told how."""
    known = {
        port: at
        for port in ports(command.aid, caller.store.all_ports)
        if (at := caller.store.flaps.get(port))
    }
    return Done(
        tuple(quoted(f"{port}:{at.block_ms},{at.restore_ms or ''},{at.cycles}") for port, at in known.items())
    )


def flapping(caller: Caller, command: Command) -> Done:
    """`OPR-PORT-FLAP::1:c;`."""
    asked = named_ports(command.aid, caller.store.all_ports)
    if unknown := [port for port in asked if caller.store.flaps.get(port) is None]:
        raise DeniedError("SNVS", f"Port {unknown[0]} has no flap settings")
    caller.store.flaps.start(asked)
    return Done()


def steady(caller: Caller, command: Command) -> Done:
    """`RLS-PORT-FLAP::1:c;`."""
    caller.store.flaps.stop(named_ports(command.aid, caller.store.all_ports))
    return Done()
