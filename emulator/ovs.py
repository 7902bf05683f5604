"""Open vSwitch of one fabric: a database and a switching daemon of its own, in its run directory."""

import os
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emulator import buffers
from emulator.command import run
from emulator.datapath import DatapathKind
from emulator.plan import SwitchPlan
from emulator.processes import Starter
from emulator.waiting import Deadline
from moefabric.errors import FabricError

_SCHEMA: Final = Path("/usr/share/openvswitch/vswitch.ovsschema")
_FIRST: Final = ("nice", "-n", "-10")
"""A switch is a machine of its own and doesn't wait until servers have computed; where this isn't allowed it starts all the same."""
_PROBE_MS: Final = 5000
_BACKOFF_MS: Final = 1000
"""The least that OVS accepts between two attempts to reach a controller."""
_UNHEARD: Final = "ffffffffffff020000000000" + "88b5" + "00" * 46
"""A frame of an EtherType kept for experiments (IEEE 802), which nobody answers."""


@dataclass(frozen=True)
class Bridge:
    """A switch as OVS is told of it: ports are (interface, OpenFlow port number)."""

    name: str
    datapath_id: int
    ports: tuple[tuple[str, int], ...]


class OpenVSwitch:
    """The two daemons, and what they are told. The calling process is in the fabric's own namespace."""

    def __init__(self, folder: Path, datapath: DatapathKind) -> None:
        """Nothing is started yet; sockets, database and logs will be in `folder`."""
        self.folder, self.datapath = folder, datapath

    @property
    def environment(self) -> dict[str, str]:
        """What makes OVS's tools, and Mininet's use of them, speak with these daemons."""
        folder = str(self.folder)
        return dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"), folder)

    @property
    def _socket(self) -> Path:
        return self.folder / "db.sock"

    def database(self) -> list[str]:
        """Make the database; the argv of its server."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "conf.db"
        run(["ovsdb-tool", "create", str(file), str(_SCHEMA)])
        return ["ovsdb-server", str(file), f"--remote=punix:{self._socket}", "-vconsole:off", "-vfile:off"]

    def daemon(self, deadline: Deadline) -> list[str]:
        """Wait for the database and set what the switching daemon reads once, at its start; its argv."""
        deadline.until(self._answers, "ovsdb-server")
        self.tell(
            ["--no-wait", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true"], deadline
        )
        disabled = ["--disable-system"] if self.datapath.in_user_space else []
        log = self.folder / "ovs-vswitchd.log"
        return [
            *_FIRST,
            "ovs-vswitchd",
            f"unix:{self._socket}",
            *disabled,
            "-vconsole:off",
            "-vfile:warn",
            f"--log-file={log}",
        ]

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial, suppress(OSError):
            trial.connect(str(self._socket))
            return True
        return False

    def tell(self, words: Sequence[str], deadline: Deadline) -> str:
        """One ovs-vsctl transaction. FabricError where OVS refuses it or lasts too long."""
        left = max(1, int(deadline.left_s))
        argv = ["ovs-vsctl", f"--db=unix:{self._socket}", f"--timeout={left}", *words]
        return run(argv, timeout_s=left + 1, env={**os.environ, **self.environment})

    def make(self, bridges: Iterable[Bridge], deadline: Deadline) -> None:
        """Make all switches and their ports at once, without controllers and without rules."""
        made = list(bridges)
        words = ["--", "--id=@unmanaged", "create", "QoS", "type=linux-noop"]
        for bridge in made:
            words += self._bridge(bridge)
        self.tell(words, deadline)
        self._check_ports(made, deadline)

    def _bridge(self, bridge: Bridge) -> list[str]:
        words = ["--", "add-br", bridge.name, "--", "set", "Bridge", bridge.name]
        words += [f"datapath_type={self.datapath.bridge_type}", "fail_mode=secure", "protocols=OpenFlow13"]
        words += [f"other_config:datapath-id={bridge.datapath_id:016x}", "other_config:disable-in-band=true"]
        for interface, number in bridge.ports:
            words += ["--", "add-port", bridge.name, interface]
            words += ["--", "set", "Interface", interface, f"ofport_request={number}"]
            # With linux-noop OVS leaves the interface's qdisc alone, also when it starts again.
            words += ["--", "set", "Port", interface, "qos=@unmanaged"]
        return words

    def _check_ports(self, bridges: Sequence[Bridge], deadline: Deadline) -> None:
        """FabricError where a port has another number than asked for, which OVS doesn't call a fault."""
        wanted = {interface: number for bridge in bridges for interface, number in bridge.ports}
        shown = self.tell(
            ["--format=csv", "--no-headings", "--columns=name,ofport", "list", "Interface"], deadline
        )
        given = dict(line.replace('"', "").split(",", 1) for line in shown.splitlines())
        wrong = [
            f"{name} is port {given.get(name)}, not {n}"
            for name, n in wanted.items()
            if given.get(name) != str(n)
        ]
        if wrong:
            raise FabricError(f"Open vSwitch: {'; '.join(wrong)}")

    def widen(self, pid: int, bridge: Bridge, deadline: Deadline) -> str | None:
        """Enlarge the daemon's socket buffers where it needs them; why not, where they can't be."""
        if not self.datapath.in_user_space:
            return None
        # The sending socket is made with the first frame sent; one that says nothing to anybody is.
        port = bridge.ports[0][1]
        sent = [
            "packet-out",
            f"unix:{self.folder / bridge.name}.mgmt",
            f"in_port=controller packet={_UNHEARD} actions=output:{port}",
        ]
        run(["ovs-ofctl", "-O", "OpenFlow13", *sent], timeout_s=deadline.left_s + 1)
        try:
            buffers.enlarge(pid)
        except OSError as refused:
            return f"ovs-vswitchd's socket buffers are small ({refused.strerror or refused}), so frames may be lost"
        return None

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Tell switches of their controllers: bridge to (address, port)."""
        words = []
        for bridge, (address, port) in controllers.items():
            words += ["--", "set-controller", bridge, f"tcp:{address}:{port}"]
            words += [
                "--",
                "set",
                "Controller",
                bridge,
                f"inactivity_probe={_PROBE_MS}",
                f"max_backoff={_BACKOFF_MS}",
            ]
            words += ["connection_mode=out-of-band"]
        self.tell(words, deadline)


class OvsSwitches:
    """A fabric's switches as bridges of its own Open vSwitch; see `electrical.ElectricalSwitches`."""

    def __init__(self, folder: Path, datapath: DatapathKind, start: Starter) -> None:
        self._ovs, self._start = OpenVSwitch(folder, datapath), start
        self._made: list[Bridge] = []

    def begin(self, deadline: Deadline) -> None:
        os.environ.update(self._ovs.environment)
        self._start("ovsdb-server", self._ovs.database())
        self._switching = self._start("ovs-vswitchd", self._ovs.daemon(deadline))

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        self._made = [
            Bridge(switch.bridge, switch.datapath_id, tuple((end.name, end.port) for end in switch.ports))
            for switch in switches
        ]
        self._ovs.make(self._made, deadline)

    def settle(self, deadline: Deadline) -> str | None:
        return self._ovs.widen(self._switching.pid, self._made[0], deadline)

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        self._ovs.connect(controllers, deadline)


def version() -> str:
    """OVS's version, as its tool says it; empty where it isn't installed."""
    try:
        said = subprocess.run(
            ["ovs-vswitchd", "--version"], capture_output=True, text=True, timeout=5, check=False
        ).stdout
    except OSError:
        return ""
    return said.splitlines()[0].split()[-1] if said else ""
