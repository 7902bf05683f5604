"""The process of one controller: Ryu to the packet switches, SCPI to the OCS, HTTP to those who ask; all on Eventlet's one thread."""

import logging
import signal
import socket
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from controller.client import ControllerClient
from controller.control import Control
from controller.eps_recovery import EpsRecovery
from controller.findings import Findings
from controller.northbound import Handler
from controller.planner import solver
from controller.reconcile import Reconciler
from controller.recovery import Recovery
from controller.southbound.driven_ocs import DrivenOcs
from controller.southbound.drivers import PATIENCE_S, driven, password
from controller.southbound.ocs_alarms import Alarms
from controller.southbound.openflow.green import GreenEvent, listen
from controller.southbound.openflow.ryu_switches import RyuSwitches
from controller.watching import Watch

# isort: split
import eventlet
from eventlet.green import socket as green_socket
from eventlet.hubs import trampoline, use_hub
from eventlet.semaphore import Semaphore

from moefabric.circuits import CircuitSet
from moefabric.errors import ControlError
from moefabric.forwarding import lit_rules
from moefabric.management import OCS_PORTS, Wiring
from moefabric.ocs_control import Driver, Verification
from moefabric.rules import eps_rules, server_rules
from moefabric.topology import Region

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.02
_GLANCE_S = 0.1
_CALL_AGAIN_S = 0.05, 5.0
_SETTLING_S = 10.0
"""Given to any light, besides twice what it should take."""


def serve(wiring: Wiring, region: Region | None) -> None:
    """Be the controller of a region, or of the EPS where that is None, until SIGTERM or SIGINT. ControlError where an address is taken."""
    use_hub()  # a hub that a parent process had would share its epoll descriptor
    solver.load_aside()
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
            fabric, region.servers, server_rules(fabric, region) | lit_rules(fabric, _seen(wiring, region))
        )
    reconciler = _reconciler(wiring, region, switches)
    recovery = _recovery(wiring, region, switches, reconciler)
    control = Control(fabric, region, switches, reconciler, recovery=recovery, lock=Semaphore(1))
    watch = Watch(region)
    switches.on_port = watch.port
    watch.begin(control)
    switches.listen(management.openflow(region))
    handler = type("BoundHandler", (Handler,), {"control": control})
    listen(
        management.northbound(region), "requests", lambda connection, peer: handler(connection, peer, None)
    )
    eventlet.spawn(_take_over, control)
    eventlet.spawn(*((_hear_alarms, wiring, region, watch) if region else (_ask_regions, wiring, control)))
    log.info(
        "listening for switches on %s:%d, for requests on %s:%d",
        *management.openflow(region),
        *management.northbound(region),
    )
    with told, tell:
        trampoline(told.fileno(), read=True)


def _recovery(
    wiring: Wiring, region: Region | None, switches: RyuSwitches, reconciler: Reconciler | None
) -> Recovery | EpsRecovery:
    findings = Findings(bell=GreenEvent)
    if region is None:
        return EpsRecovery(wiring.fabric, switches, findings)

    eps = ControllerClient(wiring.management.northbound(None), PATIENCE_S, green_socket.create_connection)

    def tell_eps(relays: Mapping[str, str]) -> None:
        try:
            eps.relay(region.name, relays)
        except ControlError as fault:  # one that was started anew has hung up
            log.info("told again: %s", fault)
            eps.relay(region.name, relays)

    if not wiring.fabric.leaves:
        return Recovery(wiring.fabric, region, switches, reconciler, findings=findings)
    return Recovery(wiring.fabric, region, switches, reconciler, tell_eps, findings)


def _ask_regions(wiring: Wiring, control: Control) -> None:
    """A controller of the EPS that starts learns from regions that are there by whom their servers are reached; the others will tell."""
    for region in wiring.fabric.regions:
        address = wiring.management.northbound(region)
        try:
            with ControllerClient(address, PATIENCE_S, green_socket.create_connection) as there:
                if relays := there.relays():
                    control.relay({"region": region.name, "relays": relays}, 0.0)
        except ControlError as absent:
            log.info("%s names no relays: %s", region.name, absent)


def _hear_alarms(wiring: Wiring, region: Region, watch: Watch) -> None:
    """Hear what the OCS tells of its ports, over TL1, and call it again and again where it hangs up or isn't there."""
    ocs = region.ocs
    if ocs is None or not wiring.fabric.optical:
        return
    spoken = ocs.control if ocs.control.driver is Driver.TL1 else replace(ocs.control, user=None, port=None)
    address = spoken.address or wiring.management.ocs(region), spoken.port or OCS_PORTS["tl1"]
    secret = password(spoken) if ocs.control.driver is Driver.TL1 else None
    said, wait_s = "", _CALL_AGAIN_S[0]
    while True:
        session = Alarms(wiring.fabric, region, address, green_socket.create_connection, spoken.user, secret)
        try:
            for told in session.told():
                wait_s = _CALL_AGAIN_S[0]
                watch.ocs_ports(told)
        except ControlError as fault:
            if str(fault) != said:
                said = str(fault)
                log.info("no alarms: %s", fault)
        eventlet.sleep(wait_s)  # nothing announces a device
        wait_s = min(2 * wait_s, _CALL_AGAIN_S[1])


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
        rules=partial(lit_rules, wiring.fabric),
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
