"""Open vSwitch of one fabric: its own database and switching daemon, in the run directory.

When ovs-vswitchd forwards in user space, it needs larger socket buffers. It sends all frames by one
AF_PACKET socket. When that socket's buffer (net.core.wmem_default, 208 kB) is full of frames that
wait for a shaped link, the socket drops frames silently, and TCP then waits 200 ms. A receiving
socket holds only three frames of 64 kB. The sysctls of buffer sizes belong to the whole machine and
are read-only in other namespaces. So `enlarge_buffers` duplicates the daemon's sockets by
pidfd_getfd(2) and sets SO_SNDBUFFORCE (socket(7); CAP_NET_ADMIN).
"""

import ctypes
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric.datapath import PRIORITY, DatapathKind
from moefabric.emulator.fabric.plan import SwitchPlan
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.processes import ChildProcesses
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.waiting import Deadline

_SCHEMA: Final = Path("/usr/share/openvswitch/vswitch.ovsschema")
_PROBE_MS: Final = 5000
_BACKOFF_MS: Final = 1000
"""Time between two attempts to reach a controller: the shortest that OVS allows."""
_TEST_FRAME: Final = "ffffffffffff020000000000" + "88b5" + "00" * 46
"""Frame with a local experimental EtherType (IEEE Std 802), which no host answers."""
_SEND_BYTES: Final = 64 << 20
_RECEIVE_BYTES: Final = 32 << 20
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_PIDFD_GETFD: Final = 438
"""Number of the system call on every architecture except alpha."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class OvsSwitches:
    """The two daemons and their configuration; implements `datapath.ElectricalSwitches`."""

    def __init__(self, folder: Path, datapath: DatapathKind, tls: ControlTls | None = None) -> None:
        """Start nothing yet; sockets, database and logs will be in `folder`."""
        self.folder, self._datapath, self.tls = folder, datapath, tls
        self._switches: Sequence[SwitchPlan] = ()

    def start(self, processes: ChildProcesses, deadline: Deadline) -> None:
        """Start database and switching daemon."""
        os.environ.update(self.environment)
        processes.start("ovsdb-server", self.create_database())
        self._daemon = processes.start("ovs-vswitchd", self.configure_daemon(deadline))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which OVS's tools and Mininet find these daemons."""
        folder = str(self.folder)
        return dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"), folder)

    @property
    def _database_socket(self) -> Path:
        return self.folder / "db.sock"

    def create_database(self) -> list[str]:
        """Create the database and return the argv of its server."""
        self.folder.mkdir(exist_ok=True)
        file = str(self.folder / "conf.db")
        run(["ovsdb-tool", "create", file, str(_SCHEMA)])
        remote = f"--remote=punix:{self._database_socket}"
        return ["ovsdb-server", file, remote, "-vconsole:off", "-vfile:off"]

    def configure_daemon(self, deadline: Deadline) -> list[str]:
        """Wait for the database, write ovs-vswitchd's options to it, and return its argv."""
        deadline.wait_for(self._database_listens, "ovsdb-server")
        offload = "other_config:userspace-tso-enable=true"
        self.vsctl(["--no-wait", "set", "Open_vSwitch", ".", offload], deadline)
        return [
            *(*PRIORITY, "ovs-vswitchd", f"unix:{self._database_socket}"),
            *(["--disable-system"] if self._datapath is DatapathKind.USER else []),
            *("-vconsole:off", "-vfile:warn", f"--log-file={self.folder / 'ovs-vswitchd.log'}"),
        ]

    def _database_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, suppress(OSError):
            client.connect(str(self._database_socket))
            return True
        return False

    def vsctl(self, words: Sequence[str], deadline: Deadline) -> str:
        """Run one ovs-vsctl transaction and return its output.

        Raises:
            FabricError: if OVS refuses the transaction or exceeds the deadline.
        """
        timeout_s = max(1, int(deadline.remaining_s))
        argv = ["ovs-vsctl", f"--db=unix:{self._database_socket}", f"--timeout={timeout_s}", *words]
        return run(argv, timeout_s=timeout_s + 1, env={**os.environ, **self.environment})

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        """Make all switches and their ports at once, without controllers and rules.

        Raises:
            FabricError: if a port has another number than requested; OVS reports no error.
        """
        self._switches = switches
        words = ["--", "--id=@unmanaged", "create", "QoS", "type=linux-noop"]
        for switch in switches:
            words += self._bridge_words(switch)
        self.vsctl(words, deadline)
        table = ["--format=csv", "--no-headings", "--columns=name,ofport", "list", "Interface"]
        lines = self.vsctl(table, deadline).replace('"', "").splitlines()
        numbers = dict(line.split(",", 1) for line in lines)
        ports = [port for switch in switches for port in switch.ports]
        if wrong := [
            f"{port.name} is port {numbers.get(port.name)}, not {port.port}"
            for port in ports
            if numbers.get(port.name) != str(port.port)
        ]:
            raise FabricError(f"Open vSwitch: {'; '.join(wrong)}")

    def _bridge_words(self, switch: SwitchPlan) -> list[str]:
        kind = "netdev" if self._datapath is DatapathKind.USER else "system"
        words = [
            *("--", "add-br", switch.bridge, "--", "set", "Bridge", switch.bridge),
            *(f"datapath_type={kind}", "fail_mode=secure", "protocols=OpenFlow13"),
            f"other_config:datapath-id={switch.datapath_id:016x}",
            "other_config:disable-in-band=true",
        ]
        for port in switch.ports:
            words += ["--", "add-port", switch.bridge, port.name]
            words += ["--", "set", "Interface", port.name, f"ofport_request={port.port}"]
            # With linux-noop, OVS doesn't change the interface's qdisc, even after a restart.
            words += ["--", "set", "Port", port.name, "qos=@unmanaged"]
        return words

    def finish(self, deadline: Deadline) -> str | None:
        """Enlarge the daemon's socket buffers if it forwards in user space.

        Returns:
            The reason why the buffers stay small; None if they are large, or need not be.
        """
        if self._datapath is not DatapathKind.USER:
            return None
        # The daemon opens its sending socket for the first frame that it sends.
        first = self._switches[0]
        packet_out = [
            *("packet-out", f"unix:{self.folder / first.bridge}.mgmt"),
            f"in_port=controller packet={_TEST_FRAME} actions=output:{first.ports[0].port}",
        ]
        run(["ovs-ofctl", "-O", "OpenFlow13", *packet_out], timeout_s=deadline.remaining_s + 1)
        try:
            enlarge_buffers(self._daemon.pid)
        except OSError as error:
            reason = error.strerror or error
            return f"ovs-vswitchd's socket buffers are small ({reason}), so frames may be lost"
        return None

    def connect(self, controllers: Mapping[str, tuple[str, int]], deadline: Deadline) -> None:
        """Connect bridges, by name, to the addresses and ports of controllers."""
        tls = self.tls
        words = ["--", "set-ssl", tls.key, tls.certificate, tls.ca] if tls else []
        protocol = "ssl" if tls else "tcp"
        for bridge, (address, port) in controllers.items():
            words += ["--", "set-controller", bridge, f"{protocol}:{address}:{port}"]
            words += ["--", "set", "Controller", bridge, f"inactivity_probe={_PROBE_MS}"]
            words += [f"max_backoff={_BACKOFF_MS}", "connection_mode=out-of-band"]
        self.vsctl(words, deadline)


def version() -> str:
    """Return the version of the installed OVS; empty if there is none."""
    try:
        return run(["ovs-vswitchd", "--version"], timeout_s=5).splitlines()[0].split()[-1]
    except FabricError:
        return ""


def enlarge_buffers(pid: int) -> int:
    """Enlarge the buffers of all AF_PACKET sockets of a process; return their number.

    Raises:
        OSError: if that isn't allowed.
    """
    if platform.machine() == "alpha":
        raise OSError("pidfd_getfd has another number here")
    return sum(_enlarge(sock) for sock in _sockets(pid))


def _sockets(pid: int) -> Iterator[socket.socket]:
    """Yield duplicates of a process's sockets."""
    pidfd = os.pidfd_open(pid)
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = ""
            with suppress(FileNotFoundError):  # closed meanwhile
                target = str(link.readlink())
            if target.startswith("socket:"):
                fd = _LIBC.syscall(_PIDFD_GETFD, pidfd, int(link.name), 0)
                if fd < 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                with socket.socket(fileno=fd) as sock:
                    yield sock
    finally:
        os.close(pidfd)


def _enlarge(sock: socket.socket) -> bool:
    """Enlarge the buffers of a packet socket; return False for other sockets."""
    if sock.family != socket.AF_PACKET:
        return False
    for force, option, size, name in (
        (_SO_SNDBUFFORCE, socket.SO_SNDBUF, _SEND_BYTES, "send"),
        (_SO_RCVBUFFORCE, socket.SO_RCVBUF, _RECEIVE_BYTES, "receive"),
    ):
        sock.setsockopt(socket.SOL_SOCKET, force, size)
        # The kernel reports twice the size, because it counts its own overhead.
        if sock.getsockopt(socket.SOL_SOCKET, option) < size:
            raise OSError(f"the {name} buffer stayed small")
    return True
