"""Calibration of optical switches: a stream of frames through a circuit that is moved again and again, and the dark time that it saw.

The light is moved by the switch's own control interface, as a controller would. Whatever was joined before is so again afterwards.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Final

from controller.southbound.crossconnects import CrossConnect, Wanted, between, moves
from controller.southbound.driven_ocs import Device
from controller.southbound.drivers import device, place
from emulator import namespaces
from emulator.plan import plan
from emulator.stream import Ears, Stream
from moefabric.dark_time import Calibration, Dark, dark
from moefabric.errors import FabricError
from moefabric.management import RunDir, Wiring
from moefabric.ocs_control import Mode
from moefabric.topology import Eps, Fabric, Nic, Ocs, Region

NAME: Final = "calibration"
_LIT_S: Final = 0.004
"""How long the circuit is lit before each move and after it."""
_PATIENCE_S: Final = 10.0


@dataclass(frozen=True)
class Course:
    """The circuit that is moved: one NIC's light, to other NICs in turn; in which direction doesn't matter, so it goes one way only."""

    region: Region
    source: Nic
    ends: tuple[Nic, ...]


def course(fabric: Fabric, region: Region) -> Course:
    """The region's first optical NIC, and two others that it reaches; one where there is no more. FabricError where there is none."""
    first, *rest = region.servers
    others = [nic for server in rest for nic in fabric.optical_nics(server)]
    if region.ocs is None or not others or not fabric.optical_nics(first):
        raise FabricError(f"{region.name}: no light can be moved between its servers")
    return Course(region, fabric.optical_nics(first)[0], tuple(others[:2]))


def settles(settle_ns: list[int]) -> Fabric:
    """A fabric for calibration alone: a region of two servers for each settle time."""
    regions = tuple(
        Region(f"r{i}", i, (f"s{2 * i}", f"s{2 * i + 1}"), Ocs(f"ocs{i}", 4, asked))
        for i, asked in enumerate(settle_ns)
    )
    return Fabric(NAME, regions, 1, 2, 1, 1e9, Eps(2 * len(regions)))


def calibrate(wiring: Wiring, run: RunDir, region: Region, count: int, spacing_ns: int) -> Calibration:
    """Move the light of a running fabric's region so many times under a stream of frames. FabricError, ControlError where that fails."""
    fabric, ocs = wiring.fabric, region.ocs
    chosen = course(fabric, region)
    assert ocs is not None
    interfaces = {link.name: link.a.name for link in plan(fabric, wiring.management).links}
    namespace = namespaces.of(_fabric_process(run))
    asked_s = (ocs.settle_ns + ocs.link_up_ns) / 1e9
    with ExitStack() as undo:
        switch = undo.enter_context(_kept(device(ocs, place(ocs.control, wiring.management.ocs(region)))))
        ears = [Ears(namespace, interfaces[str(end)]) for end in chosen.ends]
        for ear in ears:
            undo.callback(ear.close)
        stream = undo.enter_context(Stream([(namespace, interfaces[str(chosen.source)])], spacing_ns))
        stream.wait_sent(1)
        seen = tuple(_moves(fabric, chosen, switch, stream, ears, count))
    spacings = [spacing for _, spacing in seen]
    return Calibration(
        ocs.name, asked_s, sorted(spacings)[len(spacings) // 2], tuple(each for each, _ in seen)
    )


def _moves(
    fabric: Fabric, chosen: Course, switch: Device, stream: Stream, ears: list[Ears], count: int
) -> Iterator[tuple[Dark, float]]:
    """Each move of light, and the stream's median spacing meanwhile."""
    assert chosen.region.ocs is not None
    n, source = chosen.region.ocs.ports, fabric.ocs_port(chosen.source)
    routes = [((source, n + fabric.ocs_port(end)), ear) for end, ear in zip(chosen.ends, ears, strict=True)]
    before: tuple[CrossConnect, Ears] | None = None
    for route in cycle(routes):
        first = stream.sent - round(_LIT_S / 2 * 1e9 / stream.spacing_ns)
        _join(switch, before[0] if before else None, route[0])
        stream.wait_sent(stream.sent + round(_LIT_S * 1e9 / stream.spacing_ns))
        if before is not None:
            yield _seen(stream, first, ears, before[1], route[1])
            count -= 1
        else:
            for ear in ears:
                ear.heard()
        if not count:
            return
        before = route
        stream.wait_sent(stream.sent + round(_LIT_S * 1e9 / stream.spacing_ns))


def _join(switch: Device, old: CrossConnect | None, new: CrossConnect) -> None:
    wanted = Wanted(out=() if old is None else (old,), into=(new,))
    joined = switch.joined()
    told = moves([c for c in joined if c != new], wanted, Mode.UPDATE)
    if said := switch.move(told):
        raise FabricError(f"{switch.name} refuses to move {new[0]} to {new[1]}: {said}")
    switch.settled(_PATIENCE_S)


def _seen(stream: Stream, first: int, ears: list[Ears], old: Ears, new: Ears) -> tuple[Dark, float]:
    """What became of the frames since `first`."""
    end = stream.sent
    heard = {id(ear): {n for n, _ in ear.heard()} for ear in ears}
    through = {n for n in heard[id(old)] | heard[id(new)] if first <= n < end}
    came_new = min((n for n in heard[id(new)] if n >= first), default=end) if new is not old else end
    strays = sum(n > came_new for n in heard[id(old)]) if new is not old else 0
    sent = stream.sent_ns(first, end)
    gaps = sorted(b - a for a, b in pairwise(sent))

    return dark(sent, [n - first for n in through], strays), gaps[len(gaps) // 2] / 1e9


@contextmanager
def _kept(switch: Device) -> Iterator[Device]:
    """A switch whose cross-connects are afterwards as they were before."""
    before = switch.joined()
    try:
        yield switch
    finally:
        now = switch.joined()
        if back := between(now, before):
            switch.move(back)
            switch.settled(_PATIENCE_S)
        switch.close()


def _fabric_process(run: RunDir) -> int:
    """The process in whose namespace the switches' ends of all NICs are. FabricError where the fabric doesn't run."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(5)
        try:
            asking.connect(str(run.control))
        except OSError as absent:
            raise FabricError(f"{run.name}: no fabric of this name runs; see `moefabric up`") from absent
        told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", told)[0])
