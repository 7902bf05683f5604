"""The process of controllers: OpenFlow, OCS commands and HTTP in green threads of one thread."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeVar

from moefabric.controller.client import ControllerClient
from moefabric.controller.http_client import Dial
from moefabric.controller.reconfiguration import DeviceBehaviour, Reconciler
from moefabric.controller.recovery.eps_recovery import EpsRecovery
from moefabric.controller.recovery.failure_events import NicEventDispatcher
from moefabric.controller.recovery.failure_history import FailureHistory, FailureReport
from moefabric.controller.recovery.light_watch import LightWatch, check_period_s
from moefabric.controller.recovery.region_recovery import RegionRecovery
from moefabric.controller.service.controller import Controller
from moefabric.controller.service.controller_processes import Beats, Regions, controller_name
from moefabric.controller.service.http_handler import HttpAccess, NorthboundService
from moefabric.controller.southbound.ocs.connection import RetryDelays, from_reserved_port
from moefabric.controller.southbound.ocs.port_alarms import alarm_control, port_states
from moefabric.controller.southbound.ocs.remote_ocs import (
    TIMEOUT_S,
    RemoteOcs,
    account,
    device_address,
    make_driver,
)
from moefabric.controller.southbound.openflow import green
from moefabric.controller.southbound.openflow.ryu_switches import RyuSwitches
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailurePhase
from moefabric.core.forwarding import circuit_rules
from moefabric.core.ocs import OcsControl, Verification
from moefabric.core.rules import eps_rules, server_rules
from moefabric.core.topology import Fabric, Region
from moefabric.planner.relay_linear_program import load_solver
from moefabric.runtime import structured_log
from moefabric.runtime.failure_log import append_failure_event
from moefabric.runtime.processes import STOP_SIGNALS, stop_signals
from moefabric.runtime.run_directory import FabricWiring, RunDirectory

log = logging.getLogger(__name__)
T = TypeVar("T")

_COLLECTION_THRESHOLDS: Final = 50_000, 20, 100
"""Rare garbage collections: rules, circuits and messages are many objects without cycles."""
_ADOPT_RETRY_S: Final = 0.02, 0.02
_START_TIMEOUT_S: Final = 0.1
"""Timeout for the OCS's answer at the start, which determines the first rules."""
_START_TIMEOUT_OF_EACH_S: Final = 0.01
"""Added for each controller of the process."""
_MOST_SIGNALS: Final = 64
_SETTLE_MARGIN_S: Final = 10.0
"""Added to twice the OCS's own settling time."""


def serve(
    run: RunDirectory,
    wiring: FabricWiring,
    regions: Regions,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Control regions, or the EPS, until SIGTERM or SIGINT.

    Args:
        regions: The regions; None for the EPS.
        beat: Is called about once a second while all controllers answer `/health`.

    Raises:
        ControlError: if an address is in use, or the fabric's token can't be read.
    """
    green.start_hub()
    gc.freeze()  # what is loaded by now stays, and collections take milliseconds
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    if any(regions) and wiring.fabric.forwarding:
        load_solver()
    names = [*map(controller_name, regions)]
    shares, beats = len(regions) > 1, Beats(names, beat)
    planning = green.lock() if shares else nullcontext()
    contexts = [_log_context(run, name) if shares else copy_context() for name in names]

    def each(work: Callable[[Region | None], T]) -> list[T]:
        """Call a function for all regions at once, each in its context."""
        starts = zip(contexts, regions, strict=True)
        ends = [context.run(green.start, partial(work, region)) for context, region in starts]
        return [end() for end in ends]

    with stop_signals() as stop:
        # All OCSes are asked before a controller computes, which would keep answers waiting.
        timeout_s = _START_TIMEOUT_S + _START_TIMEOUT_OF_EACH_S * len(regions)
        lit = dict(zip(names, each(partial(_lit_at_start, wiring, timeout_s)), strict=True))
        each(partial(_start, run, wiring, lit, beats, planning))
        while True:
            green.wait_readable(stop.fileno())
            if set(STOP_SIGNALS).intersection(stop.recv(_MOST_SIGNALS)):
                return  # a policy's time limit is a signal, too


def _log_context(run: RunDirectory, name: str) -> Context:
    """Return a context in which a controller logs as if it had a process of its own."""
    with structured_log.part(f"controller-{name}", run.log_folder, region=name):
        return copy_context()


def _start(
    run: RunDirectory,
    wiring: FabricWiring,
    lit_at_start: Mapping[str, CircuitSet],
    beats: Beats,
    planning: AbstractContextManager[Any],
    region: Region | None,
) -> None:
    """Start the green threads that control a region or the EPS, as `serve` describes."""
    token = run.read_token()
    # The log is written while the switches change: it delays no recovery.
    note = partial(green.spawn, _note_failure, run, region)
    fabric, history = wiring.fabric, FailureHistory(event=green.GreenEvent, note=note)
    dial, wrap = green.create_connection, green.wrap_tls
    client = partial(ControllerClient.of_region, wiring, timeout_s=TIMEOUT_S, run_dir=run)
    client = partial(client, dial=dial, wrap=wrap)
    recovery: RegionRecovery | EpsRecovery
    own_switches = wiring.switch == "bpf"  # Open vSwitch can't prove anything
    make_switches = partial(RyuSwitches, fabric, token=token if own_switches else None)
    if region:
        lit = lit_at_start[region.name]
        rules = server_rules(fabric, region) | circuit_rules(fabric, lit)
        switches = make_switches(region.servers, rules)
        reconciler = _reconciler(wiring, region, switches, lit)
        eps = client(None) if None in wiring.controlled else None
        announce = partial(_announce_relays, eps, region) if eps else None
        recovery = RegionRecovery(
            fabric, region, switches, reconciler, announce, history, partial(_note_light, run)
        )
    else:
        switches = make_switches(fabric.leaves + fabric.spines, eps_rules(fabric))
        recovery = EpsRecovery(fabric, switches, history)
    controller = Controller(recovery, switches, green.lock(), planning)
    events = NicEventDispatcher(
        region,
        fabric.scale.dilation,
        lambda: not controller.adopted,
        recovery.handle_events,
        controller.relay,
        controller.relight,
    )
    switches.on_port = events.port_changed
    openflow = wiring.management.openflow_endpoint(region)
    northbound = wiring.management.northbound_endpoint(region)
    tls = wiring.control_tls.context(server_side=True) if wiring.control_tls else None
    hosts = {openflow[0], *wiring.switch_addresses}
    switches.listen(openflow, hosts, tls)
    service = NorthboundService(controller, HttpAccess(token, northbound, run.token_file))
    known = None if tls else {*hosts, "127.0.0.1"}
    green.serve_connections(northbound, "requests", service.serve, tls, known)
    green.spawn(beats.ask, controller_name(region), client(region), green.sleep)
    green.spawn(_adopt, controller)
    if region:
        green.spawn(_read_alarms, wiring, region, events)
        green.spawn(_watch_light, fabric, region, controller, events)
    else:
        green.spawn(_read_relays, wiring.fabric.regions, controller, client)
    log.info("listening for switches on %s:%d, for requests on %s:%d", *openflow, *northbound)


def _ocs(wiring: FabricWiring, region: Region, timeout_s: float) -> RemoteOcs | None:
    if region.ocs is None or not wiring.fabric.optical:
        return None
    address = device_address(region.ocs.control, wiring.management.ocs_address(region))
    dial = _ocs_dial(region.ocs.control)
    driver = make_driver(region.ocs, address, timeout_s, dial, green.sleep)
    return RemoteOcs(wiring.fabric, region, driver)


def _ocs_dial(control: OcsControl) -> Dial:
    """Return how connections to an OCS open; to the emulated one, they are trusted ones."""
    dial = green.create_connection
    return dial if control.address else from_reserved_port(dial)


def _lit_at_start(wiring: FabricWiring, timeout_s: float, region: Region | None) -> CircuitSet:
    """Return the lit circuits, so that a restarted controller leaves traffic on them.

    No circuits are returned if the OCS doesn't answer at once, because it may not run yet.
    """
    if region and (ocs := _ocs(wiring, region, timeout_s)):
        try:
            with ocs:
                ocs.wait_settled(timeout_s)
                return ocs.circuits()
        except ControlError as error:
            log.info("no circuits at the start: %s", error)
    return CircuitSet()


def _reconciler(
    wiring: FabricWiring, region: Region, switches: RyuSwitches, lit: CircuitSet
) -> Reconciler | None:
    """Return the reconciler of a region whose switches start with the rules of `lit`."""
    ocs, device = _ocs(wiring, region, TIMEOUT_S), region.ocs
    if ocs is None or device is None:
        return None
    link_up_s = device.link_up.most_ns / 1e9
    settle_deadline_s = _SETTLE_MARGIN_S + 2 * (device.settle_ns / 1e9 + link_up_s)
    return Reconciler(
        ocs,
        switches,
        green.start,
        device=DeviceBehaviour(settle_deadline_s, link_up_s, device.control.mode),
        probe=switches.probe if device.control.verify is Verification.LIGHT else None,
        rules=partial(circuit_rules, wiring.fabric),
        rules_without=lambda nics: partial(circuit_rules, wiring.fabric, unusable=nics),
        lit=lit,
    )


def _announce_relays(eps: ControllerClient, region: Region, relays: Mapping[str, str]) -> None:
    try:
        eps.relay(region.name, relays)
    except ControlError as error:  # a restarted controller has closed the connection
        log.info("announcing relays again: %s", error)
        eps.relay(region.name, relays)


def _adopt(controller: Controller) -> None:
    """Adopt the lit circuits as soon as the OCS and all switches answer."""
    delays, retry_s, last = RetryDelays(lost=_ADOPT_RETRY_S), 0.0, None
    while True:
        fault = None
        if len(controller.switches.ready) == len(controller.switches.switches):
            try:
                controller.adopt()
            except ControlError as error:
                fault = last = _noted(error, last, "circuits not adopted yet")
            else:
                log.info("ready")
                return
        retry_s = delays.after(fault, retry_s)
        green.sleep(retry_s)  # no event announces a starting OCS


def _note_failure(
    run: RunDirectory,
    region: Region | None,
    phase: FailurePhase,
    report: FailureReport,
    action: str,
    at_ns: int,
) -> None:
    """Append to the failure log that a failure was detected, or that traffic has another path.

    Lost light has events of its own, and the job recovers from the loss of a server.
    """
    is_jobs = report.kind is FailureKind.SERVER and phase == "recovered"
    if report.kind is FailureKind.LIGHT or is_jobs:
        return
    why = action or ("its region's controller" if region else "the EPS's controller")
    with suppress(FileNotFoundError):  # the fabric is gone
        append_failure_event(run, phase, report.kind, [report.what], why, at_ns)


def _note_light(
    run: RunDirectory, phase: FailurePhase, circuit: str, what: str, at_ns: int
) -> None:
    """Append to the failure log that a circuit has lost its light, or that this is over."""
    with suppress(FileNotFoundError):  # the fabric is gone
        append_failure_event(run, phase, FailureKind.LIGHT, [circuit], what, at_ns)


def _watch_light(
    fabric: Fabric, region: Region, controller: Controller, events: NicEventDispatcher
) -> None:
    """Check the light of lit circuits again and again."""
    period_s, recovery = check_period_s(fabric, region), controller.recovery
    reconciler = controller.reconciler
    if not period_s or reconciler is None or not isinstance(recovery, RegionRecovery):
        return
    relights = region.ocs is not None and region.ocs.control.relight
    watch = LightWatch(
        recovery,
        reconciler,
        controller.lock,
        events.delayed_rules,
        events.repair if relights else None,
        fabric.scale.dilation,
    )
    fault: ControlError | None = None
    while True:
        green.sleep(period_s)
        if not controller.adopted:
            continue
        try:
            watch.check()
        except ControlError as error:
            fault = _noted(error, fault, "light not checked")
        except Exception:  # a programming error in one check must not end the later ones
            log.exception("light not checked")


def _noted(fault: ControlError, last: ControlError | None, what: str) -> ControlError:
    """Log a fault unless it is like the last one; return it."""
    if str(fault) != str(last):
        log.warning("%s: %s", what, fault)
    return fault


def _read_relays(
    regions: Sequence[Region], controller: Controller, client: Callable[[Region], ControllerClient]
) -> None:
    """Ask running region controllers for their relays; the others announce theirs later."""
    for region in regions:
        try:
            with client(region) as other:
                if relays := other.relays():
                    controller.announce_relays({"region": region.name, "relays": relays})
        except ControlError as error:
            log.info("%s announces no relays: %s", region.name, error)


def _read_alarms(wiring: FabricWiring, region: Region, events: NicEventDispatcher) -> None:
    """Read port alarms of the OCS over TL1; open a new session whenever one ends."""
    if region.ocs is None or not wiring.fabric.optical:
        return
    control = alarm_control(region.ocs.control)
    if control is None:
        log.info("no port alarms: ocs.user and ocs.password_env have no account for TL1")
        return
    address = device_address(control, wiring.management.ocs_address(region))
    login, dial = account(control), _ocs_dial(control)
    delays, retry_s, fault = RetryDelays(), 0.0, None
    while True:
        try:
            for states in port_states(wiring.fabric, region, address, dial, login):
                retry_s = 0.0
                events.ocs_ports_changed(states)
        except ControlError as error:
            fault = _noted(error, fault, "no alarms")
        retry_s = delays.after(fault, retry_s)
        green.sleep(retry_s)  # no event announces a device
