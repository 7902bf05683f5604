"""Datastore of a switch: shows its state as YANG data, applies edits, and does operations.

Operations are those of the YANG modules: POST to `/operations/NAME` (RFC 8040, section 3.6).
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from moefabric.core.ocs import Group, UserAccount
from moefabric.emulator.ocs.cross_connects import Pair, RefusedError
from moefabric.emulator.ocs.device import REBOOT_DELAY_NS, OcsDevice
from moefabric.emulator.ocs.events import PORT_TEXTS, OcsEvent, OcsEventKind
from moefabric.emulator.ocs.restconf import port_tables
from moefabric.emulator.ocs.restconf.dialect import RestconfOptions
from moefabric.emulator.ocs.restconf.errors import RestconfError, from_refusal
from moefabric.emulator.ocs.restconf.schema import CONTAINERS, OPERATION_INPUTS, setting_of, shown
from moefabric.emulator.ocs.restconf.tree import Target, Tree
from moefabric.emulator.ocs.users import UserError
from moefabric.runtime.event_loop import Timer

SYSTEM = CONTAINERS["system-config"]
ADDRESS_LEAVES = [leaf for leaf in SYSTEM["interface"].children if leaf.setting]
NIC = "eth0"
NO_ADDRESS = "0.0.0.0"  # noqa: S104 - a value to show; nothing listens on it


MAX_ENTRIES = 256
TYPES = {
    OcsEventKind.POWER_LOW: "NOTIF_PORT_POWER",
    OcsEventKind.POWER_CLEAR: "NOTIF_PORT_POWER",
    OcsEventKind.PORT_FAILED: "NOTIF_SYSTEM",
    OcsEventKind.PORT_RECOVERED: "NOTIF_SYSTEM",
    OcsEventKind.ENABLED: "NOTIF_ACTIVITY",
    OcsEventKind.DISABLED: "NOTIF_ACTIVITY",
}
"""Notification types of events."""
RAISED_BY = {
    OcsEventKind.POWER_CLEAR: OcsEventKind.POWER_LOW,
    OcsEventKind.PORT_RECOVERED: OcsEventKind.PORT_FAILED,
}
"""For each event that clears an alarm, the event that raises it."""


def format_date(wall_s: float) -> str:
    """Return a YANG date-and-time: `2026-01-01T00:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_s))


class NotificationLog:
    """The latest notifications, and the standing alarms."""

    def __init__(self) -> None:
        self.entries: deque[dict[str, Any]] = deque(maxlen=MAX_ENTRIES)
        """Entries of `notification-log`."""
        self.alarms: dict[tuple[OcsEventKind, int], dict[str, Any]] = {}
        """Entries of `system-alarms`, by event and port."""
        self._numbers = count(1)

    def add(self, event: OcsEvent, wall_s: float) -> None:
        """Add the notifications of an event, if it has any."""
        if event.kind not in TYPES:
            return
        kind, date = TYPES[event.kind], format_date(wall_s)
        for port in event.ports:
            text = PORT_TEXTS[event.kind].format(port)
            entry = {
                "notif-id": next(self._numbers),
                "notif-type": kind,
                "notif-time-first": date,
                "notif-time-last": date,
                "notif-message": text,
            }
            self.entries.append(entry)
            if event.kind in RAISED_BY:
                self.alarms.pop((RAISED_BY[event.kind], port), None)
            elif event.kind in RAISED_BY.values():
                alarm = {"alarm-time": date, "alarm-type": kind, "alarm-message": text}
                self.alarms[event.kind, port] = alarm

    def remove(self, numbers: set[int]) -> None:
        """Remove the notifications with these numbers, or all if there are no numbers."""
        others = [entry for entry in self.entries if numbers and entry["notif-id"] not in numbers]
        self.entries = deque(others, self.entries.maxlen)


class Datastore:
    """A switch as YANG data, with a log of notifications."""

    def __init__(self, device: OcsDevice, options: RestconfOptions) -> None:
        self.device, self.options = device, options
        self.log = NotificationLog()
        self.booted_s = device.wall_s()
        self.restart = Timer(device.reboot)
        """The reboot that a client scheduled last."""

    def read(self, target: Target) -> Tree:
        """Return the content of the target's container, or of all containers by name."""
        if target.steps:
            return self._read(target.top.name)
        return {name: self._read(name) for name in CONTAINERS}

    def _read(self, name: str) -> Tree:
        return READERS[name](self) if name in READERS else port_tables.read(self.device, name)

    def apply(self, target: Target, before: Tree, after: Tree) -> None:
        """Change the switch by an edit of the target's container.

        Raises:
            RestconfError: if the edit is refused.
        """
        name, version = target.top.name, self.device.version
        try:
            if name in WRITERS:
                WRITERS[name](self, before, after)
                return
            changes = port_tables.changed_settings(self.device, name, before, after)
            if name == "ports":
                self.set_shutters(*port_tables.shutter_changes(before, after))
            for port in filter(changes.get, changes):
                self.device.ports.configure([port], **changes[port])
        except RefusedError as refused:
            raise from_refusal(refused, partial=self.device.version != version) from refused
        except UserError as error:
            raise RestconfError("invalid-value", error.reason.value) from error

    # ---- reading

    def product(self) -> Tree:
        """Read `product-information`."""
        identity = vars(self.device.identity)
        leaves = CONTAINERS["product-information"].children
        return {leaf.name: identity[leaf.setting] for leaf in leaves}

    def system(self) -> Tree:
        """Read `system-config`."""
        fields = vars(self.device.system)
        nic = {"name": NIC, **{leaf.name: fields[leaf.setting] for leaf in ADDRESS_LEAVES}}
        users = [
            {"name": user.name, "type": "LOCAL_USER", "password": "", "group": user.group}
            for user in self.device.users
        ]
        return {
            "interface-status": [nic],
            "interface": [dict(nic)],
            "user": users,
            "current-datetime": format_date(self.device.wall_s()),
            "boot-datetime": format_date(self.booted_s),
            "startup-mode": shown(SYSTEM["startup-mode"], fields["startup"]),
        }

    def sessions(self) -> Tree:
        """Read `sessions`."""
        names = "session-id", "protocol-name", "client-address", "user-name"
        rows = (
            (number, log_in.protocol.upper(), log_in.peer.rpartition(":")[0], log_in.user)
            for number, log_in in self.device.users.log_ins.items()
        )
        return {"session": [dict(zip(names, row, strict=True)) for row in rows]}

    # ---- changing

    def change_pairs(self, before: Tree, after: Tree) -> None:
        """Apply an edit of `cross-connects`.

        Cross-connects that the edit doesn't name are removed only if it uses their ports.
        """
        old, new = _pairs(before), _pairs(after)
        move = self.device.profile.busy == "move"
        self.device.change(lambda now: now.sub(old - new).add(sorted(new - old), move=move))

    def set_shutters(self, enabled: list[int], disabled: list[int]) -> None:
        """Enable and disable ports."""
        if both := sorted(set(enabled) & set(disabled)):
            raise RestconfError("invalid-value", f"port {both[0]} both ways")
        for ports in (enabled, disabled):  # before any of them changes
            self.device.ports.check(ports)
            self.device.ports.check_works(ports)
        if disabled:
            self.device.disable(disabled)
        if enabled:
            self.device.enable(enabled)

    def change_system(self, before: Tree, after: Tree) -> None:
        """Apply an edit of `system-config`: start-up mode, the shown address, users."""
        nics = after.get("interface", [])
        if [nic["name"] for nic in nics] != [NIC]:
            raise RestconfError("invalid-value", f"{NIC} is the only interface")
        for leaf in ("current-datetime", "boot-datetime", "interface-status"):
            if leaf in after and after[leaf] != before[leaf]:
                raise RestconfError("invalid-value", f"{leaf} can't be set")
        self._change_users(before["user"], after.get("user", []))
        mode = after.get("startup-mode", "MODE_PRESERVE")
        new = {leaf.setting: nics[0].get(leaf.name, NO_ADDRESS) for leaf in ADDRESS_LEAVES}
        new["startup"] = setting_of(SYSTEM["startup-mode"], mode)
        now = vars(self.device.system)
        if changes := {field: value for field, value in new.items() if now[field] != value}:
            self.device.configure_system(**changes)

    def _change_users(self, before: list[Tree], after: list[Tree]) -> None:
        old, new = ({entry["name"]: entry for entry in entries} for entries in (before, after))
        changed = [name for name in new if new[name] != old.get(name)]
        removed = sorted(old.keys() - new.keys())
        if len(changed) + len(removed) > 1:
            raise RestconfError("operation-not-supported", "an edit can change one user only")
        users = self.device.users
        for name in removed:
            users.remove(name)
        for name in changed:
            account = users.get(name)
            password = new[name].get("password") or (account.password if account else "")
            replacement = UserAccount(name, password, new[name].get("group", "user"))
            users.change(name, replacement) if account else users.add(replacement)


def _pairs(tree: Tree) -> set[Pair]:
    entries = tree.get("pair", ())
    if any("egress" not in entry for entry in entries):
        raise RestconfError("missing-element", "a pair needs its egress")
    return {(entry["ingress"], entry["egress"]) for entry in entries}


READERS: Mapping[str, Callable[[Datastore], Tree]] = {
    "product-information": Datastore.product,
    "cross-connects": lambda store: {
        "pair": [{"ingress": p, "egress": q} for p, q in store.device.connects]
    },
    "aps": lambda _store: {"protection-service": []},
    "subswitches": lambda _store: {"subswitch": []},
    "system-config": Datastore.system,
    "sessions": Datastore.sessions,
    "system-alarms": lambda store: {"alarm": list(store.log.alarms.values())},
    "notification-log": lambda store: {"log": list(store.log.entries)},
}
"""Functions that read containers other than tables of ports."""
WRITERS: Mapping[str, Callable[[Datastore, Tree, Tree], None]] = {
    "cross-connects": Datastore.change_pairs,
    "system-config": Datastore.change_system,
}
"""Functions that apply edits of these containers."""


@dataclass(frozen=True)
class Operation:
    """An operation, and the least privileged group that may use it."""

    execute: Callable[[Datastore, Tree], None]
    group: Group = "user"
    settles: bool = False
    """Whether it completes when all light has settled."""


def run(name: str, datastore: Datastore, inputs: Tree) -> None:
    """Execute an operation.

    Raises:
        RestconfError: if the operation is refused.
    """
    for leaf in OPERATION_INPUTS[name].children:
        if leaf.mandatory and leaf.name not in inputs:
            raise RestconfError("missing-element", f"{leaf.name} is needed")
    try:
        OPERATIONS[name].execute(datastore, inputs)
    except RefusedError as refused:
        raise from_refusal(refused) from refused


def _set_port_state(datastore: Datastore, inputs: Tree) -> None:
    datastore.set_shutters(inputs.get("port-enab", []), inputs.get("port-disab", []))


def _disconnect_session(datastore: Datastore, inputs: Tree) -> None:
    users = datastore.device.users
    log_in = users.log_ins.get(inputs["session-id"])
    if log_in is None:
        raise RestconfError("invalid-value", f"there is no session {inputs['session-id']}")
    users.log_out(inputs["session-id"])
    log_in.close()


def _restart(datastore: Datastore, inputs: Tree) -> None:
    device = datastore.device
    delay_ns = max(inputs.get("seconds", 0) * 1_000_000_000, REBOOT_DELAY_NS)
    _cancel_restart(datastore, {})
    datastore.restart = device.call_later(delay_ns, device.reboot)


def _cancel_restart(datastore: Datastore, _inputs: Tree) -> None:
    datastore.restart.cancel()


def _clear_notifications(datastore: Datastore, inputs: Tree) -> None:
    datastore.log.remove({entry["notif-id"] for entry in inputs.get("notif-ids", ())})


OPERATIONS: Mapping[str, Operation] = {
    "port-set-state": Operation(_set_port_state, settles=True),
    "system-restart": Operation(_restart, "admin"),
    "system-restart-cancel": Operation(_cancel_restart, "admin"),
    "disconnect-session": Operation(_disconnect_session, "admin"),
    "clear-notification-ids": Operation(_clear_notifications),
}
assert OPERATIONS.keys() == OPERATION_INPUTS.keys()
