"""Crossbar in the kernel: a tc-BPF program at all ports redirects or drops the frames.

A port is the far end of an optical NIC's veth pair. As on a real optical switch, its input fibre is
port i (1..N) and its output fibre port N+i. The program on a port's ingress knows the port by its
interface, and reads the port's cross-connect from memory that every holder of one descriptor
shares.

The memory holds two generations of entries. An entry gives an input port's output port and the
instant from which its light is on. A selector says which generation is in force. A load writes all
cross-connects to the other generation and puts it in force by one store, so that they all change at
once. The memory also holds counters by input port and by output port, and the index of the
interface behind each output port. Keys are port numbers because interface indices grow without
bound.
"""

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.crossbar import Lights, Ports
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.bpf_assembler import Code, Jump, Label, Reg, Size
from moefabric.emulator.linux.bpf_syscalls import Memory, word
from moefabric.emulator.linux.classifiers import classify

KIND: Final = "tc-bpf"
"""Name of this crossbar in results."""
SKB_LENGTH, SKB_INTERFACE = 0, 40
"""Offsets of `len` and `ifindex` in struct __sk_buff."""


@dataclass(frozen=True)
class Layout:
    """Offsets of the parts of the shared memory, in bytes."""

    ports: Ports

    SELECTOR = 0  # u32: the generation in force
    ENTRIES = 16
    ENTRY = struct.Struct("=IIQ")  # output port (0: none), unused, lit from (ns)
    COUNTERS = struct.Struct("=QQQQ")  # frames and bytes forwarded, frames dropped unlit and dark
    INTERFACE = struct.Struct("=I")
    OUTPUT_COUNTERS = struct.Struct("=QQ")  # frames that left there, and their bytes

    @property
    def generation_bytes(self) -> int:
        """Size of a generation of entries."""
        return self.ENTRY.size * (self.ports.inputs + 1)

    def entries(self, generation: int) -> int:
        """Offset of a generation of entries, which are by input port."""
        return self.ENTRIES + generation * self.generation_bytes

    def counters(self, in_port: int) -> int:
        """Offset of an input port's counters."""
        return self.entries(2) + in_port * self.COUNTERS.size

    def interface(self, out_port: int) -> int:
        """Offset of the index of the interface behind an output port."""
        return self.counters(self.ports.inputs + 1) + out_port * self.INTERFACE.size

    def output_counters(self, out_port: int) -> int:
        """Offset of an output port's counters."""
        start = self.interface(self.ports.output_numbers.stop)
        return start + -start % 8 + out_port * self.OUTPUT_COUNTERS.size

    @property
    def length(self) -> int:
        """Size of the memory."""
        return self.output_counters(self.ports.output_numbers.stop)

    def pack(self, cross_connects: Lights) -> bytes:
        """Return a generation of entries; it is written at `entries(generation)`."""
        packed = bytearray(self.generation_bytes)
        for (port, out), lit_at_ns in cross_connects.items():
            self.ENTRY.pack_into(packed, port * self.ENTRY.size, out, 0, lit_at_ns)
        return bytes(packed)


def crossbar_program(layout: Layout, memory_fd: int, ports_fd: int) -> Code:
    """Yield the program for the ingress of all ports.

    Args:
        layout: Layout of the memory.
        memory_fd: Descriptor of the memory.
        ports_fd: Descriptor of a map that tells the port by the index of its interface.
    """
    skb, port, out, entry = Reg.R6, Reg.R9, Reg.R7, Reg.R8
    yield bpf.move(skb, Reg.R1)
    yield bpf.load(Size.WORD, Reg.R1, skb, SKB_INTERFACE)
    yield bpf.store(Size.WORD, Reg.R10, -4, Reg.R1)
    yield bpf.map_reference(Reg.R1, ports_fd)
    yield bpf.move(Reg.R2, Reg.R10)
    yield bpf.add(Reg.R2, -4)
    yield bpf.call(bpf.MAP_LOOKUP)
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "no port")
    yield bpf.load(Size.WORD, port, Reg.R0)
    yield bpf.jump_if(Jump.GREATER, port, layout.ports.inputs, "no port")
    yield bpf.address(Reg.R1, memory_fd, layout.SELECTOR)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.bit_and(Reg.R1, 1)
    yield bpf.multiply(Reg.R1, layout.generation_bytes)
    yield from _place(entry, memory_fd, layout.entries(0), port, layout.ENTRY)
    yield bpf.add(entry, Reg.R1)
    yield bpf.load(Size.WORD, out, entry)
    yield bpf.jump_if(Jump.EQUAL, out, 0, "unlit")
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, out, layout.ports.output_numbers.stop, "unlit")
    yield bpf.call(bpf.KTIME_GET_NS)
    yield bpf.load(Size.DOUBLE, Reg.R1, entry, 8)
    yield bpf.jump_if(Jump.GREATER, Reg.R1, Reg.R0, "dark")
    yield from _place(Reg.R1, memory_fd, layout.interface(0), out, layout.INTERFACE)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "unlit")
    yield bpf.load(Size.WORD, Reg.R4, skb, SKB_LENGTH)
    yield bpf.move(Reg.R5, 1)
    for first, number, counters in (
        (layout.counters(0), port, layout.COUNTERS),
        (layout.output_counters(0), out, layout.OUTPUT_COUNTERS),
    ):
        yield from _place(Reg.R3, memory_fd, first, number, counters)
        yield bpf.atomic_add(Reg.R3, 0, Reg.R5)
        yield bpf.atomic_add(Reg.R3, 8, Reg.R4)
    yield bpf.move(Reg.R2, 0)
    yield bpf.call(bpf.REDIRECT)  # to the interface's egress, where shaping applies
    yield bpf.exit_program()
    for why, counter in (("unlit", 16), ("dark", 24)):
        yield Label(why)
        yield from _place(Reg.R3, memory_fd, layout.counters(0), port, layout.COUNTERS)
        yield bpf.move(Reg.R4, 1)
        yield bpf.atomic_add(Reg.R3, counter, Reg.R4)
        yield bpf.jump("no port")
    yield Label("no port")
    yield bpf.move(Reg.R0, bpf.TC_ACT_SHOT)
    yield bpf.exit_program()


def _place(dst: Reg, memory_fd: int, first: int, number: Reg, record: struct.Struct) -> Code:
    """Set `dst` to the address of a record of the memory; overwrite R2."""
    yield bpf.move(Reg.R2, number)
    yield bpf.multiply(Reg.R2, record.size)
    yield bpf.address(dst, memory_fd, first)
    yield bpf.add(dst, Reg.R2)


class BpfCrossbar:
    """Crossbar in the kernel; a process that holds `fd` changes it without privilege."""

    def __init__(self, ports: Ports, fd: int) -> None:
        """Take over the crossbar behind a descriptor, which the object then owns."""
        self.ports = ports
        self._layout = Layout(ports)
        self._memory = Memory(fd, self._layout.length)
        self._selector = ctypes.c_uint32.from_buffer(self._memory.view, Layout.SELECTOR)

    @classmethod
    def create(cls, ports: Ports) -> Self:
        """Create a crossbar without cross-connects; needs CAP_BPF or CAP_SYS_ADMIN."""
        return cls(ports, bpf_calls.create_memory("crossbar", Layout(ports).length))

    @property
    def fd(self) -> int:
        """Descriptor of the shared memory."""
        return self._memory.fd

    def attach(self, interfaces: Mapping[int, str], netns: str | None = None) -> None:
        """Attach interfaces: port i's interface is input i and output N+i.

        The crossbar's program replaces an earlier one. The caller needs CAP_NET_ADMIN.

        Args:
            interfaces: name by port.
            netns: path of their network namespace, such as /proc/PID/ns/net; default: the caller's.

        Raises:
            FabricError: if an interface or port doesn't exist.
        """
        if unknown := sorted(set(interfaces) - self.ports.input_set):
            raise FabricError(
                f"crossbar {self.ports}: {unknown} are not among ports 1..{self.ports.inputs}"
            )

        def attach_all() -> None:
            indices = interface_indices(interfaces)
            with contextlib.ExitStack() as loaded:
                kind, most = bpf_calls.MAP_TYPE_HASH, self.ports.inputs
                numbers = bpf_calls.create_map(kind, "ports", 4, 4, most, bpf_calls.F_NO_PREALLOC)
                loaded.callback(os.close, numbers)
                words = {word(index): word(port) for port, index in indices.items()}
                bpf_calls.update_map(numbers, words)
                code = crossbar_program(self._layout, self.fd, numbers)
                program = bpf_calls.load_program("crossbar", code)
                loaded.callback(os.close, program)
                places = {i: f"crossbar port {n}: {interfaces[n]}" for n, i in indices.items()}
                classify(program, "crossbar", places)
            for port, index in indices.items():
                at = self._layout.interface(self.ports.inputs + port)
                Layout.INTERFACE.pack_into(self._memory.view, at, index)

        namespaces.run_in(netns, attach_all) if netns else attach_all()

    def cross_connects(self) -> dict[tuple[int, int], int]:
        """Return the cross-connects."""
        start = self._layout.entries(self._selector.value & 1)
        entries = Layout.ENTRY.iter_unpack(
            self._memory.view[start : start + self._layout.generation_bytes]
        )
        return {(port, out): lit_at for port, (out, _, lit_at) in enumerate(entries) if out}

    def load(self, cross_connects: Lights) -> None:
        """Replace all cross-connects by one store."""
        self.ports.check(cross_connects)
        idle = 1 - (self._selector.value & 1)
        start = self._layout.entries(idle)
        end = start + self._layout.generation_bytes
        self._memory.view[start:end] = self._layout.pack(cross_connects)
        self._selector.value = idle

    def close(self) -> None:
        """Release the crossbar; frames are forwarded as long as the programs stay attached."""
        if hasattr(self, "_selector"):
            del self._selector
        self._memory.close()


def interface_indices(interfaces: Mapping[int, str]) -> dict[int, int]:
    """Return the index of each port's interface in the caller's namespace.

    Raises:
        FabricError: lists all interfaces that don't exist.
    """
    index_of = {name: index for index, name in socket.if_nameindex()}
    if missing := sorted(set(interfaces.values()) - set(index_of)):
        raise FabricError(f"crossbar: no interface {', '.join(missing)} in its namespace")
    return {port: index_of[name] for port, name in interfaces.items()}


def crossbar_refusal() -> str | None:
    """Try BPF and return why this machine can't have a BpfCrossbar; None if it can.

    The trial attaches a program to the loopback of a new namespace.
    """

    def attempt() -> None:
        with contextlib.closing(BpfCrossbar.create(Ports(1))) as crossbar:
            crossbar.attach({1: "lo"})

    try:
        namespaces.run_in_new(attempt, timeout_s=10)
    except (FabricError, OSError) as error:
        return str(error)
    return None
