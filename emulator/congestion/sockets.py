"""Members of TCP sockets that congestion controls in BPF read and write."""

from dataclasses import dataclass
from functools import cache
from typing import Final, Self

from moefabric.emulator.congestion.struct_ops import Program
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux.bpf_assembler import Instruction, Label, Reg, Size
from moefabric.emulator.linux.btf import KernelTypes, kernel_types

SOCKET: Final = Reg.R6
"""Where programs keep the socket."""
_OF_TCP: Final = (
    "delivered",
    "delivered_ce",
    "ecn_flags",
    "lost",
    "mss_cache",
    "packets_out",
    "rate_delivered",
    "rate_interval_us",
    "rcv_nxt",
    "retrans_out",
    "snd_cwnd",
    "snd_nxt",
    "snd_ssthresh",
    "snd_una",
    "srtt_us",
)
_MINIMUM_VALUE: Final = 4
"""Offset of the value in the first sample of `struct minmax`, after its time."""


@dataclass(frozen=True)
class SocketLayout:
    """Offsets of a socket's members in bytes.

    Attributes:
        tcp: Members of `struct tcp_sock`, by name; `min_rtt_us` is the value of `rtt_min`, and
            `rtt_us` the last sample, which RACK keeps.
        private: `icsk_ca_priv`, 104 bytes that belong to the congestion control.
        ack_pending: `icsk_ack.pending`.
        pacing_rate: `sk_pacing_rate`, in bytes a second.
        pacing_status: `sk_pacing_status`.
    """

    tcp: dict[str, int]
    private: int
    ack_pending: int
    pacing_rate: int
    pacing_status: int

    @classmethod
    def of(cls, types: KernelTypes) -> Self:
        """Return the layout of a kernel's sockets; raises as `KernelTypes.offset`."""
        tcp = {name: types.offset("tcp_sock", name) for name in _OF_TCP}
        tcp["min_rtt_us"] = types.offset("tcp_sock", "rtt_min") + _MINIMUM_VALUE
        tcp["rtt_us"] = types.offset("tcp_sock", "rack.rtt_us")
        return cls(
            tcp,
            types.offset("inet_connection_sock", "icsk_ca_priv"),
            types.offset("inet_connection_sock", "icsk_ack.pending"),
            types.offset("sock", "sk_pacing_rate"),
            types.offset("sock", "sk_pacing_status"),
        )

    def read(self, register: Reg, member: str) -> Instruction:
        """Load a member of `struct tcp_sock`: 4 bytes, or 1 of its flags."""
        return bpf.load(_size(member), register, SOCKET, self.tcp[member])

    def write(self, member: str, value: Reg) -> Instruction:
        """Store a member of `struct tcp_sock` that congestion controls may change."""
        return bpf.store(_size(member), SOCKET, self.tcp[member], value)


def _size(member: str) -> Size:
    return Size.BYTE if member == "ecn_flags" else Size.WORD


@cache
def socket_layout() -> SocketLayout:
    """Return the layout of the sockets of the kernel that runs; raises as `kernel_types`."""
    return SocketLayout.of(kernel_types())


def socket_function(program: Program) -> Program:
    """Yield a function whose first argument is the socket.

    The program finds the socket in SOCKET. It returns R0 at its end, and may jump to `end`.
    """
    yield bpf.load(Size.DOUBLE, SOCKET, Reg.R1)
    yield from program
    yield Label("end")
    yield bpf.exit_program()
