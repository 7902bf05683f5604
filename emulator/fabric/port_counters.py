"""Counters of the NICs and OCS ports of a running fabric, for any process of its user.

The fabric process hands out descriptors once: a netlink socket of its namespace, where all NICs of
all servers are, and the memory of each crossbar. A reading is then one request to the kernel and a
copy of some memory. It disturbs neither the fabric process nor the OCS's process.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from moefabric.config.run_directory import RunDirectory
from moefabric.core.errors import FabricError
from moefabric.core.port_counts import INTO_OCS, OUT_OF_OCS, PortReading
from moefabric.emulator.crossbar.bpf_crossbar import Layout
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.fabric.daemon_protocol import DaemonConnection, not_running_error
from moefabric.emulator.linux.bpf_syscalls import Memory
from moefabric.emulator.linux.link_counters import read_link_counters
from moefabric.emulator.ocs.fd_handoff import Facts, receive_handoff


class _Crossbar:
    """Counters of one crossbar: rows of a reading, and where their ports' counters are."""

    def __init__(self, size: int, ports: Mapping[int, int], fd: int) -> None:
        """Map the memory of a crossbar of `size` ports; `ports` are inputs by row."""
        layout = Layout(Ports(size, size))
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

    def __init__(self, run_dir: RunDirectory, nics: Sequence[str]) -> None:
        """Ask the fabric process for the descriptors.

        Args:
            run_dir: The run directory of the fabric.
            nics: Names of the NICs in the order of the rows of readings.

        Raises:
            FabricError: If the fabric doesn't run.
        """
        facts, descriptors = _request(run_dir)
        with ExitStack() as undo:
            for fd in descriptors[1:]:
                undo.callback(_close, fd)
            self._kernel = socket.socket(fileno=descriptors[0])
            undo.callback(self._kernel.close)
            interfaces = dict(zip(facts["nics"], facts["interfaces"], strict=True))
            self._interfaces = np.array([interfaces[nic] for nic in nics], np.int64)
            row_of = {nic: row for row, nic in enumerate(nics)}
            self._crossbars = [
                _Crossbar(entry["ports"], {row_of[n]: p for n, p in entry["inputs"].items()}, fd)
                for entry, fd in zip(facts["crossbars"], descriptors[1:], strict=True)
            ]
            self._counts_light = bool(facts["counts_light"])
            undo.pop_all()

    def read(self) -> PortReading:
        """Read all counters.

        Raises:
            FabricError: If the kernel refuses, or an interface is gone.
        """
        shape = len(self._interfaces), 4
        octets, frames = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for crossbar in self._crossbars:
            crossbar.read(octets, frames)
        indices, counts = read_link_counters(self._kernel)
        order = np.argsort(indices)
        rows = order[
            np.searchsorted(indices, self._interfaces, sorter=order).clip(max=len(order) - 1)
        ]
        if not np.array_equal(indices[rows], self._interfaces):
            raise FabricError("counters: an interface of the fabric is gone")
        frames[:, :2], octets[:, :2] = counts[rows, 1::-1], counts[rows, 3:1:-1]
        return PortReading(octets, frames, self._counts_light)

    def close(self) -> None:
        """Release the descriptors."""
        self._kernel.close()
        for crossbar in self._crossbars:
            crossbar.close()


def _close(fd: int) -> None:
    with suppress(OSError):
        os.close(fd)


def _request(run_dir: RunDirectory) -> tuple[Facts, list[int]]:
    try:
        with DaemonConnection(run_dir) as connection:
            connection.send({"do": "counters"})
            return receive_handoff(connection.socket)
    except OSError as error:
        raise not_running_error(run_dir) from error
