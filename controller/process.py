"""The process of one controller: Ryu to the packet switches, SCPI to the OCS, HTTP to those who ask; all on Eventlet's one thread."""

import logging
import signal
import socket

from controller.control import Control
from controller.northbound import Handler
from controller.reconcile import Reconciler
from controller.southbound.driven_ocs import DrivenOcs
from controller.southbound.drivers import PATIENCE_S, driven
from controller.southbound.openflow.green import listen
from controller.southbound.openflow.ryu_switches import RyuSwitches

# isort: split
import eventlet
from eventlet.green import socket as green_socket
from eventlet.hubs import trampoline, use_hub
from eventlet.semaphore import Semaphore

from moefabric.circuits import CircuitSet
from moefabric.errors import ControlError
from moefabric.management import Wiring
from moefabric.ocs_control import Verification
from moefabric.rules import eps_rules, light_rules, server_rules
from moefabric.topology import Region

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.02
_GLANCE_S = 0.1
_SETTLING_S = 10.0
"""Given to any light, besides twice what it should take."""


def serve(wiring: Wiring, region: Region | None) -> None:
    """Be the controller of a region, or of the EPS where that is None, until SIGTERM or SIGINT. ControlError where an address is taken."""
    use_hub()  # a hub that a parent process had would share its epoll descriptor
    told, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # that it came is what `told` hears
    management, fabric = wiring.management, wiring.fabric
    if region is None:
        switches = RyuSwitches(fabric, fabric.leaves + fabric.spines, eps_rules(fabric))
    else:
        switches = RyuSwitches(
            fabric, region.servers, server_rules(fabric, region) | light_rules(_seen(wiring, region))
        )
    control = Control(fabric, region, switches, _reconciler(wiring, region, switches), lock=Semaphore(1))
    switches.listen(management.openflow(region))
    handler = type("BoundHandler", (Handler,), {"control": control})
    listen(
        management.northbound(region), "requests", lambda connection, peer: handler(connection, peer, None)
    )
    eventlet.spawn(_take_over, control)
    log.info(
        "listening for switches on %s:%d, for requests on %s:%d",
        *management.openflow(region),
        *management.northbound(region),
    )
    with told, tell:
        trampoline(told.fileno(), read=True)


def _ocs(wiring: Wiring, region: Region, patience_s: float) -> DrivenOcs | None:
    return driven(
        wiring.fabric,
        region,
        wiring.management.ocs(region),
        patience_s,
        green_socket.create_connection,
        eventlet.sleep,
    )


def _reconciler(wiring: Wiring, region: Region | None, switches: RyuSwitches) -> Reconciler | None:
    ocs = _ocs(wiring, region, PATIENCE_S) if region else None
    if region is None or region.ocs is None or ocs is None:
        return None
    control = region.ocs.control
    return Reconciler(
        ocs,
        switches,
        settle_deadline_s=_SETTLING_S + 2 * (region.ocs.settle_ns + region.ocs.link_up_ns) / 1e9,
        probe=switches.probe if control.verify is Verification.LIGHT else None,
        mode=control.mode,
        link_up_s=region.ocs.link_up_ns / 1e9,
    )


def _seen(wiring: Wiring, region: Region) -> CircuitSet:
    """The light that is there at a glance: a controller that comes back leaves traffic on it. None where there is no answer at once."""
    ocs = _ocs(wiring, region, _GLANCE_S)
    if ocs is None:
        return CircuitSet()
    try:
        with ocs:
            ocs.settled(_GLANCE_S)
            return ocs.lit()
    except ControlError as silent:  # a fabric that is being made: its OCS is looked for until it is there
        log.info("no light yet: %s", silent)
        return CircuitSet()


def _take_over(control: Control) -> None:
    """Adopt the light that is there as soon as the OCS and all switches are."""
    said = ""
    while True:
        if len(control.switches.ready) == len(control.switches.switches):
            try:
                control.adopt()
            except ControlError as fault:
                if str(fault) != said:
                    said = str(fault)
                    log.warning("light not taken over yet: %s", fault)
            else:
                log.info("ready")
                return
        eventlet.sleep(_LOOK_AGAIN_S)  # the OCS's process starts when it starts; nothing announces it
