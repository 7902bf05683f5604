"""The process of a relay."""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Self

from moefabric.core.errors import FabricError
from moefabric.emulator.link.messages import RelayCounters, RelayPort
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.line_requests import ask_program, end_program
from moefabric.emulator.linux.processes import module_environment, nsenter_argv

_READY_S: Final = 20.0
_REPLY_S: Final = 3.0
_END_S: Final = 5.0
_OFFLOADS: Final = ("tso", "off", "gso", "off", "gro", "off", "tx", "off")


def relay_argv(namespace: str) -> list[str]:
    """Return the argv of a relay in the network namespace at a path."""
    return nsenter_argv(namespace, (sys.executable, "-m", "moefabric.emulator.link.relay"))


def disable_offloads(interface: str) -> None:
    """Let the kernel send whole packets with checksums from an interface.

    Raises:
        FabricError: The interface refuses.
    """
    run(["ethtool", "-K", interface, *_OFFLOADS])


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
            reply = self._ask(pickle.dumps(list(ports)).hex(), _READY_S)
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
        argv, pipe, env = relay_argv(namespace), subprocess.PIPE, module_environment()
        return cls(subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=env), ports)

    def _ask(self, line: str, timeout_s: float = _REPLY_S) -> str:
        """Write a line and return the reply."""
        return ask_program(self._popen, line, timeout_s, "the relay of a link")

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._popen.pid

    def counters(self, request: str = "counters") -> RelayCounters:
        """Return the counters."""
        counters: RelayCounters = pickle.loads(bytes.fromhex(self._ask(request)))  # noqa: S301
        return counters

    def reset(self) -> None:
        """Set the counters to zero."""
        self._ask("reset")

    def take_lateness(self) -> RelayCounters:
        """Return the counters, and set lateness and overflows to zero."""
        return self.counters("reset lateness")

    def close(self) -> None:
        """End the relay."""
        end_program(self._popen, _END_S)
