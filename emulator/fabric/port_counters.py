"""Counters of the ports of a running fabric, for any process of the fabric's user.

The fabric process hands out descriptors once: a netlink socket of its namespace, where all NICs of
all servers and all uplinks of leaves are, and the memory of each crossbar. A reading is then one
request to the kernel and a copy of some memory. It disturbs neither the fabric process nor the
OCS's process. Other machines read the counters of their ports themselves.
"""

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.errors import FabricError, MachineLossError
from moefabric.core.port_counts import INTO_OCS, OUT_OF_OCS, PortReading
from moefabric.emulator.crossbar.bpf_crossbar import Layout
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.fabric.daemon_protocol import REPLY_S, connected
from moefabric.emulator.fabric.other_machines import ask_parts
from moefabric.emulator.linux import netlink
from moefabric.emulator.linux.bpf_syscalls import Memory
from moefabric.emulator.ocs.fd_handoff import receive_handoff
from moefabric.runtime.run_directory import RunDirectory

ETHERNET_BYTES: Final = 14
"""Header that a tunnel doesn't count, unlike other interfaces."""
_STATS: Final = struct.Struct("=BBHII")  # struct if_stats_msg
_GETSTATS: Final = 94
_LINK_64: Final = 1
"""Filter and attribute of struct rtnl_link_stats64."""
_INDEX_AT: Final = netlink.HEADER.size + 4
_COUNTERS_AT: Final = netlink.HEADER.size + _STATS.size + 4
_REPLY_BYTES: Final = 1 << 18
_Counts = NDArray[np.int64]


class _Crossbar:
    """Counters of one crossbar: rows of a reading, and where their ports' counters are."""

    def __init__(self, size: int, ports: Mapping[int, int], fd: int) -> None:
        """Map the memory of a crossbar.

        Args:
            size: Number of its inputs.
            ports: Input port by row of the readings.
            fd: Descriptor of the memory.
        """
        layout = Layout(Ports(size))
        self.memory = Memory(fd, layout.length)
        self.rows = np.array(list(ports), np.intp)
        self._inputs = np.array(list(ports.values()), np.intp)
        view, words = self.memory.view, Layout.COUNTERS.size // 8
        inputs = np.frombuffer(view, np.int64, words * (size + 1), layout.counters(0))
        outputs = np.frombuffer(view, np.int64, 2 * (2 * size + 1), layout.output_counters(0))
        self._input_counters = inputs.reshape(-1, words)
        self._output_counters = outputs.reshape(-1, 2)[size:]

    def read(self, octets: "np.ndarray[Any, Any]", frames: "np.ndarray[Any, Any]") -> None:
        """Fill the columns of the OCS ports."""
        inputs, outputs = self._input_counters[self._inputs], self._output_counters[self._inputs]
        frames[self.rows, INTO_OCS], octets[self.rows, INTO_OCS] = inputs[:, 0], inputs[:, 1]
        frames[self.rows, OUT_OF_OCS], octets[self.rows, OUT_OF_OCS] = outputs[:, 0], outputs[:, 1]

    def close(self) -> None:
        del self._input_counters, self._output_counters
        self.memory.close()


class EmulatedPortCounters:
    """Counters of a running fabric; implements `moefabric.core.protocols.PortCounters`."""

    def __init__(
        self,
        run_dir: RunDirectory,
        ports: Sequence[str] | None = None,
        *,
        lost_are_zero: bool = False,
        reply_s: float = REPLY_S,
    ) -> None:
        """Ask the fabric process for the descriptors.

        Args:
            run_dir: The run directory of the fabric.
            ports: Names of NICs and uplinks in the order of the rows of readings. Default: those
                on this machine.
            lost_are_zero: Whether the counters of lost machines' ports are 0, instead of an error.
            reply_s: How long to wait for the descriptors.

        Raises:
            FabricError: If the fabric doesn't run, or doesn't answer in time.
        """
        with connected(run_dir, reply_s) as connection:
            connection.send({"do": "counters"})
            name = f"{run_dir.name}: counters of ports"
            connection.wait_reply()
            facts, (kernel_fd, *crossbar_fds) = receive_handoff(connection.link, name)
        self._run_dir, self._lost_are_zero = run_dir, lost_are_zero
        self.ports = facts["ports"] if ports is None else list(ports)
        interfaces = dict(zip(facts["ports"], facts["interfaces"], strict=True))
        local = [port for port in self.ports if port in interfaces]
        self._has_remote = len(local) < len(self.ports)
        self._interfaces = np.array([interfaces[port] for port in local], np.int64)
        row_of = self._row_of = {port: row for row, port in enumerate(self.ports)}
        self._rows = np.array([row_of[port] for port in local], np.intp)
        tunnels = [row_of[port] for port in facts["tunnels"] if port in row_of]
        self._tunnels = np.array(tunnels, np.intp)
        self._crossbars = list[_Crossbar]()
        with ExitStack() as undo:
            self._kernel = undo.enter_context(socket.socket(fileno=kernel_fd))
            for fd in crossbar_fds:
                undo.callback(os.close, fd)
            for entry, fd in zip(facts["crossbars"], crossbar_fds, strict=True):
                inputs = {row_of[n]: port for n, port in entry["inputs"].items() if n in row_of}
                self._crossbars.append(_Crossbar(entry["ports"], inputs, fd))
            undo.pop_all()

    def read(self) -> PortReading:
        """Read all counters.

        Raises:
            FabricError: If the kernel refuses, or an interface is gone.
        """
        shape = len(self.ports), 4
        octets, frames = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for crossbar in self._crossbars:
            crossbar.read(octets, frames)
        indices, counts = _link_counters(self._kernel)
        order = np.argsort(indices)
        rows = order[
            np.searchsorted(indices, self._interfaces, sorter=order).clip(max=len(order) - 1)
        ]
        if not np.array_equal(indices[rows], self._interfaces):
            raise FabricError("counters: an interface of the fabric is gone")
        frames[self._rows, :2], octets[self._rows, :2] = counts[rows, 1::-1], counts[rows, 3:1:-1]
        octets[self._tunnels, :2] += ETHERNET_BYTES * frames[self._tunnels, :2]
        if self._has_remote:
            self._read_others(octets, frames)
        return PortReading(octets, frames)

    def _read_others(self, octets: "np.ndarray[Any, Any]", frames: "np.ndarray[Any, Any]") -> None:
        """Fill the rows of other machines' ports."""
        replies = ask_parts(self._run_dir, {"do": "counts"})
        missing = len(self.ports) - len(self._rows)
        for part in replies.parts.values():
            for number, port in enumerate(part.get("ports", ())):
                if (row := self._row_of.get(port)) is not None:
                    octets[row], frames[row] = part["bytes"][number], part["frames"][number]
                    missing -= 1
        if missing and not (replies.lost and self._lost_are_zero):
            error = MachineLossError if replies.lost else FabricError
            raise error(f"counters: {'; '.join(replies.faults) or 'ports are missing'}")

    def close(self) -> None:
        """Release the descriptors."""
        self._kernel.close()
        for crossbar in self._crossbars:
            crossbar.close()


def _link_counters(kernel: socket.socket) -> tuple[_Counts, _Counts]:
    """Read the counters of all interfaces of a namespace; this needs no privilege.

    A dump of RTM_GETSTATS costs a tenth of a dump of RTM_GETLINK, because it holds counters only.
    All its messages are equally long, so that numpy reads them at once.

    Args:
        kernel: A netlink socket (NETLINK_ROUTE) of the namespace.

    Returns:
        The interfaces' indices, and for each interface its frames in, frames out, bytes in and
        bytes out.

    Raises:
        FabricError: If the kernel refuses.
    """
    body = _STATS.pack(socket.AF_UNSPEC, 0, 0, 0, _LINK_64)
    kernel.send(netlink.Request("", "", _GETSTATS, netlink.DUMP, body).encode(0))
    parts, ended = list[NDArray[np.uint8]](), False
    while not ended:
        reply = kernel.recv(_REPLY_BYTES)
        length, kind, *_ = netlink.HEADER.unpack_from(reply)
        if kind == netlink.ERROR:
            (code,) = struct.unpack_from("=i", reply, netlink.HEADER.size)
            raise FabricError(f"counters of interfaces: the kernel refuses them (errno {-code})")
        if kind == netlink.DONE:
            break
        count, rest = divmod(len(reply), length)
        parts.append(np.frombuffer(reply, np.uint8, count * length).reshape(count, length))
        ended = bool(rest)
    rows = np.concatenate(parts)
    indices = rows[:, _INDEX_AT : _INDEX_AT + 4].copy().view(np.uint32)[:, 0].astype(np.int64)
    return indices, rows[:, _COUNTERS_AT : _COUNTERS_AT + 32].copy().view(np.int64)
