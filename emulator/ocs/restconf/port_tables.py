"""Containers that list ports: their state, and the settings that their leaves show."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.port_settings import Admin, PortSettings
from moefabric.emulator.ocs.restconf.errors import RestconfError
from moefabric.emulator.ocs.restconf.schema import CONTAINERS, Node, setting_of, shown
from moefabric.emulator.ocs.restconf.tree import Tree

HasPort = Callable[[OcsDevice, int], bool]
State = Mapping[int, Mapping[str, Any]]
"""Leaves by port."""


def _has_monitor(device: OcsDevice, port: int) -> bool:
    return device.light.has_monitor(port)


def _is_output(device: OcsDevice, port: int) -> bool:
    return not device.ports.is_input(port)


def _status(device: OcsDevice, ports: Collection[int]) -> State:
    return {port: {"status": device.ports.admin(port).name} for port in ports}


def _power(device: OcsDevice, ports: Collection[int]) -> State:
    readings = device.light.read_dbm(ports)
    return {port: {"power": f"{dbm:.2f}"} for port, dbm in readings.items()}


def _old_status(device: OcsDevice, ports: Collection[int]) -> State:
    readings = device.light.read_dbm(ports)
    state = {}
    for port in ports:
        admin = device.ports.admin(port)
        state[port] = {
            "port-state": "PC_DISABLED" if admin is Admin.DISABLED else "PC_ENABLED",
            "port-status": f"PO_{admin.name}",
            **({"opm/power": f"{readings[port]:.2f}"} if port in readings else {}),
        }
    return state


def _leaves(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    for child in node.children:
        yield f"{path}{child.name}", child
        yield from _leaves(child, f"{path}{child.name}/")


TABLES: Mapping[str, Mapping[str, Node]] = {
    name: dict(_leaves(CONTAINERS[name].children[0]))
    for name in ("port-config", "opm-power", "opm-config", "opm-alarm-config", "voa", "ports")
}
"""Containers with a list of ports: the leaves of an entry by path, such as `opm/lambda`."""
STATES: Mapping[str, Callable[[OcsDevice, Collection[int]], State]] = {
    "port-config": _status,
    "opm-power": _power,
    "ports": _old_status,
}
"""Functions that read the leaves of a table that show no settings."""
HAS_PORT: Mapping[str, HasPort] = {
    "opm": _has_monitor,
    "opm-power": _has_monitor,
    "opm-config": _has_monitor,
    "opm-alarm-config": _has_monitor,
    "voa": _is_output,
}
"""Tables and containers that not every port has, with functions that tell which ports do."""


def read(device: OcsDevice, table: str) -> Tree:
    """Return the content of a table."""
    ports = [port for port in device.ports.all if _exists(device, port, table)]
    state = STATES[table](device, ports) if table in STATES else {port: {} for port in ports}
    entries = []
    for port, leaves in state.items():
        settings = vars(device.ports.settings(port))
        values = {
            path: shown(leaf, settings[leaf.setting])
            for path, leaf in _settings(device, port, table)
        }
        entries.append(_nest({"port-id": port, **leaves, **values}))
    return {"port": entries}


def apply(device: OcsDevice, table: str, before: Tree, after: Tree) -> None:
    """Write the settings of an edited table; absent settings are reset to their defaults."""
    entries = {entry["port-id"]: _flatten(entry) for entry in after.get("port", ())}
    for entry in before["port"]:
        port = entry["port-id"]
        settings, defaults = vars(device.ports.settings(port)), vars(PortSettings())
        leaves, changes = entries.get(port, {}), {}
        for path, leaf in _settings(device, port, table):
            if path not in leaves:
                changes[leaf.setting] = defaults[leaf.setting]
            elif leaves[path] != shown(leaf, settings[leaf.setting]):  # it may be less precise
                changes[leaf.setting] = setting_of(leaf, leaves[path])
        changes = {name: value for name, value in changes.items() if value != settings[name]}
        if changes:
            device.configure(port, **changes)


def check(table: str, before: Tree, after: Tree) -> None:
    """Raise RestconfError for unknown ports and changes of read-only leaves."""
    old = {entry["port-id"]: _flatten(entry) for entry in before["port"]}
    new = {entry["port-id"]: _flatten(entry) for entry in after.get("port", ())}
    if unknown := sorted(new.keys() - old.keys()):
        raise RestconfError("invalid-value", f"there is no port {unknown[0]} here")
    writable = {path for path, leaf in TABLES[table].items() if leaf.config}
    for port, entry in new.items():
        for path in entry.keys() - writable:
            if entry[path] != old[port].get(path):
                raise RestconfError("invalid-value", f"{path} can't be set")
        if missing := sorted((entry.keys() & writable) - old[port].keys()):
            raise RestconfError("invalid-value", f"port {port} has no {missing[0]}")


def shutter_changes(before: Tree, after: Tree) -> tuple[list[int], list[int]]:
    """Return the ports that an edit of the container `ports` enables, and those it disables."""
    old = {entry["port-id"]: entry["port-state"] for entry in before["port"]}
    new = {entry["port-id"]: entry.get("port-state") for entry in after.get("port", ())}
    disabled = [port for port in new if new[port] == "PC_DISABLED" != old[port]]
    enabled = [port for port in new if new[port] != "PC_DISABLED" == old[port]]
    return enabled, disabled


@cache
def _conditions(path: str) -> tuple[HasPort, ...]:
    return tuple(HAS_PORT[name] for name in path.split("/") if name in HAS_PORT)


def _exists(device: OcsDevice, port: int, path: str) -> bool:
    return all(has_port(device, port) for has_port in _conditions(path))


def _settings(device: OcsDevice, port: int, table: str) -> Iterator[tuple[str, Node]]:
    """Yield the leaves of a port that show settings."""
    for path, leaf in TABLES[table].items():
        if leaf.setting and _exists(device, port, path):
            yield path, leaf


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
