"""Operations of the YANG modules: POST to `/operations/NAME` (RFC 8040, section 3.6)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moefabric.core.ocs import Group
from moefabric.emulator.ocs.cross_connects import RefusedError
from moefabric.emulator.ocs.device import REBOOT_DELAY_NS
from moefabric.emulator.ocs.restconf.datastore import Datastore
from moefabric.emulator.ocs.restconf.errors import RestconfError, from_refusal
from moefabric.emulator.ocs.restconf.schema import OPERATION_INPUTS, Node
from moefabric.emulator.ocs.restconf.tree import Tree


@dataclass(frozen=True)
class Operation:
    """An operation, and the least privileged group that may use it."""

    execute: Callable[[Datastore, Tree], None]
    group: Group = "user"
    settles: bool = False
    """Whether it completes when all light has settled."""


def run(operation: Operation, node: Node, datastore: Datastore, inputs: Tree) -> None:
    """Execute an operation.

    Raises:
        RestconfError: if the operation is refused.
    """
    for leaf in node.children:
        if leaf.mandatory and leaf.name not in inputs:
            raise RestconfError("missing-element", f"{leaf.name} is needed")
    try:
        operation.execute(datastore, inputs)
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
