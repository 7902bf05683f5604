"""Containers that are a list of ports: which leaf of theirs is which setting beside a port."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.ocs.port import Admin, PortSettings
from emulator.ocs.restconf.edit import Tree
from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.store import Store

MODE = "VOA_MODE_"
OLD_MODE = "VOA_ATTEN_MODE_"


def _always(_store: Store, _port: int) -> bool:
    return True


@dataclass(frozen=True)
class Column:
    """A leaf, and the setting that it shows. `leaf` is a path within the port's entry: `opm/lambda`."""

    leaf: str
    field: str
    shown: Callable[[Any], Any] = str
    taken: Callable[[Any], Any] = str
    has: Callable[[Store, int], bool] = _always
    """Which ports have it."""


def _two_places(value: float) -> str:
    return f"{value:.2f}"


def decimal(leaf: str, field: str, has: Callable[[Store, int], bool] = _always) -> Column:
    """Two decimal places, as text (RFC 7951)."""
    return Column(leaf, field, _two_places, float, has)


STATUS = {Admin.ENABLED: "ENABLED", Admin.DISABLED: "DISABLED", Admin.FAILED: "FAILED"}


def _nothing(_store: Store, ports: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    return {port: {} for port in ports}


@dataclass(frozen=True)
class PortTable:
    """A list of ports: which ports, and which leaves."""

    columns: tuple[Column, ...]
    has: Callable[[Store, int], bool] = _always
    seen: Callable[[Store, Collection[int]], Mapping[int, Mapping[str, Any]]] = _nothing
    """What else is shown of each of these ports, and can't be set here."""

    def read(self, store: Store) -> Tree:
        """The container's content."""
        seen = self.seen(store, [port for port in store.all_ports if self.has(store, port)])
        return {"port": [self._entry(store, port, also) for port, also in seen.items()]}

    def apply(self, store: Store, before: Tree, after: Tree) -> None:
        """Make the settings what `after` has; what it doesn't have, the default. All of them, or none."""
        self.check(before, after)
        wanted = {entry["port-id"]: entry for entry in after.get("port", ())}
        ports = [entry["port-id"] for entry in before["port"]]
        changes = {port: self._changes(store, port, wanted.get(port, {})) for port in ports}
        for port, change in changes.items():
            if change:
                store.configure(port, **change)

    def check(self, before: Tree, after: Tree) -> None:
        """RestconfError for ports that aren't there, and for what can't be set."""
        known = {entry["port-id"]: _flat(entry) for entry in before["port"]}
        wanted = {entry["port-id"]: _flat(entry) for entry in after.get("port", ())}
        if strange := sorted(wanted.keys() - known.keys()):
            raise RestconfError("invalid-value", f"there is no port {strange[0]} here")
        settable = {"port-id", *(column.leaf for column in self.columns)}
        for port, entry in wanted.items():
            for leaf in entry.keys() - settable:
                if entry[leaf] != known[port].get(leaf):
                    raise RestconfError("invalid-value", f"{leaf} can't be set")
            if missing := sorted((entry.keys() & settable) - known[port].keys()):
                raise RestconfError("invalid-value", f"port {port} has no {missing[0]}")

    def _columns(self, store: Store, port: int) -> list[Column]:
        return [column for column in self.columns if column.has(store, port)]

    def _entry(self, store: Store, port: int, also: Mapping[str, Any]) -> Tree:
        settings = store.settings(port)
        shown = {
            column.leaf: column.shown(getattr(settings, column.field))
            for column in self._columns(store, port)
        }
        return _nested({"port-id": port, **also, **shown})

    def _changes(self, store: Store, port: int, entry: Tree) -> dict[str, Any]:
        now, default, told = store.settings(port), PortSettings(), _flat(entry)
        changes = {}
        for column in self._columns(store, port):
            before = getattr(now, column.field)
            if column.leaf not in told:
                after = getattr(default, column.field)
            elif told[column.leaf] == column.shown(before):
                continue  # what is shown may say less than what is kept
            else:
                after = column.taken(told[column.leaf])
            if after != before:
                changes[column.field] = after
        return changes


def _nested(flat: Mapping[str, Any]) -> Tree:
    """An entry, of its leaves by their paths."""
    tree: Tree = {}
    for path, value in flat.items():
        *holders, leaf = path.split("/")
        holder = tree
        for name in holders:
            holder = holder.setdefault(name, {})
        holder[leaf] = value
    return tree


def _flat(tree: Tree, above: str = "") -> dict[str, Any]:
    """The leaves of an entry, by their paths."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= _flat(value, f"{above}{name}/") if isinstance(value, dict) else {above + name: value}
    return leaves


def _status(store: Store, ports: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    return {port: {"status": STATUS[store.admin(port)]} for port in ports}


def _has_monitor(store: Store, port: int) -> bool:
    return store.has_monitor(port)


def _is_output(store: Store, port: int) -> bool:
    return port not in store.ports.input_set


def _power(store: Store, ports: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    return {port: {"power": _two_places(dbm)} for port, dbm in store.powers_dbm(ports).items()}


def _state(store: Store, ports: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    powers = store.powers_dbm(ports)
    told = {}
    for port in ports:
        admin = store.admin(port)
        told[port] = {
            "port-state": "PC_DISABLED" if admin is Admin.DISABLED else "PC_ENABLED",
            "port-status": f"PO_{STATUS[admin]}",
            **({"opm/power": _two_places(powers[port])} if port in powers else {}),
        }
    return told


def _old_mode(mode: str) -> str:
    """How older revisions call a mode of attenuation: three by name, the others the vendor's own."""
    return f"{OLD_MODE}{mode if mode in ('NONE', 'ABSOLUTE', 'RELATIVE') else 'VENDOR'}"


def _mode(old: str) -> str:
    mode = old.removeprefix(OLD_MODE)
    return "CONVERGED" if mode == "VENDOR" else mode


def _attenuates(store: Store, port: int) -> bool:
    return _is_output(store, port) and _has_monitor(store, port)


def _port_or_0(port: int | None) -> int:
    return port or 0


def _port_or_none(told: int) -> int | None:
    return told or None


TABLES: Mapping[str, PortTable] = {
    "port-config": PortTable((Column("label", "label"), Column("peer-port", "peer_port")), seen=_status),
    "opm-power": PortTable((), _has_monitor, _power),
    "opm-config": PortTable(
        (
            decimal("wavelength", "wavelength_nm"),
            decimal("offset", "offset_db"),
            Column("averaging-time", "averaging", int, int),
        ),
        _has_monitor,
    ),
    "opm-alarm-config": PortTable(
        (
            decimal("signal-low-threshold", "low_alarm_dbm"),
            decimal("signal-degrade-threshold", "degrade_alarm_dbm"),
            decimal("signal-high-threshold", "high_alarm_dbm"),
        ),
        _has_monitor,
    ),
    "voa": PortTable(
        (
            Column(
                "atten-mode", "attenuation", lambda mode: MODE + mode, lambda mode: mode.removeprefix(MODE)
            ),
            decimal("atten-level", "attenuation_db"),
            Column("reference-port", "reference", _port_or_0, _port_or_none),
        ),
        _is_output,
    ),
    "ports": PortTable(
        (
            Column("port-label", "label"),
            Column("peer-port", "peer_port"),
            decimal("opm/lambda", "wavelength_nm", _has_monitor),
            decimal("opm/power-high-alarm", "high_alarm_dbm", _has_monitor),
            decimal("opm/power-low-alarm", "low_alarm_dbm", _has_monitor),
            decimal("opm/offset", "offset_db", _has_monitor),
            Column("opm/averaging-time-select", "averaging", int, int, _has_monitor),
            decimal("opm/voa/attenuation-level", "attenuation_db", _attenuates),
            Column("opm/voa/attenuation-mode", "attenuation", _old_mode, _mode, _attenuates),
            Column("opm/voa/attenuation-reference-port", "reference", _port_or_0, _port_or_none, _attenuates),
        ),
        seen=_state,
    ),
}


def switched(before: Tree, after: Tree) -> tuple[list[int], list[int]]:
    """The ports that an edit of the container `ports` enables and disables."""
    known = {entry["port-id"]: entry["port-state"] for entry in before["port"]}
    wanted = {entry["port-id"]: entry.get("port-state", "PC_ENABLED") for entry in after.get("port", ())}
    changed = {port: state for port, state in wanted.items() if port in known and known[port] != state}
    return (
        [port for port, state in changed.items() if state == "PC_ENABLED"],
        [port for port, state in changed.items() if state == "PC_DISABLED"],
    )
