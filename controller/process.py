"""The process of one controller: Ryu to the packet switches, SCPI to the OCS, HTTP to those who ask; all on Eventlet's one thread."""

import logging
import signal
import socket

from controller.control import Control
from controller.northbound import Handler
from controller.reconcile import Reconciler
from controller.southbound.openflow.green import listen
from controller.southbound.openflow.ryu_switches import RyuSwitches
from controller.southbound.scpi import Scpi, ScpiOcs

# isort: split
import eventlet
from eventlet.green import socket as green_socket
from eventlet.hubs import trampoline, use_hub
from eventlet.semaphore import Semaphore

from moefabric.errors import ControlError
from moefabric.management import SCPI_PORT, Wiring
from moefabric.rules import eps_rules, server_rules
from moefabric.topology import Region

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.02


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
        switches = RyuSwitches(fabric, region.servers, server_rules(fabric, region))
    control = Control(fabric, region, switches, _reconciler(wiring, region, switches), lock=Semaphore(1))
    switches.listen(management.openflow(region))
    handler = type("BoundHandler", (Handler,), {"control": control})
    listen(management.northbound(region), "requests", lambda connection, peer: handler(connection, peer, None))
    eventlet.spawn(_take_over, control)
    log.info("listening for switches on %s:%d, for requests on %s:%d", *management.openflow(region), *management.northbound(region))
    with told, tell:
        trampoline(told.fileno(), read=True)


def _reconciler(wiring: Wiring, region: Region | None, switches: RyuSwitches) -> Reconciler | None:
    if region is None or region.ocs is None or not wiring.fabric.optical:
        return None
    device = Scpi(region.ocs.name, (wiring.management.ocs(region), SCPI_PORT), connect=green_socket.create_connection)
    return Reconciler(ScpiOcs(wiring.fabric, region, device), switches)


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
