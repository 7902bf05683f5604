"""All TL1 commands that the switch knows, by name."""

from collections.abc import Mapping
from typing import Final

from emulator.ocs.tl1 import crossing, equipment, people, ports
from emulator.ocs.tl1.done import Verb

VERBS: Final[Mapping[str, Verb]] = {
    "ACT-USER": Verb(people.activate, needs_login=False),
    "CANC-USER": Verb(people.cancel),
    "ENT-PATCH": Verb(crossing.enter, "user"),
    "DLT-PATCH": Verb(crossing.delete, "user"),
    "RTRV-PATCH": Verb(crossing.retrieve),
    "OPR-PORT-SHUTTER": Verb(ports.close, "user"),
    "RLS-PORT-SHUTTER": Verb(ports.open_, "user"),
    "RTRV-PORT-SHUTTER": Verb(ports.shutters),
    "RTRV-PORT-POWER": Verb(ports.powers),
    "ED-PORT-LABEL": Verb(ports.label, "user"),
    "DLT-PORT-LABEL": Verb(ports.unlabel, "user"),
    "RTRV-PORT-LABEL": Verb(ports.labels),
    "SET-PORT-PMON": Verb(ports.monitor, "user"),
    "RTRV-PORT-PMON": Verb(ports.monitors),
    "SET-PORT-ATTEN": Verb(ports.attenuate, "user"),
    "RTRV-PORT-ATTEN": Verb(ports.attenuations),
    "ENT-PORT-FLAP": Verb(ports.flap, "user"),
    "RTRV-PORT-FLAP": Verb(ports.flaps),
    "OPR-PORT-FLAP": Verb(ports.flapping, "user"),
    "RLS-PORT-FLAP": Verb(ports.steady, "user"),
    "RTRV-HDR": Verb(equipment.header),
    "RTRV-NETYPE": Verb(equipment.element),
    "RTRV-INV": Verb(equipment.inventory),
    "RTRV-EQPT": Verb(equipment.retrieve),
    "ED-EQPT": Verb(equipment.edit, "admin"),
    "RTRV-IP": Verb(equipment.address),
    "RTRV-TOD": Verb(equipment.clock),
    "SET-SID": Verb(equipment.call, "admin"),
    "INIT-SYS": Verb(equipment.restart, "admin"),
    "RTRV-ALM-EQPT": Verb(equipment.alarms),
    "RTRV-ALM-ENV": Verb(equipment.no_alarms),
    "RTRV-ALM-ALL": Verb(equipment.alarms),
    "OPR-ARC-EQPT": Verb(equipment.inhibit),
    "RLS-ARC-EQPT": Verb(equipment.allow),
    "RTRV-ARC-EQPT": Verb(equipment.inhibited),
    "INH-MSG-ALL": Verb(equipment.inhibit),
    "ALW-MSG-ALL": Verb(equipment.allow),
    "ENT-USER-SECU": Verb(people.enter, "admin"),
    "ED-USER-SECU": Verb(people.edit, "admin"),
    "DLT-USER-SECU": Verb(people.delete),
    "RTRV-USER-SECU": Verb(people.retrieve_all),
    "RTRV-USER": Verb(people.retrieve_own),
    "ED-SECU-PID": Verb(people.change_password),
}
