"""Captures of frames on a running fabric, as pcapng files."""

import json
import subprocess
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from moefabric.api.failure_injection import FailureInjection
from moefabric.core.circuits import Circuit
from moefabric.core.errors import FabricError
from moefabric.core.nic import Nic, NicKind
from moefabric.core.topology import Fabric, Region, nic_at, ocs_port
from moefabric.emulator.fabric import node_commands
from moefabric.emulator.linux import pcapng
from moefabric.results.parts import Json
from moefabric.runtime.atomic_file import replaced_file

_STOP_S: Final = 10.0
_NO_LIGHT: Final = "no light"


class Capture:
    """A capture of the frames at one place, which runs in a `with`.

    Attributes:
        place: NIC, server, circuit, link, switch or OCS.
        path: The pcapng file, with times in nanoseconds. It is complete after the `with`: each
            frame of an optical NIC has a comment with the circuit that was lit.
        frames: Number of frames in the file, after the `with`.
        dropped: Number of frames that passed but are missing in the file, because the capture was
            too slow.

    Args:
        lab: The running fabric.
        place: NIC, server, circuit, link, switch or OCS.
        length: Bytes to keep of each frame.
        **limits: Numbers of `frames` and `bytes` that end the capture; None for no limit.
    """

    def __init__(
        self, lab: FailureInjection, place: str, path: Path, length: int, **limits: int | None
    ) -> None:
        self.place, self.path = place, path
        self.frames = self.dropped = 0
        self._lab, self._length, self._limits = lab, length, limits
        self._process: subprocess.Popen[str]
        self._nics: list[Nic | None] = []
        """The optical NIC of each interface; None for others."""
        self._ports: dict[Region, list[Json]] = {}
        """Ports of the OCS of each region at the start."""

    def __repr__(self) -> str:
        return f"Capture({self.place!r}, {str(self.path)!r})"

    def __enter__(self) -> Self:
        """Begin, and return once frames are captured.

        Raises:
            FabricError: If the fabric has no such place, or the file can't be written.
        """
        lab = self._lab
        points = node_commands.capture_points(lab.wiring, self.place)
        self._nics = [_optical_nic(point.name) for point in points]
        fabric = lab.wiring.fabric
        regions = {fabric.region_of[nic.server] for nic in self._nics if nic is not None}
        ocses = {region: fabric.ocses[region] for region in regions}
        emulated = {region: ocs for region, ocs in ocses.items() if ocs.control.address is None}
        self._ports = {region: lab.ocs(ocs.name)["ports"] for region, ocs in emulated.items()}
        argv = node_commands.capture_argv(lab.name, points, self.path, self._length, **self._limits)
        self._process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C ends the caller's `with`, which ends the capture
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise self._failure()
        return self

    def wait_full(self) -> None:
        """Wait until the capture has reached its limit of frames or bytes."""
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            output, _errors = self._process.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise self._failure() from None
        if self._process.returncode == 0:
            counts = json.loads(output)
            self.frames, self.dropped = counts["frames"], counts["dropped"]
            if self._ports and self.path.is_file():
                self._add_comments()

    def _failure(self) -> FabricError:
        _, errors = self._process.communicate()
        reason = errors.strip().rpartition("\n")[2] or "no reason"
        return FabricError(f"{self.place}: the capture to {self.path} failed: {reason}")

    def _add_comments(self) -> None:
        """Replace the file by one whose packets name the circuits that were lit."""
        events = list(self._lab.events())
        fabric = self._lab.wiring.fabric
        histories = {
            region: light_history(fabric, region, ports, events)
            for region, ports in self._ports.items()
        }
        ahead_ns = time.time_ns() - time.monotonic_ns()

        def comment(number: int, time_ns: int) -> str:
            nic = self._nics[number] if number < len(self._nics) else None
            if nic is None:
                return ""
            history = histories.get(fabric.region_of[nic.server])
            # Only an emulated OCS tells when it had light.
            return (history(nic, time_ns - ahead_ns) or _NO_LIGHT) if history else ""

        with self.path.open("rb") as source, replaced_file(self.path, durable=False) as target:
            add_comments(source, target, comment)


def light_history(
    fabric: Fabric,
    region: Region,
    ports: Iterable[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
) -> Callable[[Nic, int], str | None]:
    """Return a function of a NIC and an instant: the circuit that led light from it, or None.

    Args:
        region: The region of the OCS.
        ports: Ports of the OCS at some instant, as `moefabric ocs --json` lists them.
        events: Events of all OCSes since then, in order of time (CLOCK_MONOTONIC).
    """
    ocs, changes = fabric.ocses[region], defaultdict[int, list[tuple[int, int | None]]](list)
    for port in ports:
        if port["port"] <= ocs.ports and port["state"] == "tuned":
            changes[port["port"]].append((0, port["partner"]))
    for event in events:
        if event["ocs"] != ocs.name:
            continue
        if event["kind"] == "changed":
            for source, _ in event.get("parted", ()):
                changes[source].append((event["at_ns"], None))
        elif event["kind"] == "settled":
            for source, target in event.get("made", ()):
                changes[source].append((event["at_ns"], target))

    def circuit_at(nic: Nic, at_ns: int) -> str | None:
        port_changes = changes.get(ocs_port(fabric, nic), [])
        last = bisect_right(port_changes, at_ns, key=lambda change: change[0])
        target = port_changes[last - 1][1] if last else None
        end = nic_at(fabric, region, target) if target else None
        return str(Circuit(nic, end)) if end else None

    return circuit_at


def add_comments(source: BinaryIO, target: BinaryIO, comment: Callable[[int, int], str]) -> None:
    """Copy a pcapng file, and add comments to its packets.

    Args:
        source: The file.
        target: The copy.
        comment: Returns the comment for a packet's interface and time in ns; empty for none.

    Raises:
        PcapngError: If the file isn't pcapng.
    """
    for kind, body in pcapng.read_blocks(source):
        if kind == pcapng.PACKET:
            packet = pcapng.parse_packet(body)
            target.write(packet.block(comment(packet.interface, packet.time_ns)))
        else:
            target.write(pcapng.block(kind, body))


def _optical_nic(name: str) -> Nic | None:
    """Return the optical NIC of this name; None if it is another interface."""
    try:
        nic = Nic.parse(name)
    except ValueError:
        return None
    return nic if nic.kind is NicKind.OPTICAL else None
