"""Congestion control of paced flows: a window that is always open, and the pace of the socket.

A flow that is paced at the rate of a plan needs no other control. Two things of Linux's own disturb
it. A window that is still small makes the flow wait for acknowledgements behind full queues. And a
pace that is raised (SO_MAX_PACING_RATE) counts only from the next acknowledgement on; here it does
from the next packet on, so that a socket can hold bytes until an instant: it sends a few bytes at a
low pace, which makes the kernel wait, and raises the pace meanwhile
(`moefabric.agents.engine.outgoing`).
"""

from contextlib import AbstractContextManager
from typing import Final

from moefabric.emulator.congestion import struct_ops
from moefabric.emulator.congestion.struct_ops import SOCKET
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux.bpf_assembler import Code, Jump, Label, Reg, Size
from moefabric.emulator.linux.btf import kernel_types

WINDOW: Final = 20_000
"""Packets; buffers of sender and receiver are smaller."""
ENDS: Final = 1
"""Bit of a pace: what is queued is the end of a transfer, whose last packet delays no other."""
TRAILER_BYTES: Final = 256
"""Bytes after the last packet of payload, at most."""
_NETWORK: Final = "inet_conn.icsk_inet.sk.__sk_common.skc_net.net"
_MOST_PACE: Final = "inet_conn.icsk_inet.sk.sk_max_pacing_rate"


def paced() -> AbstractContextManager[str]:
    """Register the congestion control; raises and yields as `congestion_control`."""
    programs = {
        "init": _open(),
        "ssthresh": [bpf.move(Reg.R0, WINDOW)],
        "undo_cwnd": [bpf.move(Reg.R0, WINDOW)],
        "cong_control": _open(),
        "min_tso_segs": _keep_pace(),
    }
    return struct_ops.congestion_control("paced", programs)


def _open() -> Code:
    """Keep the window open after an acknowledgement and after a loss."""
    yield struct_ops.write("snd_cwnd", WINDOW)


def _keep_pace() -> Code:
    """Set the pace to the socket's, and return the least packets of a frame.

    The kernel asks for them before it looks whether the pace lets the next frame leave.
    """
    least = kernel_types().offset("net", "ipv4.sysctl_tcp_min_tso_segs")
    pace, left = Reg.R7, Reg.R1
    yield bpf.load(Size.DOUBLE, pace, SOCKET, struct_ops.offset(_MOST_PACE))
    yield bpf.move(Reg.R2, pace)
    yield bpf.bit_and(Reg.R2, ENDS)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, 0, "set")
    yield struct_ops.read(left, "write_seq")
    yield struct_ops.read(Reg.R2, "snd_nxt")
    yield bpf.subtract(left, Reg.R2)
    yield struct_ops.read(Reg.R2, "mss_cache")
    yield bpf.add(Reg.R2, TRAILER_BYTES)
    yield bpf.jump_if(Jump.GREATER, left, Reg.R2, "set")
    yield bpf.move(pace, -1)
    yield Label("set")
    yield struct_ops.write(struct_ops.PACING_RATE, pace)
    yield bpf.load(Size.DOUBLE, Reg.R1, SOCKET, struct_ops.offset(_NETWORK))
    yield bpf.load(Size.BYTE, Reg.R0, Reg.R1, least)
