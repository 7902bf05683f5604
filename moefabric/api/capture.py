"""Captures of frames on a running fabric, as pcapng files."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol, Self

from moefabric.api.light_history import LightHistory
from moefabric.core.errors import FabricError
from moefabric.core.nic import Nic, NicKind
from moefabric.core.topology import Region
from moefabric.emulator.fabric import node_commands
from moefabric.emulator.linux import pcapng
from moefabric.results.parts import Json
from moefabric.runtime.atomic_file import replaced_file
from moefabric.runtime.run_directory import FabricWiring

_STOP_S: Final = 10.0
_NO_LIGHT: Final = "no light"


class CapturedFabric(Protocol):
    """The methods of a running fabric that a capture calls; `Lab` has them."""

    name: str

    @property
    def wiring(self) -> FabricWiring:
        """The fabric as its commands know it."""

    def ocs(self, name: str = ...) -> Json:
        """Return the ports of an OCS."""

    def events(self, *, follow: bool = ...) -> Iterator[Json]:
        """Yield the stored events of the OCSes."""


class Capture:
    """A capture of the frames at one place, which runs in a `with`.

    Attributes:
        place: NIC, server, circuit, link, switch or OCS.
        path: The pcapng file, with times in nanoseconds. It is complete after the `with`: each
            frame of an optical NIC has a comment with the circuit that was lit.
        frames: Number of frames in the file, after the `with`.
        dropped: Number of frames that passed but are missing in the file, because the capture was
            too slow.
    """

    def __init__(
        self,
        lab: CapturedFabric,
        place: str,
        path: Path,
        length: int,
        *,
        most_frames: int | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self.place, self.path = place, path
        self.frames = self.dropped = 0
        self._lab, self._length = lab, length
        self._limits = {"frames": most_frames, "bytes": most_bytes}
        self._process: subprocess.Popen[str] | None = None
        self._nics: list[Nic | None] = []
        """The optical NIC of each interface; None for others."""
        self._ports: dict[str, Json] = {}

    def __repr__(self) -> str:
        return f"Capture({self.place!r}, {str(self.path)!r})"

    def __enter__(self) -> Self:
        """Begin, and return once frames are captured.

        Raises:
            FabricError: If the fabric has no such place, or the file can't be written.
        """
        points = node_commands.capture_points(self._lab.wiring, self.place)
        self._nics = [_optical_nic(point.name) for point in points]
        self._ports = {region.name: self._lab.ocs(ocs) for region, ocs in self._ocses()}
        argv = node_commands.capture_argv(
            self._lab.name, points, self.path, self._length, **self._limits
        )
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
        assert self._process is not None
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
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
        assert self._process is not None
        _, errors = self._process.communicate()
        last = errors.strip().rpartition("\n")[2]
        return FabricError(
            f"{self.place}: the capture to {self.path} failed: {last or 'no reason'}"
        )

    def _ocses(self) -> Iterator[tuple[Region, str]]:
        """Yield the regions of optical NICs that are captured, with the names of their OCSes."""
        fabric = self._lab.wiring.fabric
        for region in {fabric.region_of[nic.server] for nic in self._nics if nic is not None}:
            if region.ocs is not None:
                yield region, region.ocs.name

    def _add_comments(self) -> None:
        """Replace the file by one whose packets name the circuits that were lit."""
        events = list(self._lab.events())
        fabric = self._lab.wiring.fabric
        histories = {
            region.name: LightHistory(
                fabric,
                region,
                self._ports[region.name]["ports"],
                [event for event in events if event["ocs"] == ocs],
            )
            for region, ocs in self._ocses()
        }
        ahead_ns = time.time_ns() - time.monotonic_ns()

        def comment(number: int, time_ns: int) -> str:
            nic = self._nics[number] if number < len(self._nics) else None
            if nic is None:
                return ""
            history = histories[fabric.region_of[nic.server].name]
            return history.circuit_at(nic, time_ns - ahead_ns) or _NO_LIGHT

        with self.path.open("rb") as source, replaced_file(self.path, durable=False) as target:
            add_comments(source, target, comment)


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
