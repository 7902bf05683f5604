"""Calibration of an OCS: its dark time as packets see it, through a circuit that keeps moving.

The OCS is controlled over its own interface, as by a controller. Its cross-connects are restored
afterwards. Dark time is a gap in a steady stream of numbered frames.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, pairwise
from math import inf
from statistics import median_high
from typing import Any, Final

import numpy as np

from moefabric.controller.southbound.ocs.cross_connects import (
    CrossConnect,
    RequestedChange,
    difference,
    plan_change,
)
from moefabric.controller.southbound.ocs.remote_ocs import DeviceDriver, device_address, make_driver
from moefabric.core.eps import Eps
from moefabric.core.errors import FabricError
from moefabric.core.nic import Nic
from moefabric.core.ocs import CrossConnectMode, Ocs
from moefabric.core.ocs_ports import ocs_port
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.daemon_protocol import process_id
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.frame_stream import FrameReceiver, FrameStream
from moefabric.runtime.run_directory import FabricWiring, RunDirectory

_LONGEST_PAUSE: Final = 4.0
"""Longest pause, in frame spacings, at the edges of a dark interval that counts as certain."""
_QUANTILES: Final = (0.5, 0.99)


@dataclass(frozen=True)
class DarkInterval:
    """Time without light during one change of circuits, plus or minus `within_s`.

    The resolution is that of the frames that were sent around its edges.
    """

    seconds: float
    within_s: float
    lost: int
    """Frames lost in the interval."""
    lost_outside: int
    """Frames lost before and after the interval."""
    strays: int = 0
    """Frames received at the port from which the circuit had moved away."""

    def is_certain(self, spacing_s: float) -> bool:
        """Whether the stream, with this median spacing, was steady at the interval's edges."""
        return self.within_s <= _LONGEST_PAUSE * spacing_s / 2


def measure_dark_interval(
    sent_ns: Sequence[int], received: Iterable[int], strays: int = 0
) -> DarkInterval:
    """Find the dark interval in a stream of frames: the longest run of lost frames.

    It starts between the last frame received before it and the first frame lost, and ends likewise;
    the middle of both bounds is taken. If the stream starts or ends dark, the result is uncertain.

    Args:
        sent_ns: Time at which each frame was sent, by frame number.
        received: Numbers of the frames that were received.
        strays: Number of stray frames, for the result.
    """
    sent = np.asarray(sent_ns, dtype=np.int64)
    is_received = np.zeros(len(sent) + 2, dtype=bool)
    is_received[[0, -1]] = True
    is_received[1 + np.fromiter(received, dtype=np.int64)] = True
    numbers = np.flatnonzero(is_received) - 1
    lost_runs = np.diff(numbers) - 1
    longest = int(lost_runs.argmax())
    lost, before, after = int(lost_runs[longest]), int(numbers[longest]), int(numbers[longest + 1])
    lost_outside = int(lost_runs.sum()) - lost
    if not lost:
        return DarkInterval(0.0, float(np.diff(sent).max(initial=0)) / 1e9, 0, 0, strays)
    if before < 0 or after >= len(sent):
        return DarkInterval(float(sent[-1] - sent[0]) / 1e9, inf, lost, lost_outside, strays)
    least_ns, most_ns = sent[after - 1] - sent[before + 1], sent[after] - sent[before]
    middle_s, within_s = (least_ns + most_ns) / 2e9, (most_ns - least_ns) / 2e9
    return DarkInterval(middle_s, within_s, lost, lost_outside, strays)


@dataclass(frozen=True)
class Calibration:
    """Dark intervals of one OCS, and its configured dark time `asked_s`.

    `spacing_s` is the median time between two frames.
    """

    ocs: str
    asked_s: float
    spacing_s: float
    moves: tuple[DarkInterval, ...]

    @property
    def certain(self) -> tuple[DarkInterval, ...]:
        """Intervals during which the machine kept the stream steady."""
        return tuple(move for move in self.moves if move.is_certain(self.spacing_s))

    def dark_s(self, quantile: float) -> float:
        """Return a quantile of the certain dark times."""
        return float(np.quantile([move.seconds for move in self.certain], quantile))

    def error_s(self, quantile: float) -> float:
        """Return a quantile of the certain dark times' absolute deviations from `asked_s`."""
        errors = [abs(move.seconds - self.asked_s) for move in self.certain]
        return float(np.quantile(errors, quantile))

    def to_json(self) -> dict[str, Any]:
        """Return the figures in seconds.

        Uncertain moves count in `moves`, `uncertain` and `strays` only. Without certain moves there
        are no quantiles.
        """
        quantiles = {
            f"{name}_p{round(100 * q)}_s": figure(q)
            for name, figure in (("dark", self.dark_s), ("error", self.error_s))
            for q in _QUANTILES
            if self.certain
        }
        return {
            "ocs": self.ocs,
            "asked_s": self.asked_s,
            "spacing_s": self.spacing_s,
            "moves": len(self.moves),
            "uncertain": len(self.moves) - len(self.certain),
            **quantiles,
            "lost_besides": sum(move.lost_outside for move in self.certain),
            "strays": sum(move.strays for move in self.moves),
            "dark_s": [move.seconds for move in self.certain],
        }


def calibration_table(calibrations: Iterable[Calibration]) -> str:
    """Format calibrations as a table in milliseconds."""
    titles = ("configured", "measured p50", "p99", "error p50", "p99", "moves")
    widths = (11, 14, 9, 11, 8, 7)
    head = "".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))
    lines = [f"{'':8}{head}  ms"]
    for calibration in calibrations:
        certain, figures = len(calibration.certain), f"{'the machine was too busy':>42}"
        if certain:
            values = [of(q) for of in (calibration.dark_s, calibration.error_s) for q in _QUANTILES]
            columns = zip(values, widths[1:5], strict=True)
            figures = "".join(f"{1e3 * value:{width}.3f}" for value, width in columns)
        uncertain = len(calibration.moves) - certain
        note = f"  {uncertain} more while the stream was held up" if uncertain else ""
        configured = f"{1e3 * calibration.asked_s:{widths[0]}.3f}"
        lines.append(f"{calibration.ocs:8}{configured}{figures}{certain:{widths[5]}}{note}")
    return "\n".join(lines)


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
    fabric, ocs = wiring.fabric, region.ocs
    source, ends = _moving_circuit(fabric, region)
    assert ocs is not None
    interfaces = {link.name: link.a.name for link in plan_fabric(fabric, wiring.management).links}
    namespace = namespaces.path_of(process_id(run_dir))
    address = device_address(ocs.control, wiring.management.ocs_address(region))
    with ExitStack() as cleanup:
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
    asked_s = (ocs.settle_ns + ocs.link_up_ns) / 1e9
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
    numbers = {id(receiver): {n for n, _ in receiver.received()} for receiver in receivers}
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
