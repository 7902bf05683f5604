"""The datastore: what is read of the switch as YANG has it, and what an edit of a container has the switch do."""

from collections.abc import Callable, Mapping

from emulator.loop import Timer
from emulator.ocs.matching import Busy, CrossConnects, RefusedError
from emulator.ocs.port import Admin
from emulator.ocs.restconf.edit import Tree
from emulator.ocs.restconf.errors import RestconfError, refused
from emulator.ocs.restconf.journal import Journal, date
from emulator.ocs.restconf.port_tables import TABLES, switched
from emulator.ocs.restconf.schema import INTERFACE, TOP
from emulator.ocs.store import Store
from emulator.ocs.users import UserError, Wrong
from moefabric.ocs_manners import Account

STARTUPS = {"volatile": "MODE_VOLATILE", "preserve": "MODE_PRESERVE"}
ADDRESSES = dict(
    zip((leaf.name for leaf in INTERFACE[1:]), ("ip", "gateway", "mask", "broadcast"), strict=True)
)
NIC = "eth0"
GROUPS = 256


class Data:
    """The switch as its YANG modules have it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.journal = Journal()
        self.groups: dict[str, Tree] = {}
        self.booted_s = store.wall_s()
        self.restart: Timer | None = None
        """A reboot that somebody has asked for."""

    def read(self, name: str) -> Tree:
        """A container's content."""
        return READERS[name](self)

    def read_all(self) -> dict[str, Tree]:
        """All there is, by container."""
        return {node.name: self.read(node.name) for node in TOP}

    def apply(self, name: str, before: Tree, after: Tree) -> bool:
        """Have the switch be what `after` has; whether that takes until light has settled. RestconfError if it can't be."""
        if name not in APPLIERS:
            raise RestconfError("operation-not-supported", f"{name} can't be changed")
        version = self.store.version
        try:
            return APPLIERS[name](self, before, after)
        except RefusedError as wrong:
            raise refused(wrong, partly=self.store.version != version) from wrong

    # ---- reading

    def product(self) -> Tree:
        """Who the switch says it is."""
        who = self.store.identity
        return {
            "manufacturer": who.vendor,
            "serial-number": who.serial,
            "model-name": who.model,
            "software-version": who.firmware,
        }

    def pairs(self) -> Tree:
        """What is joined."""
        return {"pair": [{"ingress": p, "egress": q} for p, q in self.store.connects]}

    def known_groups(self) -> Tree:
        """Groups of ports, and what each is joined to."""
        return {
            "group": [{**group, "connected-group": self._connected(group)} for group in self.groups.values()]
        }

    def system(self) -> Tree:
        """The switch as a whole."""
        system = self.store.system
        nic = {"name": NIC, **{leaf: getattr(system, field) for leaf, field in ADDRESSES.items()}}
        users = [
            {"name": one.name, "type": "LOCAL_USER", "password": "", "group": one.group}
            for one in self.store.users
        ]
        return {
            "interface-status": [nic],
            "interface": [dict(nic)],
            "user": users,
            "current-datetime": date(self.store.wall_s()),
            "boot-datetime": date(self.booted_s),
            "startup-mode": STARTUPS[system.startup],
        }

    def sessions(self) -> Tree:
        """Who is logged in."""
        known = [
            {
                "session-id": one.number,
                "protocol-name": one.protocol.upper(),
                "client-address": one.peer.rpartition(":")[0],
                "user-name": one.user,
            }
            for one in self.store.users.log_ins.values()
        ]
        return {"session": known}

    def shutters(self) -> Tree:
        """The ports that flap, or could."""
        told = []
        for port, flap in self.store.flaps:
            entry: Tree = {"port-id": port, "signal-block-time": flap.block_ms}
            if flap.restore_ms is not None:
                entry |= {"signal-restore-time": flap.restore_ms, "cycles": flap.cycles}
            status = "SHUTTER_ACTIVE" if self.store.flaps.is_on(port) else "SHUTTER_SET"
            told.append({**entry, "status": status})
        return {"port": told}

    def alarms(self) -> Tree:
        """The alarms that stand."""
        return {"alarm": [entry.as_alarm() for entry in self.journal.standing.values()]}

    def log(self) -> Tree:
        """What has happened."""
        return {"log": [entry.as_log() for entry in self.journal.entries]}

    def _connected(self, group: Tree) -> str:
        """The group whose outputs are all that this one's inputs are joined to, in order."""
        joined = [self.store.connects.joined.get(port) for port in group.get("ingress", ())]
        for other in self.groups.values():
            if joined and joined == other.get("egress"):
                return str(other["group-name"])
        return ""

    # ---- changing

    def join(self, before: Tree, after: Tree) -> bool:
        """Cross-connects: those that `after` has, and no others but those that give way anyhow."""
        old, new = _pairs(before), _pairs(after)
        busy = Busy(self.store.profile.busy)

        def target(now: CrossConnects) -> CrossConnects:
            return now.sub(old - new).add(sorted(new - old), busy)

        self.store.change(target)
        return True

    def switch_ports(self, before: Tree, after: Tree) -> bool:
        """The deprecated list of ports: labels and shutters."""
        on, off = switched(before, after)
        set_here = {"port-state"}
        plain = {
            "port": [{k: v for k, v in one.items() if k not in set_here} for one in after.get("port", ())]
        }
        TABLES["ports"].check(before, plain)
        self.set_ports(on, off)
        TABLES["ports"].apply(self.store, before, plain)
        return True

    def set_ports(self, on: list[int], off: list[int]) -> None:
        """Enable and disable ports."""
        if both := sorted(set(on) & set(off)):
            raise RestconfError("invalid-value", f"port {both[0]} both ways")
        if failed := [port for port in (*on, *off) if self.store.admin(port) is Admin.FAILED]:
            raise RestconfError("resource-denied", f"out of order: port {failed[0]}")
        if off:
            self.store.disable(off)
        if on:
            self.store.enable(on)

    def change_groups(self, _before: Tree, after: Tree) -> bool:
        """Groups of ports; what they are joined to stays."""
        groups = {one["group-name"]: one for one in after.get("group", ())}
        if len(groups) > GROUPS:
            raise RestconfError("resource-denied", f"{GROUPS} groups at most")
        for group in groups.values():
            for side, valid in (
                ("ingress", self.store.ports.input_set),
                ("egress", self.store.ports.output_set),
            ):
                if strange := [port for port in group.get(side, ()) if port not in valid]:
                    raise RestconfError("invalid-value", f"{strange[0]} is no {side} port")
        self.groups = {
            name: {key: value for key, value in group.items() if key != "connected-group"}
            for name, group in groups.items()
        }
        return False

    def change_system(self, before: Tree, after: Tree) -> bool:
        """The start-up mode, the address that is shown, users. All of it, or nothing."""
        nics = after.get("interface", [])
        if [nic["name"] for nic in nics] != [NIC]:
            raise RestconfError("invalid-value", f"there is {NIC}, and no other")
        for leaf in ("current-datetime", "boot-datetime", "interface-status"):
            if leaf in after and after[leaf] != before[leaf]:
                raise RestconfError("invalid-value", f"{leaf} can't be set")
        self._change_users(before["user"], after.get("user", []))
        mode = after.get("startup-mode", STARTUPS["preserve"])
        wanted = {field: nics[0].get(leaf, "0.0.0.0") for leaf, field in ADDRESSES.items()}  # noqa: S104 - shown
        wanted["startup"] = next(own for own, word in STARTUPS.items() if word == mode)
        now = vars(self.store.system)
        changes = {field: value for field, value in wanted.items() if now[field] != value}
        if changes:
            self.store.configure_system(**changes)
        return False

    def _change_users(self, before: list[Tree], after: list[Tree]) -> None:
        old, new = {one["name"]: one for one in before}, {one["name"]: one for one in after}
        changed = [name for name in new if new[name] != old.get(name)]
        gone = sorted(old.keys() - new.keys())
        if len(changed) + len(gone) > 1:
            raise RestconfError("operation-not-supported", "one user at a time, please")
        users = self.store.users
        try:
            for name in gone:
                users.remove(name)
            for name in changed:
                known = users.get(name)
                told = new[name].get("password") or (known.password if known else "")
                account = Account(name, told, new[name].get("group", "user"))
                users.change(name, account) if known else users.add(account)
        except UserError as wrong:
            tag = "data-exists" if wrong.why is Wrong.EXISTS else "invalid-value"
            raise RestconfError(tag, wrong.why.value) from wrong


def _pairs(tree: Tree) -> set[tuple[int, int]]:
    """A container's cross-connects."""
    pairs = tree.get("pair", ())
    if any("egress" not in pair for pair in pairs):
        raise RestconfError("missing-element", "a pair needs its egress")
    return {(pair["ingress"], pair["egress"]) for pair in pairs}


def _table_reader(name: str) -> Callable[[Data], Tree]:
    return lambda data: TABLES[name].read(data.store)


def _table_applier(name: str) -> Callable[[Data, Tree, Tree], bool]:
    def apply(data: Data, before: Tree, after: Tree) -> bool:
        TABLES[name].apply(data.store, before, after)
        return False

    return apply


READERS: Mapping[str, Callable[[Data], Tree]] = {
    **{name: _table_reader(name) for name in TABLES},
    "product-information": Data.product,
    "cross-connects": Data.pairs,
    "groups": Data.known_groups,
    "aps": lambda _data: {"protection-service": []},
    "subswitches": lambda _data: {"subswitch": []},
    "system-config": Data.system,
    "sessions": Data.sessions,
    "shutter-status": Data.shutters,
    "system-alarms": Data.alarms,
    "notification-log": Data.log,
}
APPLIERS: Mapping[str, Callable[[Data, Tree, Tree], bool]] = {
    **{name: _table_applier(name) for name in ("port-config", "opm-config", "opm-alarm-config", "voa")},
    "ports": Data.switch_ports,
    "cross-connects": Data.join,
    "groups": Data.change_groups,
    "system-config": Data.change_system,
}
