"""Containers that are a list of ports: which leaf of theirs is which setting beside a port."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.ocs.port import Admin, PortSettings
from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.edit import Tree
from emulator.ocs.store import Store

MODE = "VOA_MODE_"


@dataclass(frozen=True)
class Column:
    """A leaf, and the setting that it shows."""

    leaf: str
    field: str
    shown: Callable[[Any], Any] = str
    taken: Callable[[Any], Any] = str


def _two_places(value: float) -> str:
    return f"{value:.2f}"


def decimal(leaf: str, field: str) -> Column:
    """Two decimal places, as text (RFC 7951)."""
    return Column(leaf, field, _two_places, float)


STATUS = {Admin.ENABLED: "ENABLED", Admin.DISABLED: "DISABLED", Admin.FAILED: "FAILED"}


def _nothing(_store: Store, ports: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    return dict.fromkeys(ports, {})


@dataclass(frozen=True)
class PortTable:
    """A list of ports: which ports, and which leaves."""

    columns: tuple[Column, ...]
    has: Callable[[Store, int], bool] = lambda _store, _port: True
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
        known = {entry["port-id"]: entry for entry in before["port"]}
        wanted = {entry["port-id"]: entry for entry in after.get("port", ())}
        if strange := sorted(wanted.keys() - known.keys()):
            raise RestconfError("invalid-value", f"there is no port {strange[0]} here")
        settable = {"port-id", *(column.leaf for column in self.columns)}
        for port, entry in wanted.items():
            _must_be_as_it_was(known[port], entry, entry.keys() - settable)

    def _entry(self, store: Store, port: int, also: Mapping[str, Any]) -> Tree:
        settings = store.settings(port)
        shown = {column.leaf: column.shown(getattr(settings, column.field)) for column in self.columns}
        return {"port-id": port, **also, **shown}

    def _changes(self, store: Store, port: int, entry: Tree) -> dict[str, Any]:
        now, default = store.settings(port), PortSettings()
        wanted = {
            column.field: column.taken(entry[column.leaf]) if column.leaf in entry else getattr(default, column.field)
            for column in self.columns
        }
        return {field: value for field, value in wanted.items() if getattr(now, field) != value}


def _must_be_as_it_was(before: Tree, after: Tree, leaves: Iterable[str]) -> None:
    for leaf in leaves:
        if after[leaf] != before.get(leaf):
            raise RestconfError("invalid-value", f"{leaf} can't be set")


def _status(store: Store, ports: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    return {port: {"status": STATUS[store.admin(port)]} for port in ports}


def _has_monitor(store: Store, port: int) -> bool:
    return store.has_monitor(port)


def _is_output(store: Store, port: int) -> bool:
    return port not in store.ports.input_set


def _power(store: Store, ports: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    return {port: {"power": _two_places(dbm)} for port, dbm in store.powers_dbm(ports).items()}


def _state(store: Store, ports: Collection[int]) -> Mapping[int, Mapping[str, Any]]:
    states = {port: store.admin(port) for port in ports}
    return {
        port: {
            "port-state": "PC_DISABLED" if admin is Admin.DISABLED else "PC_ENABLED",
            "port-status": f"PO_{STATUS[admin]}",
        }
        for port, admin in states.items()
    }


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
            Column("atten-mode", "attenuation", lambda mode: MODE + mode, lambda mode: mode.removeprefix(MODE)),
            decimal("atten-level", "attenuation_db"),
            Column("reference-port", "reference", lambda port: port or 0, lambda port: int(port) or None),
        ),
        _is_output,
    ),
    "ports": PortTable((Column("port-label", "label"), Column("peer-port", "peer_port")), seen=_state),
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
