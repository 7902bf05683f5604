"""Register a congestion control of TCP whose functions are BPF programs (struct_ops, Linux 6.4).

The kernel knows it by a name until the last descriptor of its link closes, also by SIGKILL; sockets
that use it then keep it until they close. Names are system-wide, in all network namespaces, so that
each registration has one of its own.

Programs read and write members of TCP sockets, whose offsets depend on the kernel.
"""

import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Final

from moefabric.core.errors import UnsupportedError
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.linux.bpf_assembler import BpfError, Code, Instruction, Label, Reg, Size
from moefabric.emulator.linux.btf import Kind, kernel_types, smallest_types

STRUCTURE: Final = "tcp_congestion_ops"
LICENCE: Final = "Dual MIT/GPL"
"""The kernel takes congestion controls under the GPL only; MIT lets them be taken anywhere."""
NON_RESTRICTED, NEEDS_ECN = 1 << 0, 1 << 1
"""Flags: processes without privilege may choose it; it negotiates ECN and marks packets ECT."""
NAME_BYTES: Final = 15


@contextmanager
def congestion_control(kind: str, programs: Mapping[str, Code], flags: int = 0) -> Iterator[str]:
    """Register a congestion control, and remove it at the end of the `with`.

    Args:
        kind: Start of the name, at most 8 letters.
        programs: The program of each function, as members of `struct tcp_congestion_ops`, whose
            first argument is the socket. Programs find it in SOCKET. They return R0 at their end,
            and may jump to `end`.
        flags: NON_RESTRICTED, NEEDS_ECN.

    Yields:
        The name for setsockopt(2) TCP_CONGESTION: the kind and a random number.

    Raises:
        UnsupportedError: If this kernel or process can't register it; the message has the remedy.
    """
    name = f"{kind}_{secrets.token_hex(3)}"
    with ExitStack() as undo:
        try:
            link = _registered(name, programs, flags | NON_RESTRICTED, undo)
        except BpfError as error:
            raise unsupported(kind, error) from error
        undo.callback(os.close, link)
        yield name


def unsupported(kind: str, error: Exception) -> UnsupportedError:
    """Return the error that a congestion control can't be registered here, with its remedy."""
    remedy = "it needs root (CAP_BPF, CAP_NET_ADMIN) and Linux 6.4"
    return UnsupportedError(f"congestion control {kind}: {error}: {remedy}")


def _registered(name: str, programs: Mapping[str, Code], flags: int, undo: ExitStack) -> int:
    """Return the link of a registered congestion control; `undo` closes the rest."""
    types = kernel_types()
    structure = types.number(Kind.STRUCT, STRUCTURE)
    wrapper_name = f"bpf_struct_ops_{STRUCTURE}"
    wrapper = types.number(Kind.STRUCT, wrapper_name)
    start = types.offset(wrapper_name, "data")
    members = {member.name: (i, member) for i, member in enumerate(types.members(structure))}
    value = bytearray(types.size(wrapper))
    struct.pack_into(f"{NAME_BYTES}s", value, start + members["name"][1].offset, name.encode())
    struct.pack_into("=I", value, start + members["flags"][1].offset, flags)
    for function, program in programs.items():
        index, member = members[function]
        kind = bpf_calls.ProgramKind(bpf_calls.PROG_TYPE_STRUCT_OPS, LICENCE, structure, index)
        descriptor = bpf_calls.load_program(function, _socket_function(program), kind)
        undo.callback(os.close, descriptor)
        struct.pack_into("=Q", value, start + member.offset, descriptor)
    own_types = bpf_calls.load_types(smallest_types())
    undo.callback(os.close, own_types)
    numbers = {"kernel_type": wrapper, "types_fd": own_types}
    map_type = bpf_calls.MAP_TYPE_STRUCT_OPS
    operations = bpf_calls.create_map(map_type, name, 4, len(value), 1, bpf_calls.F_LINK, **numbers)
    undo.callback(os.close, operations)
    return bpf_calls.link_struct_ops(name, operations, bytes(value))


SOCKET: Final = Reg.R6
"""Register in which programs keep the socket."""
PRIVATE: Final = "inet_conn.icsk_ca_priv"
"""Member of a socket: 104 bytes that belong to the congestion control."""
ACK_PENDING: Final = "inet_conn.icsk_ack.pending"
PACING_RATE: Final = "inet_conn.icsk_inet.sk.sk_pacing_rate"
"""Member of a socket, in bytes a second."""
PACING_STATUS: Final = "inet_conn.icsk_inet.sk.sk_pacing_status"
_SIZES: Final = {"ecn_flags": Size.BYTE, ACK_PENDING: Size.BYTE, PACING_RATE: Size.DOUBLE}
"""Sizes of members other than 4 bytes."""
_MINIMUM_VALUE: Final = 4
"""Offset of the value in the first sample of `struct minmax`, after its time."""


@cache
def offset(member: str) -> int:
    """Return the offset of a socket's member in bytes; raises as `KernelTypes.offset`.

    Args:
        member: Path in `struct tcp_sock`; `min_rtt_us` is the value of `rtt_min`, and `rtt_us` the
            last sample, which RACK keeps.
    """
    if member == "min_rtt_us":
        return offset("rtt_min") + _MINIMUM_VALUE
    return kernel_types().offset("tcp_sock", "rack.rtt_us" if member == "rtt_us" else member)


def read(register: Reg, member: str) -> Instruction:
    """Load a member of the socket, named as for `offset`."""
    return bpf.load(_SIZES.get(member, Size.WORD), register, SOCKET, offset(member))


def write(member: str, value: Reg | int) -> Instruction:
    """Store a member of the socket that congestion controls may change."""
    return bpf.store(_SIZES.get(member, Size.WORD), SOCKET, offset(member), value)


def _socket_function(program: Code) -> Code:
    yield bpf.load(Size.DOUBLE, SOCKET, Reg.R1)
    yield from program
    yield Label("end")
    yield bpf.exit_program()
