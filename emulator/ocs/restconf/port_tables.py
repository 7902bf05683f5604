"""Containers that list ports: which leaf shows which setting of a port."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.port_settings import Admin, PortSettings
from moefabric.emulator.ocs.restconf.edit import Tree
from moefabric.emulator.ocs.restconf.errors import RestconfError

MODE_PREFIX = "VOA_MODE_"
OLD_MODE = "VOA_ATTEN_MODE_"

HasPort = Callable[[OcsDevice, int], bool]
"""Returns whether a table or a column includes a port."""
State = Mapping[int, Mapping[str, Any]]
"""Leaves by port."""


def _all_ports(_device: OcsDevice, _port: int) -> bool:
    return True


@dataclass(frozen=True)
class Codec:
    """Conversion between a setting and the value of a leaf; by default they are equal."""

    encode: Callable[[Any], Any] = lambda setting: setting
    decode: Callable[[Any], Any] = lambda leaf: leaf


def _decimal(value: float) -> str:
    """Return two decimal places as text (RFC 7951)."""
    return f"{value:.2f}"


def _old_mode(mode: str) -> str:
    """Return an attenuation mode as older revisions encode it, which name only three."""
    return f"{OLD_MODE}{mode if mode in ('NONE', 'ABSOLUTE', 'RELATIVE') else 'VENDOR'}"


def _from_old_mode(old: str) -> str:
    mode = old.removeprefix(OLD_MODE)
    return "CONVERGED" if mode == "VENDOR" else mode


DECIMAL = Codec(_decimal, float)
PORT = Codec(lambda port: port or 0, lambda port: port or None)
"""A port, or 0 for none."""
MODE = Codec(lambda mode: f"{MODE_PREFIX}{mode}", lambda leaf: leaf.removeprefix(MODE_PREFIX))
OLD_MODES = Codec(_old_mode, _from_old_mode)


@dataclass(frozen=True)
class Column:
    """A leaf and the field of PortSettings that it shows.

    `leaf` is a path within the entry of the port: `opm/lambda`.
    """

    leaf: str
    field: str
    codec: Codec = Codec()
    has_port: HasPort = _all_ports


def _no_state(_device: OcsDevice, ports: Collection[int]) -> State:
    return {port: {} for port in ports}


@dataclass(frozen=True)
class PortList:
    """A list of ports: its columns, its ports, and its other leaves.

    `commands` are those of the other leaves that clients can write; `apply` leaves them alone.
    """

    columns: tuple[Column, ...]
    has_port: HasPort = _all_ports
    state: Callable[[OcsDevice, Collection[int]], State] = _no_state
    commands: tuple[str, ...] = ()

    def read(self, device: OcsDevice) -> Tree:
        """Return the content of the container."""
        ports = [port for port in device.ports.all if self.has_port(device, port)]
        state = self.state(device, ports)
        return {"port": [self._entry(device, port, leaves) for port, leaves in state.items()]}

    def apply(self, device: OcsDevice, before: Tree, after: Tree) -> None:
        """Write the settings of `after`; absent settings are reset to their defaults.

        Raises:
            RestconfError: if a setting can't be written; nothing has changed.
        """
        self.check(before, after)
        entries = {entry["port-id"]: entry for entry in after.get("port", ())}
        ports = [entry["port-id"] for entry in before["port"]]
        changes = {port: self._changes(device, port, entries.get(port, {})) for port in ports}
        for port, change in changes.items():
            if change:
                device.configure(port, **change)

    def check(self, before: Tree, after: Tree) -> None:
        """Raise RestconfError for unknown ports and changes of read-only leaves."""
        old = {entry["port-id"]: _flatten(entry) for entry in before["port"]}
        new = {entry["port-id"]: _flatten(entry) for entry in after.get("port", ())}
        if unknown := sorted(new.keys() - old.keys()):
            raise RestconfError("invalid-value", f"there is no port {unknown[0]} here")
        writable = {"port-id", *self.commands, *(column.leaf for column in self.columns)}
        for port, entry in new.items():
            for leaf in entry.keys() - writable:
                if entry[leaf] != old[port].get(leaf):
                    raise RestconfError("invalid-value", f"{leaf} can't be set")
            if missing := sorted((entry.keys() & writable) - old[port].keys()):
                raise RestconfError("invalid-value", f"port {port} has no {missing[0]}")

    def _columns(self, device: OcsDevice, port: int) -> list[Column]:
        return [column for column in self.columns if column.has_port(device, port)]

    def _entry(self, device: OcsDevice, port: int, state: Mapping[str, Any]) -> Tree:
        settings = vars(device.ports.settings(port))
        leaves = {
            column.leaf: column.codec.encode(settings[column.field])
            for column in self._columns(device, port)
        }
        return _nest({"port-id": port, **state, **leaves})

    def _changes(self, device: OcsDevice, port: int, entry: Tree) -> dict[str, Any]:
        settings, defaults = vars(device.ports.settings(port)), vars(PortSettings())
        leaves = _flatten(entry)
        changes = {}
        for column in self._columns(device, port):
            before = settings[column.field]
            if column.leaf not in leaves:
                after = defaults[column.field]
            elif leaves[column.leaf] == column.codec.encode(before):
                continue  # the leaf may be less precise than the setting
            else:
                after = column.codec.decode(leaves[column.leaf])
            if after != before:
                changes[column.field] = after
        return changes


def _nest(leaves: Mapping[str, Any]) -> Tree:
    """Return the nested entry for a mapping from leaf paths to values."""
    tree: Tree = {}
    for path, value in leaves.items():
        *containers, leaf = path.split("/")
        holder = tree
        for name in containers:
            holder = holder.setdefault(name, {})
        holder[leaf] = value
    return tree


def _flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Return the leaf values of an entry by path."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        leaves |= _flatten(value, f"{path}/") if isinstance(value, dict) else {path: value}
    return leaves


def _status(device: OcsDevice, ports: Collection[int]) -> State:
    return {port: {"status": device.ports.admin(port).name} for port in ports}


def _power(device: OcsDevice, ports: Collection[int]) -> State:
    readings = device.monitors.read_dbm(ports)
    return {port: {"power": _decimal(dbm)} for port, dbm in readings.items()}


def _old_status(device: OcsDevice, ports: Collection[int]) -> State:
    readings = device.monitors.read_dbm(ports)
    state = {}
    for port in ports:
        admin = device.ports.admin(port)
        state[port] = {
            "port-state": "PC_DISABLED" if admin is Admin.DISABLED else "PC_ENABLED",
            "port-status": f"PO_{admin.name}",
            **({"opm/power": _decimal(readings[port])} if port in readings else {}),
        }
    return state


def _has_monitor(device: OcsDevice, port: int) -> bool:
    return device.monitors.exists(port)


def _is_output(device: OcsDevice, port: int) -> bool:
    return not device.ports.is_input(port)


def _has_attenuator(device: OcsDevice, port: int) -> bool:
    return _is_output(device, port) and _has_monitor(device, port)


TABLES: Mapping[str, PortList] = {
    "port-config": PortList(
        (Column("label", "label"), Column("peer-port", "peer_port")), state=_status
    ),
    "opm-power": PortList((), _has_monitor, _power),
    "opm-config": PortList(
        (
            Column("wavelength", "wavelength_nm", DECIMAL),
            Column("offset", "offset_db", DECIMAL),
            Column("averaging-time", "averaging"),
        ),
        _has_monitor,
    ),
    "opm-alarm-config": PortList(
        (
            Column("signal-low-threshold", "low_alarm_dbm", DECIMAL),
            Column("signal-degrade-threshold", "degrade_alarm_dbm", DECIMAL),
            Column("signal-high-threshold", "high_alarm_dbm", DECIMAL),
        ),
        _has_monitor,
    ),
    "voa": PortList(
        (
            Column("atten-mode", "attenuation", MODE),
            Column("atten-level", "attenuation_db", DECIMAL),
            Column("reference-port", "reference", PORT),
        ),
        _is_output,
    ),
    "ports": PortList(
        (
            Column("port-label", "label"),
            Column("peer-port", "peer_port"),
            Column("opm/lambda", "wavelength_nm", DECIMAL, _has_monitor),
            Column("opm/power-high-alarm", "high_alarm_dbm", DECIMAL, _has_monitor),
            Column("opm/power-low-alarm", "low_alarm_dbm", DECIMAL, _has_monitor),
            Column("opm/offset", "offset_db", DECIMAL, _has_monitor),
            Column("opm/averaging-time-select", "averaging", has_port=_has_monitor),
            Column("opm/voa/attenuation-level", "attenuation_db", DECIMAL, _has_attenuator),
            Column("opm/voa/attenuation-mode", "attenuation", OLD_MODES, _has_attenuator),
            Column("opm/voa/attenuation-reference-port", "reference", PORT, _has_attenuator),
        ),
        state=_old_status,
        commands=("port-state",),
    ),
}


def shutter_changes(before: Tree, after: Tree) -> tuple[list[int], list[int]]:
    """Return the ports that an edit of the container `ports` enables, and those it disables."""
    old = {entry["port-id"]: entry["port-state"] for entry in before["port"]}
    changed: dict[str, list[int]] = {"PC_ENABLED": [], "PC_DISABLED": []}
    for entry in after.get("port", ()):
        port, state = entry["port-id"], entry.get("port-state", "PC_ENABLED")
        if old[port] != state:
            changed[state].append(port)
    return changed["PC_ENABLED"], changed["PC_DISABLED"]
