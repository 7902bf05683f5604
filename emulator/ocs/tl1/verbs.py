"""Commands of TL1 by verb."""

from collections.abc import Mapping
from typing import Final

from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.tl1 import equipment_commands as equipment
from moefabric.emulator.ocs.tl1 import port_commands as ports
from moefabric.emulator.ocs.tl1 import user_commands as users
from moefabric.emulator.ocs.tl1.dialect import Tl1Options
from moefabric.emulator.ocs.tl1.front_end import Tl1FrontEnd, Verb

ALL: Final = ("ALL", "")
MANAGER: Final = (equipment.ALARM_MANAGER, *ALL)
VERBS: Final[Mapping[str, Verb]] = {
    "ACT-USER": Verb(users.activate, needs_login=False),
    "CANC-USER": Verb(users.cancel),
    "ENT-PATCH": Verb(ports.enter_patch, "user"),
    "DLT-PATCH": Verb(ports.delete_patch, "user"),
    "RTRV-PATCH": Verb(ports.retrieve_patch),
    "OPR-PORT-SHUTTER": Verb(ports.change_ports(OcsDevice.disable, settles=True), "user"),
    "RLS-PORT-SHUTTER": Verb(ports.change_ports(OcsDevice.enable, settles=True), "user"),
    "RTRV-PORT-SHUTTER": Verb(ports.list_ports(ports.shutter)),
    "RTRV-PORT-POWER": Verb(ports.powers),
    "ED-PORT-LABEL": Verb(ports.edit_label, "user"),
    "DLT-PORT-LABEL": Verb(ports.change_ports(ports.delete_labels), "user"),
    "RTRV-PORT-LABEL": Verb(ports.list_ports(ports.label)),
    "SET-PORT-PMON": Verb(ports.set_monitors, "user"),
    "RTRV-PORT-PMON": Verb(ports.list_ports(ports.monitor, unique=True)),
    "RTRV-HDR": Verb(equipment.header),
    "RTRV-NETYPE": Verb(equipment.network_element),
    "RTRV-INV": Verb(equipment.inventory, aids=("OCS", "ALL", "")),
    "RTRV-EQPT": Verb(equipment.retrieve),
    "ED-EQPT": Verb(equipment.edit, "admin"),
    "RTRV-IP": Verb(equipment.address),
    "RTRV-TOD": Verb(equipment.time_of_day),
    "SET-SID": Verb(equipment.set_name, "admin"),
    "INIT-SYS": Verb(equipment.initialize, "admin"),
    "RTRV-ALM-EQPT": Verb(equipment.alarms, aids=ALL),
    "RTRV-ALM-ENV": Verb(equipment.header, aids=ALL),
    "RTRV-ALM-ALL": Verb(equipment.alarms, aids=ALL),
    "OPR-ARC-EQPT": Verb(equipment.want_messages(wanted=False), aids=MANAGER),
    "RLS-ARC-EQPT": Verb(equipment.want_messages(wanted=True), aids=MANAGER),
    "RTRV-ARC-EQPT": Verb(equipment.message_state, aids=MANAGER),
    "INH-MSG-ALL": Verb(equipment.want_messages(wanted=False), aids=MANAGER),
    "ALW-MSG-ALL": Verb(equipment.want_messages(wanted=True), aids=MANAGER),
    "ENT-USER-SECU": Verb(users.enter, "admin"),
    "ED-USER-SECU": Verb(users.edit, "admin"),
    "DLT-USER-SECU": Verb(users.delete),
    "RTRV-USER-SECU": Verb(users.retrieve_all),
    "RTRV-USER": Verb(users.retrieve_own),
    "ED-SECU-PID": Verb(users.change_password),
}


def tl1_front_end(device: OcsDevice, options: Tl1Options) -> Tl1FrontEnd:
    """Return the front end with all verbs."""
    return Tl1FrontEnd(device, options, VERBS)
