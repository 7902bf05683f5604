"""Client of the process that serves electrical switches in eBPF."""

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
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.waiting import Deadline

ARGV: Final = (sys.executable, "-m", "moefabric.emulator.openflow_switch")
_NAME: Final = "the process of the switches"
PRIORITY: Final = ("nice", "-n", "-10")
"""Prefix of the switches' command: a higher priority, so that switches don't wait for servers.

Where a higher priority isn't allowed, the program starts with the normal one.
"""


class SwitchProcess:
    """Switches of a process, by its standard input and output; a `datapath.ElectricalSwitches`.

    Each request and reply is a line of JSON (`openflow_switch.agent.control_commands`).
    """

    def __init__(
        self,
        popen: "subprocess.Popen[bytes]",
        folder: Path,
        token: str = "",
        tls: ControlTls | None = None,
    ) -> None:
        """Make no switches yet.

        Args:
            popen: the process, whose standard input and output are pipes.
            folder: folder for a socket per switch, for OpenFlow tools
                (`ovs-ofctl -O OpenFlow13 dump-flows unix:...`).
            token: the fabric's token, by which the switches prove to its controllers who they are;
                without one, they prove nothing.
            tls: certificates for connections to controllers; None for plain TCP.
        """
        self._popen, self._folder = popen, folder
        self._identity = {"token": token, "tls": tls and asdict(tls)}

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        """Make the switches and attach their ports."""
        described = [switch.description for switch in switches]
        message = {"make": described, "management": str(self._folder)}
        self._request(message | self._identity, deadline)

    def finish(self, deadline: Deadline) -> str | None:  # noqa: ARG002 - nothing is left to do
        """Return None: nothing is left to do."""
        return None

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Connect switches, by name, to controllers."""
        self._request({"connect": dict(controllers)}, deadline)

    def connected(self, deadline: Deadline) -> set[str]:
        """Return the switches that are connected to their controllers."""
        switches = self._request({"show": True}, deadline)["switches"]
        return {name for name, switch in switches.items() if switch["connected"]}

    def _request(self, message: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        line = ask_program(self._popen, json.dumps(message), deadline.remaining_s, _NAME)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise FabricError(f"switches: {reply['error']}")
        return reply
