"""TL1 commands for the switch as a whole: identity, name, timeouts, start-up mode, alarms."""

import re
import time
from typing import Any

from moefabric.emulator.ocs.device import REBOOT_DELAY_NS, OcsDevice
from moefabric.emulator.ocs.tl1 import parameters
from moefabric.emulator.ocs.tl1.front_end import Execute, Result, Tl1Session
from moefabric.emulator.ocs.tl1.syntax import Command, DeniedError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. -]{0,19}")
STARTUP_MODES = {"DARK": "volatile", "RESTORE": "preserve"}
TIMEOUTS = {"ADMIN": "session_timeout_s", "USER": "user_timeout_s"}
MAX_TIMEOUT = 60
ALARM_MANAGER = "REPMGR"


def header(_session: Tl1Session, _command: Command) -> None:
    """`RTRV-HDR:::c:;`: only the header of the response.

    `RTRV-ALM-ENV::ALL:c:;` too, as nothing in this switch's environment raises alarms.
    """


def network_element(session: Tl1Session, _command: Command) -> Result:
    """`RTRV-NETYPE:::c:;`: `"vendor,model,type,version"`."""
    identity = session.device.identity
    return Result([f"{identity.vendor},{identity.model},OCS,{identity.firmware}"])


def inventory(session: Tl1Session, _command: Command) -> Result:
    """`RTRV-INV::OCS:c:;`: the inventory, with `SN=` and the serial number."""
    vendor, model, serial, firmware = vars(session.device.identity).values()
    return Result([f"OCS::VENDOR={vendor},MODEL={model},SN={serial},SW={firmware}"])


def set_name(session: Tl1Session, command: Command) -> None:
    """`SET-SID:::c::name;`: names the switch (at most 20 characters; empty: no name)."""
    (name,) = parameters.positional(command, 0, 1)
    if name and not NAME.fullmatch(name):
        raise DeniedError("IDNV", "Invalid system identifier")
    session.device.configure_system(name=name)


def retrieve(session: Tl1Session, command: Command) -> Result:
    """`RTRV-EQPT::SYSTEM:c:::PARAMETER=SIZE;`: `"SYSTEM:SIZE=16x16"`.

    Other access identifiers and their parameters: PMON with CONFIG, BOOT with MODE, TIMEOUT with
    ADMIN and USER.
    """
    name = command.aid.value.upper()
    device, unit_s = session.device, session.options.timeout_unit_s
    system = vars(device.system)
    (mode,) = (word for word, mode in STARTUP_MODES.items() if mode == system["startup"])
    values: dict[str, dict[str, Any]] = {
        "SYSTEM": {"SIZE": device.ports.size},
        "BOOT": {"MODE": mode},
        "TIMEOUT": {group: system[field] // unit_s for group, field in TIMEOUTS.items()},
        "PMON": {"CONFIG": None},
    }
    if name not in values:
        raise parameters.invalid_aid(command)
    parameter = parameters.named(command, ["PARAMETER"])["PARAMETER"].value.upper()
    if parameter not in values[name]:
        raise DeniedError("IPNV", "Parameter not valid")
    if name == "PMON":
        return Result(_monitors(device))
    return Result([f"{name}:{parameter}={values[name][parameter]}"])


def edit(session: Tl1Session, command: Command) -> None:
    """`ED-EQPT::TIMEOUT:c:::ADMIN=60;`, `ED-EQPT::BOOT:c:::MODE=DARK;`."""
    device, unit_s = session.device, session.options.timeout_unit_s
    match command.aid.value.upper():
        case "TIMEOUT":
            count = parameters.whole(0, MAX_TIMEOUT)
            known = {name: (field, count) for name, field in TIMEOUTS.items()}
            units = parameters.settings(command, known)
            device.configure_system(**{field: number * unit_s for field, number in units.items()})
        case "BOOT":
            modes = {"MODE": ("startup", parameters.choice(STARTUP_MODES))}
            device.configure_system(**parameters.settings(command, modes))
        case _:
            raise parameters.invalid_aid(command)


def address(session: Tl1Session, command: Command) -> Result:
    """`RTRV-IP::eth0:c:;`: `"eth0:address,gateway,mask,broadcast"`."""
    if command.aid.value not in ("eth0", ""):
        raise parameters.invalid_aid(command)
    system = session.device.system
    return Result([f"eth0:{system.ip},{system.gateway},{system.mask},{system.broadcast}"])


def time_of_day(session: Tl1Session, _command: Command) -> Result:
    """`RTRV-TOD:::c:;`: `"2026,01,01,00,00,00,0:UTC"`."""
    now = time.gmtime(session.device.wall_s())
    return Result([time.strftime("%Y,%m,%d,%H,%M,%S,0:UTC", now)])


def initialize(session: Tl1Session, command: Command) -> Result | None:
    """`INIT-SYS::SYSTEM:c::1;`: 0 and 1 apply the start-up mode, 10 reboots.

    `INIT-SYS::ALARM:c::3;`: 1, 2 and 3 clear environmental, equipment and all alarms.
    """
    device = session.device
    (phase,) = parameters.positional(command, 1, 1)
    match command.aid.value.upper(), phase:
        case "SYSTEM", "0" | "1":
            if device.system.startup == "volatile":
                device.clear()
                device.enable(device.ports.closed - device.ports.failed)
            return Result(settles=True)
        case "SYSTEM", "10":
            device.call_later(REBOOT_DELAY_NS, device.reboot)
        case "ALARM", "1":
            pass
        case "ALARM", "2" | "3":
            session.front_end.alarms.clear()
        case "SYSTEM" | "ALARM", _:
            raise DeniedError("IPNV", "Parameter not valid")
        case _:
            raise parameters.invalid_aid(command)
    return None


def alarms(session: Tl1Session, _command: Command) -> Result:
    """`RTRV-ALM-EQPT::ALL:c:;`, `RTRV-ALM-ALL::ALL:c:;`: standing alarms."""
    return Result(session.front_end.alarms)


def want_messages(*, wanted: bool) -> Execute:
    """Make a command that allows or inhibits autonomous messages to its session.

    `OPR-ARC-EQPT::REPMGR:c::IND;` and `INH-MSG-ALL:::c:;` inhibit them, `RLS-ARC-EQPT::REPMGR:c:;`
    and `ALW-MSG-ALL:::c:;` allow them.
    """

    def execute(session: Tl1Session, _command: Command) -> None:
        session.wants_messages = wanted

    return execute


def message_state(session: Tl1Session, _command: Command) -> Result:
    """`RTRV-ARC-EQPT::ALL:c:;`: `"REPMGR:IND,,"` if messages are inhibited."""
    return Result([f"{ALARM_MANAGER}:{'' if session.wants_messages else 'IND'},,"])


def _monitors(device: OcsDevice) -> list[str]:
    return [
        f"PMON::PORT={port},MODE={'INPUT' if device.ports.is_input(port) else 'OUTPUT'}"
        for port in device.ports.all
        if device.light.has_monitor(port)
    ]
