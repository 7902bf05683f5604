"""Calibration of an OCS: its dark time, measured by frames through a circuit that keeps moving.

The OCS is controlled over its own interface, as by a controller. Its cross-connects are restored
afterwards.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, pairwise
from statistics import median_high
from typing import Final

from moefabric.controller.client import ControllerClient
from moefabric.controller.southbound.ocs.cross_connects import (
    CrossConnect,
    RequestedChange,
    difference,
    plan_change,
)
from moefabric.controller.southbound.ocs.remote_ocs import DeviceDriver, device_address, make_driver
from moefabric.core.circuits import CircuitSet
from moefabric.core.eps import Eps
from moefabric.core.errors import ControlError, FabricError
from moefabric.core.nic import Nic
from moefabric.core.ocs import CrossConnectMode, Ocs
from moefabric.core.topology import Fabric, Region, ocs_port
from moefabric.emulator.fabric.daemon_protocol import process_id
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.frame_stream import FrameReceiver, FrameStream
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed.dark_time import Calibration, DarkInterval, measure_dark_interval

CALIBRATION_FABRIC: Final = "calibration"
_LIT_S: Final = 0.004
"""Time during which the circuit is lit before and after each move."""
_SETTLE_TIMEOUT_S: Final = 10.0

Route = tuple[CrossConnect, FrameReceiver]
"""Cross-connect of the moving circuit, and the receiver at its end."""


def calibration_fabric(settle_ns: Sequence[int]) -> Fabric:
    """Return a fabric for calibration alone: one region of two servers for each settle time."""
    regions = tuple(
        Region(f"r{i}", i, (f"s{2 * i}", f"s{2 * i + 1}"), Ocs(f"ocs{i}", 4, settle))
        for i, settle in enumerate(settle_ns)
    )
    return Fabric(CALIBRATION_FABRIC, regions, 1, 2, 1, 1e9, Eps(2 * len(regions)))


def calibrate(
    wiring: FabricWiring, run_dir: RunDirectory, region: Region, count: int, spacing_ns: int
) -> Calibration:
    """Measure the dark time of a running region's OCS.

    Args:
        wiring: Wiring of the running fabric.
        run_dir: Run directory of the fabric.
        region: The region whose circuits move.
        count: Number of moves.
        spacing_ns: Time between two frames.

    Raises:
        FabricError: if the fabric doesn't run, or the region has no circuit to move.
        ControlError: if the OCS doesn't answer.
    """
    fabric = wiring.fabric
    source, ends = _moving_circuit(fabric, region)
    ocs = fabric.ocses[region]
    interfaces = {link.name: link.a.name for link in plan_fabric(fabric, wiring.management).links}
    namespace = namespaces.path_of(process_id(run_dir))
    address = device_address(ocs.control, wiring.management.ocs_address(region))
    with ExitStack() as cleanup:
        cleanup.enter_context(_without_traffic(wiring, region, {source, *ends}))
        driver = cleanup.enter_context(_restored(make_driver(ocs, address)))
        routes: list[Route] = []
        for end in ends:
            receiver = FrameReceiver(namespace, interfaces[str(end)])
            cleanup.callback(receiver.close)
            cross_connect = (ocs_port(fabric, source), ocs.ports + ocs_port(fabric, end))
            routes.append((cross_connect, receiver))
        stream = cleanup.enter_context(
            FrameStream([(namespace, interfaces[str(source)])], spacing_ns)
        )
        stream.wait_sent(1)
        intervals, spacings_s = zip(*_moves(driver, stream, routes, count), strict=True)
    asked_s = (ocs.settle_ns + ocs.link_up.fixed_ns) / 1e9
    return Calibration(ocs.name, asked_s, median_high(spacings_s), intervals)


def _moving_circuit(fabric: Fabric, region: Region) -> tuple[Nic, list[Nic]]:
    """Return the region's first optical NIC, and the one or two NICs to which its light moves.

    One direction suffices, since both directions move alike.
    """
    first, *rest = region.servers
    others = [nic for server in rest for nic in fabric.optical_nics(server)]
    if region.ocs is None or not others or not fabric.optical_nics(first):
        raise FabricError(f"{region.name}: needs an OCS and two servers with optical NICs")
    return fabric.optical_nics(first)[0], others[:2]


def _moves(
    driver: DeviceDriver, stream: FrameStream, routes: Sequence[Route], count: int
) -> Iterator[tuple[DarkInterval, float]]:
    """Move the circuit; yield each dark interval, and the stream's median spacing meanwhile."""
    lit_frames = round(_LIT_S * 1e9 / stream.spacing_ns)
    receivers = [receiver for _, receiver in routes]
    before: Route | None = None
    for route in cycle(routes):
        first = stream.sent - lit_frames // 2
        _connect(driver, before[0] if before else None, route[0])
        stream.wait_sent(stream.sent + lit_frames)
        if before is None:
            for receiver in receivers:
                receiver.received()
        else:
            yield _measure(stream, first, receivers, before[1], route[1])
            count -= 1
        if not count:
            return
        before = route
        stream.wait_sent(stream.sent + lit_frames)


def _connect(driver: DeviceDriver, old: CrossConnect | None, new: CrossConnect) -> None:
    """Replace a cross-connect by another one.

    The new cross-connect counts as absent, so that it is set up again even if it is there already.
    """
    change = RequestedChange(teardown=() if old is None else (old,), setup=(new,))
    others = [c for c in driver.cross_connects() if c != new]
    if refusal := driver.apply(plan_change(others, change, CrossConnectMode.UPDATE)):
        raise FabricError(f"{driver.name} refuses to connect {new[0]} to {new[1]}: {refusal}")
    driver.wait_settled(_SETTLE_TIMEOUT_S)


def _measure(
    stream: FrameStream, first: int, receivers: Sequence[FrameReceiver],
    old: FrameReceiver, new: FrameReceiver,
) -> tuple[DarkInterval, float]:  # fmt: skip
    """Measure the dark interval in the frames from number `first` on, and their spacing."""
    end = stream.sent
    numbers = {id(receiver): set(receiver.received()) for receiver in receivers}
    at_old, at_new = numbers[id(old)], numbers[id(new)]
    strays = 0
    if new is not old:
        first_at_new = min((n for n in at_new if n >= first), default=end)
        strays = sum(n > first_at_new for n in at_old)
    sent_ns = stream.sent_ns(first, end)
    received = [n - first for n in at_old | at_new if first <= n < end]
    spacing_ns = median_high(b - a for a, b in pairwise(sent_ns))
    return measure_dark_interval(sent_ns, received, strays), spacing_ns / 1e9


@contextmanager
def _without_traffic(wiring: FabricWiring, region: Region, nics: Collection[Nic]) -> Iterator[None]:
    """Let the controller use no circuit of NICs whose light moves, which it would take for lost."""
    with ExitStack() as undo:
        client = undo.enter_context(ControllerClient.of_region(wiring, region))
        try:
            before = CircuitSet.of(client.circuits())
        except ControlError:  # the fabric has no controllers
            before = CircuitSet()
        if (others := before.without_nics(nics)) != before:
            client.light([*map(str, others)])
            undo.callback(client.light, [*map(str, before)])
        yield


@contextmanager
def _restored(driver: DeviceDriver) -> Iterator[DeviceDriver]:
    """Restore the cross-connects of an OCS at the end of the context, and close its driver."""
    before = driver.cross_connects()
    try:
        yield driver
    finally:
        if change := difference(driver.cross_connects(), before):
            driver.apply(change)
            driver.wait_settled(_SETTLE_TIMEOUT_S)
        driver.close()
