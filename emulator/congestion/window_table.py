"""A congestion control whose windows a process decides: the kernel reports, the process writes.

Each socket has a row of a table in memory that the kernel and the process share. At each
acknowledgement the kernel copies its measurements there, and takes the window and the pacing rate.
Losses change nothing by themselves.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric.emulator.congestion import struct_ops
from moefabric.emulator.congestion.struct_ops import SOCKET
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.linux.bpf_assembler import BpfError, Code, Jump, Label, Reg, Size
from moefabric.emulator.linux.bpf_syscalls import Memory

ROWS: Final = 4096
PROBES: Final = 32
"""Rows that a socket tries before it does without."""
MEASURED: Final = (
    "srtt_us",  # eight times the smoothed round-trip time
    "min_rtt_us",
    "snd_cwnd",
    "packets_out",
    "retrans_out",
    "lost",
    "delivered",
    "rate_delivered",
    "rate_interval_us",
    "mss_cache",
)
"""Members of `struct tcp_sock` that a row has."""
ROW: Final = np.dtype(
    [("socket", "u8"), ("pacing_rate", "u8"), ("rtt_sum_us", "u8"), ("acknowledgements", "u8")]
    + [("window", "u4")]
    + [(name, "u4") for name in MEASURED]
    + [("unused", "u4")]
)
"""A row: the number of its socket or 0, bytes a second or 0, the sum of its samples of the
round-trip time and how many they are, packets or 0, and measurements."""
_NEXT: Final = 0
"""Offset of the number of the last socket; the rows follow."""
_FIRST_ROW: Final = 64
_PACING_NEEDED: Final = 1
"""SK_PACING_NEEDED: TCP itself paces."""


class WindowTable:
    """The table.

    Attributes:
        name: Name of the congestion control.
    """

    def __init__(self, name: str, memory: Memory) -> None:
        """Use the memory of a registered congestion control."""
        self.name, self._memory = name, memory

    def measured(self) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Return the numbers of the rows that have a socket, and copies of these rows."""
        rows = np.frombuffer(self._memory.view, ROW, ROWS, _FIRST_ROW)
        used = np.flatnonzero(rows["socket"])
        return used, rows[used]

    def decide(
        self, numbers: NDArray[np.int64], windows: NDArray[Any], pacing: NDArray[Any]
    ) -> None:
        """Set the windows in packets and the pacing rates in bytes a second of rows.

        They hold from the socket's next acknowledgement; a window of 0 leaves it as it is.
        """
        rows = np.frombuffer(self._memory.view, ROW, ROWS, _FIRST_ROW)
        rows["pacing_rate"][numbers] = pacing
        rows["window"][numbers] = windows


@contextmanager
def window_table(kind: str) -> Iterator[WindowTable]:
    """Register a congestion control with a table; raises as `congestion_control`."""
    length = _FIRST_ROW + ROWS * ROW.itemsize
    with ExitStack() as undo:
        try:
            memory = Memory(bpf_calls.create_memory("windows", length), length)
        except BpfError as error:
            raise struct_ops.unsupported(kind, error) from error
        undo.callback(memory.close)
        programs = {
            "init": _init(memory.fd),
            "release": _release(memory.fd),
            "cong_control": _control(memory.fd),
            "ssthresh": _window(),
            "undo_cwnd": _window(),
        }
        name = undo.enter_context(struct_ops.congestion_control(kind, programs))
        yield WindowTable(name, memory)


def _field(name: str) -> int:
    fields = ROW.fields
    assert fields is not None
    return int(fields[name][1])


def _row(memory_fd: int, number: Reg, row: Reg) -> Code:
    """Set `row` to the address of a row; the number is taken modulo ROWS."""
    yield bpf.move(Reg.R2, number)
    yield bpf.bit_and(Reg.R2, ROWS - 1)
    yield bpf.multiply(Reg.R2, ROW.itemsize)
    yield bpf.address(row, memory_fd, _FIRST_ROW)
    yield bpf.add(row, Reg.R2)


def _init(memory_fd: int) -> Code:
    """Take a free row; a socket's private memory has its number plus 1, or 0."""
    number, row, socket = Reg.R7, Reg.R8, Reg.R9
    yield bpf.address(Reg.R1, memory_fd, _NEXT)
    yield bpf.move(number, 1)
    yield bpf.fetch_and_add(Reg.R1, 0, number)
    yield bpf.move(socket, number)
    yield bpf.add(socket, 1)
    for _ in range(PROBES):
        yield from _row(memory_fd, number, row)
        yield bpf.move(Reg.R0, 0)
        yield bpf.compare_and_swap(row, 0, socket)
        yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "taken")
        yield bpf.add(number, 1)
    yield bpf.jump("end")
    yield Label("taken")
    yield bpf.store(Size.WORD, row, _field("window"), 0)
    yield bpf.store(Size.DOUBLE, row, _field("rtt_sum_us"), 0)
    yield bpf.store(Size.DOUBLE, row, _field("acknowledgements"), 0)
    yield bpf.bit_and(number, ROWS - 1)
    yield bpf.add(number, 1)
    yield bpf.store(Size.DOUBLE, SOCKET, struct_ops.offset(struct_ops.PRIVATE), number)


def _release(memory_fd: int) -> Code:
    yield from _own_row(memory_fd)
    yield bpf.store(Size.DOUBLE, Reg.R8, 0, 0)


def _own_row(memory_fd: int) -> Code:
    """Set R8 to the socket's row, or jump to `end`."""
    yield bpf.load(Size.DOUBLE, Reg.R7, SOCKET, struct_ops.offset(struct_ops.PRIVATE))
    yield bpf.jump_if(Jump.EQUAL, Reg.R7, 0, "end")
    yield bpf.add(Reg.R7, -1)
    yield from _row(memory_fd, Reg.R7, Reg.R8)


def _control(memory_fd: int) -> Code:
    """Report, and take the window and the pacing rate."""
    row = Reg.R8
    yield from _own_row(memory_fd)
    for name in MEASURED:
        yield struct_ops.read(Reg.R1, name)
        yield bpf.store(Size.WORD, row, _field(name), Reg.R1)
    yield struct_ops.read(Reg.R2, "rtt_us")
    for name, growth in (("rtt_sum_us", Reg.R2), ("acknowledgements", 1)):
        yield bpf.load(Size.DOUBLE, Reg.R1, row, _field(name))
        yield bpf.add(Reg.R1, growth)
        yield bpf.store(Size.DOUBLE, row, _field(name), Reg.R1)
    yield bpf.load(Size.WORD, Reg.R1, row, _field("window"))
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "end")
    yield struct_ops.write("snd_cwnd", Reg.R1)
    yield bpf.load(Size.DOUBLE, Reg.R1, row, _field("pacing_rate"))
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "end")
    yield struct_ops.write(struct_ops.PACING_RATE, Reg.R1)
    yield struct_ops.write(struct_ops.PACING_STATUS, _PACING_NEEDED)


def _window() -> Code:
    """Yield the instructions that return the window unchanged."""
    yield struct_ops.read(Reg.R0, "snd_cwnd")
