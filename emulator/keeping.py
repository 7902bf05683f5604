"""Keeping: a network and a mount namespace for each node, held open by processes that do nothing else (emulator.keepers)."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from emulator.processes import adopt_orphans, mark
from emulator.waiting import Deadline
from moefabric.errors import FabricError

_KEEPERS: Final = str(Path(__file__).with_name("keepers.py"))


class Keeping:
    """Namespaces for nodes, made beside the caller by a process forked for each; `close` ends them, and with them what is in there."""

    def __init__(self, nodes: Sequence[str], fabric: str) -> None:
        """Begin to make them; `pids` waits until they are there. The processes carry the fabric's mark."""
        self._nodes, self._closed = tuple(nodes), False
        adopt_orphans()
        self._maker = subprocess.Popen(
            [sys.executable, "-S", "-E", _KEEPERS, str(len(self._nodes))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **mark(fabric)},
            start_new_session=True,
        )

    def pids(self, deadline: Deadline) -> dict[str, int]:
        """A process in the namespaces of each node. FabricError where a namespace can't be had, or not in time."""
        try:
            said, _ = self._maker.communicate(timeout=deadline.left_s)
        except subprocess.TimeoutExpired:
            raise FabricError("the nodes' namespaces were not ready in time") from None
        lines = said.split()
        if refused := [line for line in said.splitlines() if not line.isdecimal()]:
            raise FabricError(f"no namespaces: {refused[0]}; run as root (CAP_SYS_ADMIN)")
        if len(lines) != len(self._nodes):
            raise FabricError(
                f"{len(lines)} of {len(self._nodes)} namespaces were made; see the fabric's log"
            )
        return dict(zip(self._nodes, map(int, lines), strict=True))

    def close(self) -> None:
        """End them, and return when they have ended; the kernel takes what was in there away by itself. Twice is no fault."""
        if self._closed:
            return  # their group's number may be another's by now
        self._closed = True
        with suppress(ProcessLookupError):
            os.killpg(self._maker.pid, signal.SIGKILL)
        self._maker.wait()
        if self._maker.stdout is not None:
            self._maker.stdout.close()
        with suppress(ChildProcessError):
            while True:
                os.waitid(os.P_PGID, self._maker.pid, os.WEXITED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
