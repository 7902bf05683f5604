"""DCTCP (RFC 8257) as a congestion control in BPF.

The sender estimates the share of bytes that met congestion, and cuts its window by half that share
once in a round trip. The receiver tells each change of the mark at once. Between two marks the
window grows as Reno's. A connection without ECN is left with Reno.
"""

from contextlib import AbstractContextManager
from typing import Final

from moefabric.emulator.congestion import struct_ops
from moefabric.emulator.congestion.struct_ops import SOCKET
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux.bpf_assembler import Code, Instruction, Jump, Label, Reg, Size
from moefabric.emulator.linux.btf import Kind, kernel_types

ONE: Final = 1 << 10
"""Alpha, the share of marked bytes, is a fixed-point number; it starts at 1 (section 4.2)."""
GAIN_SHIFT: Final = 4
"""Gain g = 1/16 of the moving average (section 4.2)."""

# Offsets of DCTCP's own variables in a socket's private memory.
ALPHA, ROUND_END, ROUND_DELIVERED, ROUND_MARKED = 0, 4, 8, 12
WINDOW_BEFORE_CUT, LAST_RECEIVED, IS_MARKED = 16, 20, 24

_ECN_NEGOTIATED: Final = 1 << 0 | 1 << 4
"""TCP_ECN_MODE_RFC3168 and TCP_ECN_MODE_ACCECN of `ecn_flags`."""
_DEMAND_CWR: Final = 1 << 2
"""TCP_ECN_DEMAND_CWR of `ecn_flags`: acknowledgements carry ECE."""
_ACK_TIMER, _ACK_NOW = 1 << 1, 1 << 4
"""ICSK_ACK_TIMER and ICSK_ACK_NOW of `icsk_ack.pending`."""
_EVENT_LOSS, _EVENT_NOT_MARKED, _EVENT_MARKED = 3, 4, 5
"""CA_EVENT_LOSS, CA_EVENT_ECN_NO_CE and CA_EVENT_ECN_IS_CE."""
_RECOVERY: Final = 3
"""TCP_CA_Recovery."""


def dctcp() -> AbstractContextManager[str]:
    """Register DCTCP; raises and yields as `congestion_control`."""
    grow = kernel_types().number(Kind.FUNCTION, "tcp_reno_cong_avoid")
    programs = {
        "init": _init(),
        "ssthresh": _threshold(),
        "in_ack_event": _acknowledged(),
        "set_state": _state(),
        "cwnd_event": _event(),
        "undo_cwnd": _undo(),
        "cong_avoid": _avoid(grow),
    }
    return struct_ops.congestion_control("dctcp", programs, struct_ops.NEEDS_ECN)


def _own(register: Reg, variable: int) -> Instruction:
    return bpf.load(Size.WORD, register, SOCKET, struct_ops.offset(struct_ops.PRIVATE) + variable)


def _set_own(variable: int, value: Reg | int) -> Instruction:
    return bpf.store(Size.WORD, SOCKET, struct_ops.offset(struct_ops.PRIVATE) + variable, value)


def _growth(register: Reg, member: str, earlier: int) -> Code:
    """Set a register to the growth of a counter of 32 bits, in its upper half."""
    yield struct_ops.read(register, member)
    yield _own(Reg.R2, earlier)
    yield bpf.subtract(register, Reg.R2)
    yield bpf.shift_left(register, 32)


def _new_round() -> Code:
    """Begin to count bytes of the next round trip."""
    counted = {"snd_nxt": ROUND_END, "delivered": ROUND_DELIVERED, "delivered_ce": ROUND_MARKED}
    for member, variable in counted.items():
        yield struct_ops.read(Reg.R1, member)
        yield _set_own(variable, Reg.R1)


def _init() -> Code:
    yield _set_own(ALPHA, ONE)
    yield struct_ops.read(Reg.R1, "rcv_nxt")
    yield _set_own(LAST_RECEIVED, Reg.R1)
    yield _set_own(IS_MARKED, 0)
    yield _set_own(WINDOW_BEFORE_CUT, 0)
    yield from _new_round()


def _threshold() -> Code:
    """Return the window after a cut: (1 - alpha / 2) cwnd (section 3.3)."""
    yield struct_ops.read(Reg.R0, "snd_cwnd")
    yield _set_own(WINDOW_BEFORE_CUT, Reg.R0)
    yield _own(Reg.R1, ALPHA)
    yield bpf.multiply(Reg.R1, Reg.R0)
    yield bpf.shift_right(Reg.R1, 11)
    yield bpf.subtract(Reg.R0, Reg.R1)
    yield from _at_least_two(Reg.R0)


def _at_least_two(register: Reg) -> Code:
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, register, 2, "enough")
    yield bpf.move(register, 2)
    yield Label("enough")


def _acknowledged() -> Code:
    """Update alpha when all bytes of a round trip are acknowledged (section 3.3, steps 5 to 8)."""
    alpha, marked, delivered = Reg.R7, Reg.R8, Reg.R9
    yield struct_ops.read(Reg.R1, "ecn_flags")
    yield bpf.jump_if(Jump.ANY_BIT, Reg.R1, _ECN_NEGOTIATED, "has ECN")
    yield bpf.jump("end")  # alpha stays 1, which halves the window at a loss
    yield Label("has ECN")
    yield from _growth(Reg.R1, "snd_una", ROUND_END)
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R1, 0, "end")  # as sequence numbers are modulo 2^32
    for register, member, earlier in (
        (marked, "delivered_ce", ROUND_MARKED),
        (delivered, "delivered", ROUND_DELIVERED),
    ):
        yield from _growth(register, member, earlier)
        yield bpf.shift_right(register, 32)
    yield _own(alpha, ALPHA)
    # alpha -= g alpha, rounded so that it reaches 0
    yield bpf.move(Reg.R1, alpha)
    yield bpf.shift_right(Reg.R1, GAIN_SHIFT)
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, 0, "decay")
    yield bpf.move(Reg.R1, alpha)
    yield Label("decay")
    yield bpf.subtract(alpha, Reg.R1)
    # alpha += g marked / delivered; BPF divides by 0 to 0
    yield bpf.shift_left(marked, 10 - GAIN_SHIFT)
    yield bpf.divide(marked, delivered)
    yield bpf.add(alpha, marked)
    yield bpf.jump_if(Jump.LESS, alpha, ONE, "store")
    yield bpf.move(alpha, ONE)
    yield Label("store")
    yield _set_own(ALPHA, alpha)
    yield from _new_round()


def _halve() -> Code:
    """Halve the threshold: a loss counts as in Reno (section 3.4)."""
    yield struct_ops.read(Reg.R1, "snd_cwnd")
    yield _set_own(WINDOW_BEFORE_CUT, Reg.R1)
    yield bpf.shift_right(Reg.R1, 1)
    yield from _at_least_two(Reg.R1)
    yield struct_ops.write("snd_ssthresh", Reg.R1)


def _state() -> Code:
    """Cut after a loss that duplicate acknowledgements tell."""
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R1, 8)
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R2, _RECOVERY, "end")
    yield from _halve()


def _event() -> Code:
    """Cut after a time-out; tell the sender which packets carry a mark (section 3.2)."""
    marked, flags = Reg.R7, Reg.R1
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R1, 8)
    yield bpf.move(marked, 0)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, _EVENT_NOT_MARKED, "received")
    yield bpf.move(marked, 1)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, _EVENT_MARKED, "received")
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R2, _EVENT_LOSS, "end")
    yield from _halve()
    yield bpf.jump("end")
    yield Label("received")
    yield _own(Reg.R1, IS_MARKED)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, marked, "same mark")
    yield struct_ops.read(Reg.R1, struct_ops.ACK_PENDING)
    yield bpf.bit_and(Reg.R1, _ACK_TIMER)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "none delayed")
    # The delayed acknowledgement is of bytes with the earlier mark, which ECE still shows.
    yield bpf.move(Reg.R1, SOCKET)
    yield _own(Reg.R2, LAST_RECEIVED)
    yield bpf.call(bpf.TCP_SEND_ACK)
    yield Label("none delayed")
    yield struct_ops.read(Reg.R1, struct_ops.ACK_PENDING)
    yield bpf.bit_or(Reg.R1, _ACK_NOW)
    yield struct_ops.write(struct_ops.ACK_PENDING, Reg.R1)
    yield Label("same mark")
    yield struct_ops.read(Reg.R1, "rcv_nxt")
    yield _set_own(LAST_RECEIVED, Reg.R1)
    yield _set_own(IS_MARKED, marked)
    yield struct_ops.read(flags, "ecn_flags")
    yield bpf.bit_and(flags, 0xFF ^ _DEMAND_CWR)
    yield bpf.jump_if(Jump.EQUAL, marked, 0, "no echo")
    yield bpf.bit_or(flags, _DEMAND_CWR)
    yield Label("no echo")
    yield struct_ops.write("ecn_flags", flags)


def _undo() -> Code:
    """Return the window before a cut that proved needless."""
    yield struct_ops.read(Reg.R0, "snd_cwnd")
    yield _own(Reg.R1, WINDOW_BEFORE_CUT)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R0, Reg.R1, "end")
    yield bpf.move(Reg.R0, Reg.R1)


def _avoid(grow: int) -> Code:
    """Grow as Reno: slow start, then one packet in a round trip."""
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R1, 8)
    yield bpf.load(Size.DOUBLE, Reg.R3, Reg.R1, 16)
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R1, 0)
    yield bpf.call_kernel(grow)
