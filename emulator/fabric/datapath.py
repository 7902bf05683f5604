"""Datapaths, which forward packets in electrical switches: their choice, and switches in eBPF."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from moefabric.core.errors import FabricError, SpecError, UnsupportedError
from moefabric.emulator.fabric.plan import SwitchPlan
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.line_requests import ask_program
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.waiting import Deadline

ARGV: Final = (sys.executable, "-m", "moefabric.emulator.openflow_switch")
_NAME: Final = "the process of the switches"
PRIORITY: Final = ("nice", "-n", "-10")
"""Prefix of the switches' command: a higher priority, so that switches don't wait for servers.

Where a higher priority isn't allowed, the program starts with the normal one.
"""


class DatapathKind(StrEnum):
    """Kind of datapath, as in a run's manifest."""

    BPF = "bpf"
    KERNEL = "ovs-kernel"
    USER = "ovs-netdev"
    """ovs-vswitchd forwards each packet through sockets, whose buffers can overflow."""


SWITCH_OPTIONS: Final = ("auto", "bpf", "ovs")
"""Values of `switch` in a fabric file."""


class ElectricalSwitches(Protocol):
    """All electrical switches of a fabric, whose processes run; for callers in its namespace.

    Callers call the methods in the order below. Every method raises FabricError if it fails.
    """

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        """Make the switches and attach their ports, without rules and controllers."""

    def finish(self, deadline: Deadline) -> str | None:
        """Finish after the ports are shaped; return the features that this machine lacks."""

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Connect switches, named by bridge, to controllers that already listen."""


class SwitchProcess:
    """Switches of a process, by its standard input and output; an `ElectricalSwitches`.

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


def choose_datapath(switch: str = "auto") -> tuple[DatapathKind, str | None]:
    """Choose the datapath of this machine; return it, and why this kernel has no better one.

    Args:
        switch: `bpf`, `ovs` or `auto`. Open vSwitch forwards in the kernel if its module is
            available, else in user space. `auto` is bpf if that works, else ovs.

    Raises:
        SpecError: for another value.
        UnsupportedError: for `bpf` on a kernel that doesn't support it.
    """
    if switch not in SWITCH_OPTIONS:
        raise SpecError([("switch", f"{switch!r} is not one of {', '.join(SWITCH_OPTIONS)}")])
    reason = bpf_refusal() if switch != "ovs" else None
    if switch == "bpf" and reason:
        raise UnsupportedError(
            f"switch: bpf: {reason}; a kernel with CONFIG_NET_CLS_BPF, or `switch: ovs`"
        )
    if switch == "ovs" or reason:
        return DatapathKind.KERNEL if has_kernel_module() else DatapathKind.USER, reason
    return DatapathKind.BPF, None


@cache
def bpf_refusal() -> str | None:
    """Try eBPF and return why switches in eBPF are impossible here; None if they are possible."""
    from moefabric.emulator.openflow_switch.datapath.bpf_datapath import BpfDatapath, SharedProgram

    def attempt() -> None:
        with (
            contextlib.closing(SharedProgram(1)) as program,
            contextlib.closing(BpfDatapath(program, 0)) as switch,
        ):
            switch.attach({1: "lo"})

    try:
        namespaces.run_in_new(attempt)
    except FabricError as error:
        return str(error)
    return None


def has_kernel_module() -> bool:
    """Try to load Open vSwitch's kernel module and return whether it is loaded."""
    module = Path("/sys/module/openvswitch")
    if not module.exists():
        # If modprobe is missing or fails, the module stays absent.
        with contextlib.suppress(FabricError):
            run(["modprobe", "-q", "openvswitch"], timeout_s=5)
    return module.exists()
