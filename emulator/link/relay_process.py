"""The process of a relay, and its counters."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from moefabric.core.errors import FabricError
from moefabric.emulator.link.lateness import Lateness
from moefabric.emulator.link.port import PortCounts
from moefabric.emulator.link.relay import RelayPort
from moefabric.emulator.linux.line_requests import ask_program
from moefabric.emulator.linux.processes import nsenter_argv
from moefabric.runtime.processes import wait_or_kill

RELAY_ENVIRONMENT: Final = {"PYTHONSAFEPATH": "1"}
"""Variables of a relay; with this one, `python -m` doesn't import from the caller's folder."""
_READY_S: Final = 20.0
_REPLY_S: Final = 3.0
_END_S: Final = 5.0


def relay_argv(namespace: str) -> list[str]:
    """Return the argv of a relay in the network namespace at a path."""
    return nsenter_argv(namespace, (sys.executable, "-m", "moefabric.emulator.link.relay"))


@dataclass(frozen=True)
class RelayCounters:
    """Counters of a relay since its start or the last `reset`.

    Attributes:
        ports: By interface, frames of the link that leads there.
        lateness: How much later than the links would have, the relay has passed frames on.
        overflows: Frames that the relay was too late to read, or that exceed the MTU.
        unsent: Frames that an interface has refused.
        unknown: Frames to MAC addresses behind no port.
    """

    ports: Mapping[str, PortCounts]
    lateness: Lateness
    overflows: int
    unsent: int
    unknown: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the counters that a relay has printed."""
        ports = {name: PortCounts(**counts) for name, counts in value["ports"].items()}
        return cls(**{**value, "ports": ports, "lateness": Lateness(**value["lateness"])})


def _with_numbers(value: dict[str, Any]) -> dict[str | int, Any]:
    """Return an object of JSON, whose keys are strings, with the numbers of classes as keys."""
    return {int(key) if key.isdigit() else key: item for key, item in value.items()}


class RelayProcess:
    """A relay in a process of its own; it ends with the process that started it.

    Args:
        popen: Process of `relay_argv`, with pipes.
        ports: The interfaces.

    Raises:
        FabricError: The relay can't open its interfaces.
    """

    def __init__(self, popen: subprocess.Popen[bytes], ports: Sequence[RelayPort]) -> None:
        """Wait until the process relays."""
        self._popen = popen
        try:
            reply = self._ask(json.dumps([asdict(port) for port in ports]), _READY_S)
        except FabricError:
            self.close()
            raise
        if reply != "ready":
            self.close()
            raise FabricError(f"the relay of a link is not ready, saying: {reply}")

    @classmethod
    def start(cls, namespace: str, ports: Sequence[RelayPort]) -> Self:
        """Start a relay in the network namespace at a path, which has the interfaces.

        Raises:
            FabricError: The relay can't start.
        """
        environment = {**os.environ, **RELAY_ENVIRONMENT}
        pipe = subprocess.PIPE
        argv = relay_argv(namespace)
        return cls(subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=environment), ports)

    def _ask(self, line: str, timeout_s: float = _REPLY_S) -> str:
        """Write a line and return the reply."""
        return ask_program(self._popen, line, timeout_s, "the relay of a link")

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._popen.pid

    def counters(self) -> RelayCounters:
        """Return the counters."""
        reply = self._ask("counters")
        return RelayCounters.from_json(json.loads(reply, object_hook=_with_numbers))

    def reset(self) -> None:
        """Set the counters to zero."""
        self._ask("reset")

    def reset_lateness(self) -> None:
        """Forget how late frames were, and how many were not read in time."""
        self._ask("reset lateness")

    def close(self) -> None:
        """End the relay."""
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()
        wait_or_kill(self._popen, _END_S)
