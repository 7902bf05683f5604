"""Electrical switches in eBPF, served by one process, and the client of that process."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric.plan import SwitchPlan
from moefabric.emulator.linux.line_requests import ask_program
from moefabric.emulator.linux.processes import ChildProcesses
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.waiting import Deadline

ARGV: Final = (sys.executable, "-m", "moefabric.emulator.openflow_switch")
_NAME: Final = "the process of the switches"
PRIORITY: Final = ("nice", "-n", "-10")
"""Prefix of the switches' command: a higher priority, so that switches don't wait for servers.

Where a higher priority isn't allowed, the program starts with the normal one.
"""


class SwitchProcess:
    """Client of the process of the switches, over its standard input and output.

    Each request and reply is a line of JSON (`openflow_switch.agent.control_commands`).
    """

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        """Take the process, whose standard input and output are pipes."""
        self._popen = popen

    def make(
        self,
        switches: Sequence[Mapping[str, Any]],
        management: Path,
        deadline: Deadline,
        *,
        token: str = "",
        tls: ControlTls | None = None,
    ) -> None:
        """Make switches.

        Args:
            switches: `name`, `datapath_id` and `ports` (interface by number) of each.
            management: folder for the switches' sockets for OpenFlow tools.
            deadline: limit for the reply.
            token: the fabric's token, by which the switches prove to its controllers who they are;
                without one, they prove nothing.
            tls: certificates for connections to controllers; None for plain TCP.
        """
        identity = {"token": token, "tls": tls and asdict(tls)}
        message = {"make": list(switches), "management": str(management)}
        self._request(message | identity, deadline)

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Connect switches, by name, to controllers."""
        self._request({"connect": dict(controllers)}, deadline)

    def connected(self, deadline: Deadline) -> set[str]:
        """Return the switches that are connected to their controllers."""
        switches = self._request({"show": True}, deadline)["switches"]
        return {name for name, switch in switches.items() if switch["connected"]}

    def close(self) -> None:
        """End the process by the end of its input."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def _request(self, message: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        line = ask_program(self._popen, json.dumps(message), deadline.remaining_s, _NAME)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise FabricError(f"switches: {reply['error']}")
        return reply


class BpfSwitches:
    """A fabric's switches in eBPF; implements `datapath.ElectricalSwitches`."""

    def __init__(self, folder: Path, token: str, tls: ControlTls | None) -> None:
        """Start nothing yet.

        Args:
            folder: folder for a socket per switch, for OpenFlow tools
                (`ovs-ofctl -O OpenFlow13 dump-flows unix:...`).
            token: the fabric's token.
            tls: certificates for connections to controllers; None for plain TCP.
        """
        self._folder, self._token, self._tls = folder, token, tls

    def start(self, processes: ChildProcesses, deadline: Deadline) -> None:  # noqa: ARG002
        """Start the process of the switches, without a wait."""
        program = processes.start("switches", (*PRIORITY, *ARGV), piped=True)
        self._process = SwitchProcess(program.popen)

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        """Make the switches and attach their ports."""
        described = [switch.description for switch in switches]
        self._process.make(described, self._folder, deadline, token=self._token, tls=self._tls)

    def finish(self, deadline: Deadline) -> str | None:  # noqa: ARG002 - nothing is left to do
        """Return None: nothing is left to do."""
        return None

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Connect switches to their controllers."""
        self._process.connect(controllers, deadline)
