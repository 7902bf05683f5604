"""TL1 commands for the switch as a whole: what it is, its name, its time-outs, its start-up mode, its alarms."""

import re
import time
from collections.abc import Callable, Mapping

from emulator.ocs.store import Store
from emulator.ocs.tl1.done import Caller, Done
from emulator.ocs.tl1.frames import quoted
from emulator.ocs.tl1.parameters import chosen, named, positional, whole
from emulator.ocs.tl1.words import Command, DeniedError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. -]{0,19}")
STARTUPS = {"DARK": "volatile", "RESTORE": "preserve"}
TIMEOUTS = {"ADMIN": "session_timeout_s", "USER": "user_timeout_s"}
MOST_TIMEOUT = 60
REBOOT_AFTER_NS = 100_000_000
"""A reboot lets its own reply go first."""
ALARM_MANAGER = "REPMGR"


def header(_caller: Caller, _command: Command) -> Done:
    """`RTRV-HDR:::c:;`: the heading says it all."""
    return Done()


def element(caller: Caller, _command: Command) -> Done:
    """`RTRV-NETYPE:::c:;`: `"vendor,model,type,version"`."""
    who = caller.store.identity
    return Done((quoted(f"{who.vendor},{who.model},OCS,{who.firmware}"),))


def inventory(caller: Caller, command: Command) -> Done:
    """`RTRV-INV::OCS:c:;`: with `SN=` and the serial number."""
    if command.aid.plain.upper() not in ("OCS", "ALL", ""):
        raise DeniedError("IIAC", f"Invalid AID {command.aid.plain}")
    who = caller.store.identity
    return Done((quoted(f"OCS::VENDOR={who.vendor},MODEL={who.model},SN={who.serial},SW={who.firmware}"),))


def call(caller: Caller, command: Command) -> Done:
    """`SET-SID:::c::name;`: 20 characters at most; empty takes the name away."""
    (name,) = positional(command, 1, 0, 1)
    if name and not NAME.fullmatch(name):
        raise DeniedError("IDNV", "Invalid system identifier")
    caller.store.configure_system(name=name)
    return Done()


def retrieve(caller: Caller, command: Command) -> Done:
    """`RTRV-EQPT::SYSTEM:c:::PARAMETER=SIZE;`: `"SYSTEM:SIZE=16x16"`; PMON's and ATTEN's CONFIG, BOOT's MODE, TIMEOUT's ADMIN and USER."""
    about = command.aid.plain.upper()
    if about not in EQUIPMENT:
        raise DeniedError("IIAC", f"Invalid AID {command.aid.plain}")
    wanted = named(command, 2, ["PARAMETER"])["PARAMETER"].plain.upper()
    if wanted not in EQUIPMENT[about]:
        raise DeniedError("IPNV", "Parameter not valid")
    return Done(EQUIPMENT[about][wanted](caller.store))


def edit(caller: Caller, command: Command) -> Done:
    """`ED-EQPT::TIMEOUT:c:::ADMIN=60;`, `ED-EQPT::BOOT:c:::MODE=DARK;`."""
    match command.aid.plain.upper():
        case "TIMEOUT":
            unit_s = caller.store.profile.tl1.timeout_unit_s
            told = named(command, 2, list(TIMEOUTS))
            times = {
                TIMEOUTS[name]: whole(word.plain, 0, MOST_TIMEOUT) * unit_s for name, word in told.items()
            }
            caller.store.configure_system(**times)
        case "BOOT":
            mode = chosen(named(command, 2, ["MODE"])["MODE"].plain, STARTUPS)
            caller.store.configure_system(startup=mode)
        case _:
            raise DeniedError("IIAC", f"Invalid AID {command.aid.plain}")
    return Done()


def address(caller: Caller, command: Command) -> Done:
    """`RTRV-IP::eth0:c:;`: `"eth0:address,gateway,mask,broadcast"`."""
    if command.aid.plain not in ("eth0", ""):
        raise DeniedError("IIAC", f"Invalid AID {command.aid.plain}")
    at = caller.store.system
    return Done((quoted(f"eth0:{at.ip},{at.gateway},{at.mask},{at.broadcast}"),))


def clock(caller: Caller, _command: Command) -> Done:
    """`RTRV-TOD:::c:;`: `"2026,01,01,00,00,00,0:UTC"`."""
    return Done((quoted(time.strftime("%Y,%m,%d,%H,%M,%S,0:UTC", time.gmtime(caller.store.wall_s()))),))


def restart(caller: Caller, command: Command) -> Done:
    """`INIT-SYS::SYSTEM:c::1;`: 0 and 1 set cross-connects and shutters as the start-up mode has them, 10 reboots.

    `INIT-SYS::ALARM:c::3;`: 1, 2 and 3 forget environmental, equipment and all alarms.
    """
    (phase,) = positional(command, 1, 1, 1)
    match command.aid.plain.upper(), phase:
        case "SYSTEM", "0" | "1":
            if caller.store.system.startup == "volatile":
                caller.store.clear()
                caller.store.enable([port for port in caller.store.all_ports if _is_shut(caller.store, port)])
            return Done(settles=True)
        case "SYSTEM", "10":
            timers = caller.store.timers
            timers.at(timers.now_ns() + REBOOT_AFTER_NS, caller.store.reboot)
        case "ALARM", "1":
            pass
        case "ALARM", "2" | "3":
            caller.alarms.clear()
        case "SYSTEM" | "ALARM", _:
            raise DeniedError("IPNV", "Parameter not valid")
        case _:
            raise DeniedError("IIAC", f"Invalid AID {command.aid.plain}")
    return Done()


def alarms(caller: Caller, command: Command) -> Done:
    """`RTRV-ALM-EQPT::ALL:c:;`, `RTRV-ALM-ALL::ALL:c:;`: those that stand."""
    _must_be_all(command)
    return Done(tuple(alarm.line() for alarm in caller.alarms))


def no_alarms(_caller: Caller, command: Command) -> Done:
    """`RTRV-ALM-ENV::ALL:c:;`: there is nothing around this switch that could give one."""
    _must_be_all(command)
    return Done()


def inhibit(caller: Caller, command: Command) -> Done:
    """`OPR-ARC-EQPT::REPMGR:c::IND;`, `INH-MSG-ALL:::c:;`: this session wants no autonomous messages."""
    _must_be_manager(command)
    caller.wants_messages = False
    return Done()


def allow(caller: Caller, command: Command) -> Done:
    """`RLS-ARC-EQPT::REPMGR:c:;`, `ALW-MSG-ALL:::c:;`: this session wants them."""
    _must_be_manager(command)
    caller.wants_messages = True
    return Done()


def inhibited(caller: Caller, command: Command) -> Done:
    """`RTRV-ARC-EQPT::ALL:c:;`: `"REPMGR:IND,,"` where it wants none."""
    _must_be_manager(command)
    return Done((quoted(f"{ALARM_MANAGER}:{'' if caller.wants_messages else 'IND'},,"),))


def _must_be_all(command: Command) -> None:
    if command.aid.plain.upper() not in ("ALL", ""):
        raise DeniedError("IIAC", f"Invalid AID {command.aid.plain}")


def _must_be_manager(command: Command) -> None:
    if command.aid.plain.upper() not in (ALARM_MANAGER, "ALL", ""):
        raise DeniedError("IIAC", f"Invalid AID {command.aid.plain}")


def _is_shut(store: Store, port: int) -> bool:
    return store.admin(port).value == "disabled"


def _monitors(store: Store) -> tuple[str, ...]:
    return tuple(
        quoted(f"PMON::PORT={port},MODE={'INPUT' if port in store.ports.input_set else 'OUTPUT'}")
        for port in store.all_ports
        if store.has_monitor(port)
    )


def _startup(store: Store) -> tuple[str, ...]:
    written = {mode: name for name, mode in STARTUPS.items()}
    return (quoted(f"BOOT:MODE={written[store.system.startup]}"),)


def _timeout(name: str) -> Callable[[Store], tuple[str, ...]]:
    def told(store: Store) -> tuple[str, ...]:
        time_s: int = getattr(store.system, TIMEOUTS[name])
        return (quoted(f"TIMEOUT:{name}={time_s // store.profile.tl1.timeout_unit_s}"),)

    return told


EQUIPMENT: Mapping[str, Mapping[str, Callable[[Store], tuple[str, ...]]]] = {
    "SYSTEM": {"SIZE": lambda store: (quoted(f"SYSTEM:SIZE={store.ports}"),)},
    "PMON": {"CONFIG": _monitors},
    "ATTEN": {"CONFIG": lambda _store: (quoted("ATTEN:CONFIG=NONE&ABSOLUTE&RELATIVE&CONVERGED"),)},
    "BOOT": {"MODE": _startup},
    "TIMEOUT": {name: _timeout(name) for name in TIMEOUTS},
}
