"""Table of all TL1 commands, by name."""

from collections.abc import Mapping
from typing import Final

from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.tl1 import equipment_commands as equipment
from moefabric.emulator.ocs.tl1 import port_commands as ports
from moefabric.emulator.ocs.tl1 import user_commands as users
from moefabric.emulator.ocs.tl1.command import Verb
from moefabric.emulator.ocs.tl1.port_commands import change_ports, list_ports

VERBS: Final[Mapping[str, Verb]] = {
    "ACT-USER": Verb(users.activate, needs_login=False),
    "CANC-USER": Verb(users.cancel),
    "ENT-PATCH": Verb(ports.enter_patch, "user"),
    "DLT-PATCH": Verb(ports.delete_patch, "user"),
    "RTRV-PATCH": Verb(ports.retrieve_patch),
    "OPR-PORT-SHUTTER": Verb(change_ports(OcsDevice.disable, settles=True), "user"),
    "RLS-PORT-SHUTTER": Verb(change_ports(OcsDevice.enable, settles=True), "user"),
    "RTRV-PORT-SHUTTER": Verb(list_ports(ports.shutter)),
    "RTRV-PORT-POWER": Verb(ports.powers),
    "ED-PORT-LABEL": Verb(ports.edit_label, "user"),
    "DLT-PORT-LABEL": Verb(change_ports(ports.delete_labels), "user"),
    "RTRV-PORT-LABEL": Verb(list_ports(ports.label)),
    "SET-PORT-PMON": Verb(ports.set_monitors, "user"),
    "RTRV-PORT-PMON": Verb(list_ports(ports.monitor, unique=True)),
    "SET-PORT-ATTEN": Verb(ports.set_attenuation, "user"),
    "RTRV-PORT-ATTEN": Verb(list_ports(ports.attenuation, unique=True)),
    "ENT-PORT-FLAP": Verb(ports.enter_flap, "user"),
    "RTRV-PORT-FLAP": Verb(list_ports(ports.flap, unique=True)),
    "OPR-PORT-FLAP": Verb(change_ports(ports.start_flapping), "user"),
    "RLS-PORT-FLAP": Verb(change_ports(ports.stop_flapping), "user"),
    "RTRV-HDR": Verb(equipment.header),
    "RTRV-NETYPE": Verb(equipment.network_element),
    "RTRV-INV": Verb(equipment.inventory),
    "RTRV-EQPT": Verb(equipment.retrieve),
    "ED-EQPT": Verb(equipment.edit, "admin"),
    "RTRV-IP": Verb(equipment.address),
    "RTRV-TOD": Verb(equipment.time_of_day),
    "SET-SID": Verb(equipment.set_name, "admin"),
    "INIT-SYS": Verb(equipment.initialize, "admin"),
    "RTRV-ALM-EQPT": Verb(equipment.alarms),
    "RTRV-ALM-ENV": Verb(equipment.environment_alarms),
    "RTRV-ALM-ALL": Verb(equipment.alarms),
    "OPR-ARC-EQPT": Verb(equipment.inhibit_messages),
    "RLS-ARC-EQPT": Verb(equipment.allow_messages),
    "RTRV-ARC-EQPT": Verb(equipment.message_state),
    "INH-MSG-ALL": Verb(equipment.inhibit_messages),
    "ALW-MSG-ALL": Verb(equipment.allow_messages),
    "ENT-USER-SECU": Verb(users.enter, "admin"),
    "ED-USER-SECU": Verb(users.edit, "admin"),
    "DLT-USER-SECU": Verb(users.delete),
    "RTRV-USER-SECU": Verb(users.retrieve_all),
    "RTRV-USER": Verb(users.retrieve_own),
    "ED-SECU-PID": Verb(users.change_password),
}
