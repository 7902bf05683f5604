"""The operations that can be asked for by POST to `/api/operations/NAME`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.ocs.flaps import Flap
from emulator.ocs.matching import Busy, RefusedError
from emulator.ocs.restconf.data import Data
from emulator.ocs.restconf.edit import Tree
from emulator.ocs.restconf.errors import RestconfError, refused
from emulator.ocs.restconf.schema import OPTICAL, POLATIS, PORT_ID, Is, Leaf, Node, number
from moefabric.ocs_manners import Group

REBOOT_AFTER_NS = 100_000_000
"""A reboot lets its own reply go first."""


@dataclass(frozen=True)
class Operation:
    """Something that can be asked for, what it is told, and the least that its user has to be."""

    node: Node
    do: Callable[[Data, Tree], None]
    least: Group = "user"
    settles: bool = False


def run(operation: Operation, data: Data, told: Tree) -> None:
    """Do it. RestconfError if it can't be."""
    for leaf in operation.node.leaves.values():
        if leaf.mandatory and leaf.name not in told:
            raise RestconfError("missing-element", f"{leaf.name} is needed")
    try:
        operation.do(data, told)
    except RefusedError as wrong:
        raise refused(wrong) from wrong
    except KeyError as unknown:
        raise RestconfError("invalid-value", f"port {unknown} has no shutter settings") from unknown


def _set_state(data: Data, told: Tree) -> None:
    data.set_ports(told.get("port-enab", []), told.get("port-disab", []))


def _end_session(data: Data, told: Tree) -> None:
    users = data.store.users
    log_in = users.log_ins.get(told["session-id"])
    if log_in is None:
        raise RestconfError("invalid-value", f"there is no session {told['session-id']}")
    users.left(log_in.number)
    log_in.end()


def _restart(data: Data, told: Tree) -> None:
    timers = data.store.timers
    due_ns = timers.now_ns() + max(told.get("seconds", 0) * 1_000_000_000, REBOOT_AFTER_NS)
    _cancel(data, {})
    data.restart = timers.at(due_ns, data.store.reboot)


def _cancel(data: Data, _told: Tree) -> None:
    if data.restart is not None:
        data.restart.cancel()
        data.restart = None


def _shutters(data: Data, told: Tree) -> None:
    flaps: dict[int, Flap] = {}
    for entry in told.get("port", ()):
        _must_be_port(data, entry["port-id"])
        if "signal-block-time" not in entry:
            raise RestconfError("missing-element", "signal-block-time is needed")
        if "cycles" in entry and "signal-restore-time" not in entry:
            raise RestconfError("missing-element", "cycles need a signal-restore-time")
        try:
            flap = Flap(entry["signal-block-time"], entry.get("signal-restore-time"), entry.get("cycles", 1))
        except ValueError as wrong:
            raise RestconfError("invalid-value", str(wrong)) from wrong
        flaps[entry["port-id"]] = flap
    if not flaps:
        raise RestconfError("missing-element", "port is needed")
    for port, flap in flaps.items():
        data.store.flaps.set([port], flap)


def _flap(data: Data, told: Tree) -> None:
    ports = told.get("port", [])
    for port in ports:
        _must_be_port(data, port)
    if told["activate"]:
        data.store.flaps.start(ports)
    else:
        data.store.flaps.stop(ports)


def _join_groups(data: Data, told: Tree) -> None:
    ins = _group(data, told["group-name-from"]).get("ingress", [])
    outs = _group(data, told["group-name-to"]).get("egress", [])
    if len(ins) != len(outs):
        raise RestconfError("invalid-value", f"{len(ins)} ports for {len(outs)}")
    pairs = list(zip(ins, outs, strict=True))
    busy = Busy(data.store.profile.busy)
    data.store.change(lambda now: now.add(pairs, busy))


def _part_group(data: Data, told: Tree) -> None:
    group = _group(data, told["group-name"])
    ports = {*group.get("ingress", ()), *group.get("egress", ())}
    data.store.change(lambda now: now.sub([pair for pair in now if ports & {*pair}]))


def _forget(data: Data, told: Tree) -> None:
    data.journal.forget({entry["notif-id"] for entry in told.get("notif-ids", ())})


def _group(data: Data, name: str) -> Mapping[str, Any]:
    if name not in data.groups:
        raise RestconfError("invalid-value", f"there is no group {name}")
    return data.groups[name]


def _must_be_port(data: Data, port: int) -> None:
    if port not in data.store.all_ports:
        raise RestconfError("invalid-value", f"there is no port {port}")


def _ports(name: str) -> Leaf:
    return Leaf(name, Is.NUMBER, 1, 65535, many=True)


def _text(name: str) -> Leaf:
    return Leaf(name, mandatory=True)


def _input(name: str, *parts: Leaf | Node, module: str = OPTICAL) -> Node:
    return Node(name, parts, module=module)


_SHUTTER = Node(
    "port",
    (PORT_ID, number("signal-block-time"), number("signal-restore-time"), number("cycles")),
    "port-id",
)
OPERATIONS: Mapping[str, Operation] = {
    operation.node.name: operation
    for operation in (
        Operation(
            _input("port-set-state", _ports("port-enab"), _ports("port-disab")), _set_state, settles=True
        ),
        Operation(_input("system-restart", number("seconds", 0, 86400)), _restart, "admin"),
        Operation(_input("system-restart-cancel"), _cancel, "admin"),
        Operation(
            _input("disconnect-session", number("session-id", mandatory=True), module=POLATIS),
            _end_session,
            "admin",
        ),
        Operation(_input("shutter-config", _SHUTTER, module=POLATIS), _shutters),
        Operation(
            _input(
                "shutter-operation",
                Leaf("activate", Is.TRUTH, mandatory=True),
                _ports("port"),
                module=POLATIS,
            ),
            _flap,
        ),
        Operation(
            _input(
                "add-group-cross-connect", _text("group-name-from"), _text("group-name-to"), module=POLATIS
            ),
            _join_groups,
            settles=True,
        ),
        Operation(
            _input("delete-group-cross-connect", _text("group-name"), module=POLATIS),
            _part_group,
            settles=True,
        ),
        Operation(
            _input(
                "clear-notification-ids", Node("notif-ids", (number("notif-id"),), "notif-id"), module=POLATIS
            ),
            _forget,
        ),
    )
}
