"""Containers that list ports: their state, and the settings that their leaves show."""

from collections.abc import Mapping
from typing import Any

from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.port_settings import Admin, PortSettings
from moefabric.emulator.ocs.restconf.errors import RestconfError
from moefabric.emulator.ocs.restconf.schema import CONTAINERS, Node, setting_of, shown
from moefabric.emulator.ocs.restconf.tree import Tree

WITH_MONITOR = {"opm", "opm-power", "opm-config", "opm-alarm-config"}
"""Tables, and containers of their entries, that only ports with a power monitor have."""
WITH_POWER = {"opm-power", "ports"}
"""Tables that show the readings of power monitors."""


def read(device: OcsDevice, table: str) -> Tree:
    """Return the content of a table."""
    entry = CONTAINERS[table].children[0]
    ports = [port for port in device.ports.all if _exists(device, port, table)]
    readings = device.light.read_dbm(ports) if table in WITH_POWER else {}
    return {"port": [_read(device, port, entry, _state(device, port, readings)) for port in ports]}


def _exists(device: OcsDevice, port: int, name: str) -> bool:
    """Return whether a port is in a table, or has a container of its entry."""
    return name not in WITH_MONITOR or device.light.has_monitor(port)


def _state(device: OcsDevice, port: int, readings: Mapping[int, float]) -> Tree:
    """Return the leaves that show no settings, of all tables."""
    admin = device.ports.admin(port)
    return {
        "port-id": port,
        "status": admin.name,
        "port-state": "PC_DISABLED" if admin is Admin.DISABLED else "PC_ENABLED",
        "port-status": f"PO_{admin.name}",
        **({"power": f"{readings[port]:.2f}"} if port in readings else {}),
    }


def _read(device: OcsDevice, port: int, node: Node, state: Tree) -> Tree:
    """Return the content of an entry, or of a container in it."""
    settings, tree = vars(device.ports.settings(port)), Tree()
    for child in node.children:
        if child.children:
            if _exists(device, port, child.name):
                tree[child.name] = _read(device, port, child, state)
        elif child.setting:
            tree[child.name] = shown(child, settings[child.setting])
        elif child.name in state:
            tree[child.name] = state[child.name]
    return tree


def changed_settings(
    device: OcsDevice, table: str, before: Tree, after: Tree
) -> dict[int, dict[str, Any]]:
    """Return the settings that an edit of a table changes, by port.

    Absent settings are reset to their defaults.

    Raises:
        RestconfError: for unknown ports and changes of read-only leaves.
    """
    old = {entry["port-id"]: entry for entry in before["port"]}
    new = {entry["port-id"]: entry for entry in after.get("port", ())}
    if unknown := sorted(new.keys() - old.keys()):
        raise RestconfError("invalid-value", f"there is no port {unknown[0]} here")
    changes: dict[int, dict[str, Any]] = {}
    for port, entry in old.items():
        settings = vars(device.ports.settings(port))
        written = _written(port, CONTAINERS[table].children[0], entry, new.get(port, {}))
        changes[port] = {name: value for name, value in written.items() if value != settings[name]}
    return changes


def _written(port: int, node: Node, old: Tree, new: Tree, path: str = "") -> dict[str, Any]:
    """Return the settings of the leaves that an edit changes: a setting may be more precise."""
    written: dict[str, Any] = {}
    for child in node.children:
        was, now, place = old.get(child.name), new.get(child.name), f"{path}{child.name}"
        if child.children:
            written |= _written(port, child, was or {}, now or {}, f"{place}/")
            continue
        if now is not None and now != was:
            if not child.config:
                raise RestconfError("invalid-value", f"{place} can't be set")
            if was is None:
                raise RestconfError("invalid-value", f"port {port} has no {place}")
        if child.setting and now != was:
            default = vars(PortSettings())[child.setting]
            written[child.setting] = default if now is None else setting_of(child, now)
    return written


def shutter_changes(before: Tree, after: Tree) -> tuple[list[int], list[int]]:
    """Return the ports that an edit of the container `ports` enables, and those it disables."""
    old = {entry["port-id"]: entry["port-state"] for entry in before["port"]}
    new = {entry["port-id"]: entry.get("port-state") for entry in after.get("port", ())}
    disabled = [port for port in new if new[port] == "PC_DISABLED" != old[port]]
    enabled = [port for port in new if new[port] != "PC_DISABLED" == old[port]]
    return enabled, disabled
