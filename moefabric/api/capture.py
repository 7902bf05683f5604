"""Captures of frames on a running fabric, as pcap files."""

import json
import subprocess
from pathlib import Path
from typing import Final, Self

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric import node_commands

_STOP_S: Final = 10.0


class Capture:
    """A capture of the frames at one place, which runs in a `with`.

    Attributes:
        place: NIC, server or link.
        path: The pcap file, with times in nanoseconds. It is complete after the `with`.
        frames: Number of frames in the file, after the `with`.
        dropped: Number of frames that passed but are missing in the file, because the capture was
            too slow.
    """

    def __init__(self, fabric: str, place: str, path: Path, length: int) -> None:
        self.place, self.path = place, path
        self.frames = self.dropped = 0
        self._fabric, self._length = fabric, length
        self._process: subprocess.Popen[str] | None = None

    def __repr__(self) -> str:
        return f"Capture({self.place!r}, {str(self.path)!r})"

    def __enter__(self) -> Self:
        """Begin, and return once frames are captured.

        Raises:
            FabricError: If the fabric has no such place, or the file can't be written.
        """
        argv = node_commands.capture_argv(self._fabric, self.place, self.path, self._length)
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

    def _failure(self) -> FabricError:
        assert self._process is not None
        _, errors = self._process.communicate()
        last = errors.strip().rpartition("\n")[2]
        return FabricError(
            f"{self.place}: the capture to {self.path} failed: {last or 'no reason'}"
        )
