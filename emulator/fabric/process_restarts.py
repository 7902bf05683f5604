"""Starts processes of OCSes again when they end. Their light stays on meanwhile.

The fabric process keeps the crossbar and the listening sockets, and hands them to the next process
(`moefabric.emulator.ocs.fd_handoff`).
"""

import logging
import selectors
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from moefabric.core.errors import FabricError
from moefabric.core.restarts import Restarts
from moefabric.emulator.linux.processes import ChildProcess

log = logging.getLogger(__name__)


@dataclass
class _Watched:
    """A process that is started again: its latest life, and whether that one has ended."""

    process: ChildProcess
    started_s: float
    restarts: Restarts = field(default_factory=Restarts)
    has_ended: bool = False


class ProcessRestarts:
    """Watches processes by a selector, whose keys have a function to call as data.

    Args:
        selector: The selector.
        restart: Starts the process with a name again, and returns it.
    """

    def __init__(
        self, selector: selectors.BaseSelector, restart: Callable[[str], ChildProcess]
    ) -> None:
        self._selector, self._restart = selector, restart
        self._watched: dict[str, _Watched] = {}

    def watch(self, processes: Iterable[ChildProcess]) -> None:
        """Watch processes that have just been started."""
        for process in processes:
            self._watched[process.name] = watched = _Watched(process, time.monotonic())
            self._register(watched)

    @property
    def wait_s(self) -> float | None:
        """How long the selector may wait; None for any time."""
        waiting = [one.restarts.not_before_s for one in self._watched.values() if one.has_ended]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else None

    def start_due(self) -> None:
        """Start the processes that have ended and have waited long enough."""
        for name, watched in self._watched.items():
            now_s = time.monotonic()
            if not watched.has_ended or now_s < watched.restarts.not_before_s:
                continue
            try:
                watched.process = self._restart(name)
            except FabricError as error:
                delay_s = watched.restarts.note_end(now_s, now_s)
                log.warning("%s can't start, next in %g s: %s", name, delay_s, error)
                continue
            watched.started_s, watched.has_ended = now_s, False
            self._register(watched)

    def _register(self, watched: _Watched) -> None:
        data = partial(self._note_end, watched)
        self._selector.register(watched.process.pidfd, selectors.EVENT_READ, data=data)

    def _note_end(self, watched: _Watched) -> None:
        self._selector.unregister(watched.process.pidfd)
        delay_s = watched.restarts.note_end(watched.started_s, time.monotonic())
        watched.has_ended = True
        description = watched.process.exit_description
        log.warning("%s; starts again in %g s", description, delay_s)
