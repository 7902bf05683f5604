"""The process that serves a fabric's switches in eBPF, as whoever started it sees it."""

import json
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from emulator.plan import SwitchPlan
from emulator.processes import Starter
from emulator.waiting import Deadline
from moefabric.errors import FabricError

ARGV: Final = (sys.executable, "-m", "emulator.switch")
_FIRST: Final = ("nice", "-n", "-10")
"""A switch's control plane is a machine of its own and doesn't wait until servers have computed; where this isn't allowed it starts all the same."""


class Door:
    """Speaks with a process `python -m emulator.switch` over its standard input and output: a line of JSON each way (emulator.switch.openflow_door)."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen

    def make(
        self, switches: Sequence[Mapping[str, Any]], deadline: Deadline, management: Path | None
    ) -> None:
        """Plug in switches: `name`, `datapath_id`, `ports` (interface by number)."""
        self._ask({"make": list(switches), "management": str(management) if management else None}, deadline)

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Give switches, by name, controllers."""
        self._ask({"connect": {name: list(where) for name, where in controllers.items()}}, deadline)

    def connected(self, deadline: Deadline) -> set[str]:
        """The switches that speak with their controllers."""
        shown = self._ask({"show": True}, deadline)["switches"]
        return {name for name, switch in shown.items() if switch["connected"]}

    def close(self) -> None:
        """End the process by the end of its input."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def _ask(self, told: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(told).encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise FabricError(f"switches: their process has ended with status {self._popen.wait()}") from None
        answer: dict[str, Any] = json.loads(self._answer(deadline))
        if "error" in answer:
            raise FabricError(f"switches: {answer['error']}")
        return answer

    def _answer(self, deadline: Deadline) -> bytes:
        assert self._popen.stdout is not None
        waiting = select.poll()
        waiting.register(self._popen.stdout, select.POLLIN)
        if not waiting.poll(deadline.left_s * 1000):
            raise FabricError("switches: their process was not ready in time")
        if not (line := self._popen.stdout.readline()):
            raise FabricError(f"switches: their process has ended with status {self._popen.wait()}")
        return line


class BpfSwitches:
    """A fabric's switches in eBPF, all of them served by one process; see `electrical.ElectricalSwitches`."""

    def __init__(self, folder: Path, start: Starter) -> None:
        """`folder` gets a socket for each switch, at which OpenFlow tools may look on (`ovs-ofctl -O OpenFlow13 dump-flows unix:...`)."""
        self._folder, self._start = folder, start

    def begin(self, deadline: Deadline) -> None:  # noqa: ARG002 - nothing to wait for
        self._door = Door(self._start("switches", (*_FIRST, *ARGV), talking=True).popen)

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        wanted = [
            {
                "name": switch.bridge,
                "datapath_id": switch.datapath_id,
                "ports": {end.port: end.name for end in switch.ports},
            }
            for switch in switches
        ]
        self._door.make(wanted, deadline, self._folder)

    def settle(self, deadline: Deadline) -> str | None:  # noqa: ARG002 - nothing is left to do
        return None

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        self._door.connect(controllers, deadline)
