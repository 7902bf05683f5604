"""The crossbar: mirrors that send what enters a port out of another, or nowhere.

A port is the far end of an optical NIC's veth: its input fibre is port i (1..N), its output fibre port N+i, as a real
optical switch counts them. The kernel carries the frames: one tc-BPF program on each port's ingress looks up, in memory that
every holder of one descriptor shares, where its port's light goes and from which instant, and redirects or drops.

Layout of that memory: a word that says which of two generations of entries is in force; the entries, (output port, instant
from which it has light) per generation and input port; counters per input port; the interface behind each output port. A
whole matching is written to the idle generation and put in force by one store. Keys are port numbers, for interface indices
grow without bound over a machine's life.
"""

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from emulator import bpf, bpf_calls, namespaces, netlink
from emulator.bpf import Instruction, Jump, Label, Reg, Size
from emulator.bpf_calls import Memory
from emulator.light import Light, PortCounters, Ports, check
from moefabric.errors import FabricError, UnsupportedError

if TYPE_CHECKING:
    from pyroute2 import IPRoute  # takes 0.3 s to import, and whoever only moves light has no use for it

INGRESS, INGRESS_NUMBER = "ffff:fff2", 0xFFFFFFF2  # of clsact, for writing and for reading
SKB_LENGTH = 0  # offset of `len` in struct __sk_buff


@dataclass(frozen=True)
class Layout:
    """Where each thing lies in the shared memory, in bytes."""

    ports: Ports

    SELECT = 0  # u32: the generation in force
    ENTRIES = 16
    ENTRY = struct.Struct("=IIQ")  # output port, or 0 for no light; unused; lit from
    COUNTERS = struct.Struct("=QQQQ")  # PortCounters, field by field
    INTERFACE = struct.Struct("=I")

    @property
    def generation_bytes(self) -> int:
        return self.ENTRY.size * (self.ports.inputs + 1)

    def entry(self, generation: int, in_port: int) -> int:
        return self.ENTRIES + generation * self.generation_bytes + in_port * self.ENTRY.size

    def counters(self, in_port: int) -> int:
        return self.entry(2, 0) + in_port * self.COUNTERS.size

    def interface(self, out_port: int) -> int:
        return self.counters(self.ports.inputs + 1) + out_port * self.INTERFACE.size

    @property
    def length(self) -> int:
        return self.interface(self.ports.output_numbers.stop)

    def packed(self, lights: Mapping[int, Light]) -> bytes:
        """A generation of entries, ready to lie at `entry(generation, 0)`."""
        dark = self.ENTRY.pack(0, 0, 0)
        numbers = range(self.ports.inputs + 1)
        found = (lights.get(port) for port in numbers)
        return b"".join(
            self.ENTRY.pack(light.out_port, 0, light.lit_at_ns) if light else dark for light in found
        )


def port_program(layout: Layout, memory_fd: int, in_port: int) -> Iterator[Instruction | Label]:
    """What a port's ingress runs on each frame: the number of the port is written into it."""
    skb, entry, out = Reg.R6, Reg.R8, Reg.R7
    yield bpf.move(skb, Reg.R1)
    yield bpf.address(Reg.R1, memory_fd, layout.SELECT)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.bit_and(Reg.R1, 1)
    yield bpf.multiply(Reg.R1, layout.generation_bytes)
    yield bpf.address(entry, memory_fd, layout.entry(0, in_port))
    yield bpf.add(entry, Reg.R1)
    yield bpf.load(Size.WORD, out, entry)
    yield bpf.jump_if(Jump.EQUAL, out, 0, "unlit")
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, out, layout.ports.output_numbers.stop, "unlit")
    yield bpf.call(bpf.KTIME_GET_NS)
    yield bpf.load(Size.DOUBLE, Reg.R1, entry, 8)
    yield bpf.jump_if(Jump.GREATER, Reg.R1, Reg.R0, "dark")
    yield bpf.multiply(out, layout.INTERFACE.size)
    yield bpf.address(Reg.R1, memory_fd, layout.interface(0))
    yield bpf.add(Reg.R1, out)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "unlit")
    yield bpf.address(Reg.R3, memory_fd, layout.counters(in_port))
    yield bpf.move(Reg.R4, 1)
    yield bpf.atomic_add(Reg.R3, 0, Reg.R4)
    yield bpf.load(Size.WORD, Reg.R4, skb, SKB_LENGTH)
    yield bpf.atomic_add(Reg.R3, 8, Reg.R4)
    yield bpf.move(Reg.R2, 0)
    yield bpf.call(bpf.REDIRECT)  # to the egress of the interface, through its shaping
    yield bpf.leave()
    for why, counter in (("unlit", 16), ("dark", 24)):
        yield Label(why)
        yield bpf.address(Reg.R3, memory_fd, layout.counters(in_port))
        yield bpf.move(Reg.R4, 1)
        yield bpf.atomic_add(Reg.R3, counter, Reg.R4)
        yield bpf.move(Reg.R0, bpf.TC_ACT_SHOT)
        yield bpf.leave()


class BpfCrossbar:
    """The crossbar in the kernel. Whoever holds `fd` moves it, without privilege: `BpfCrossbar(ports, fd)`."""

    def __init__(self, ports: Ports, fd: int) -> None:
        """Take over the crossbar behind `fd` as it is lit now; the descriptor is then this object's to close."""
        self.ports = ports
        self._layout = Layout(ports)
        self._memory = Memory(fd, self._layout.length)
        self._select = ctypes.c_uint32.from_buffer(self._memory.view, Layout.SELECT)

    @classmethod
    def create(cls, ports: Ports) -> Self:
        """A crossbar without light, not yet on any interface. Needs CAP_BPF, or CAP_SYS_ADMIN."""
        return cls(ports, bpf_calls.create_memory("crossbar", Layout(ports).length))

    @property
    def fd(self) -> int:
        return self._memory.fd

    def attach(self, interfaces: Mapping[int, str], netns: str | None = None) -> None:
        """Plug interfaces in: that of port i is input i, and output N+i if there is one.

        `netns` is the path of the namespace they are all in, such as /proc/PID/ns/net; None is the caller's. Needs
        CAP_NET_ADMIN there. Replaces what was on an interface's port before; FabricError for one that isn't there.
        """
        if strange := sorted(set(interfaces) - self.ports.input_set):
            raise FabricError(f"crossbar {self.ports}: {strange} are not among ports 1..{self.ports.inputs}")

        def attach_all() -> None:
            indices = interface_indices(interfaces)
            with contextlib.ExitStack() as loaded:
                requests = []
                for port, index in indices.items():
                    name = f"port{port}"
                    program = bpf_calls.load_classifier(name, port_program(self._layout, self.fd, port))
                    loaded.callback(os.close, program)
                    place = f"crossbar port {port}: {interfaces[port]}"
                    requests.append(netlink.ingress(place, index))
                    requests.append(netlink.ingress_program(place, index, program, name))
                netlink.ask(requests)
            for port, index in indices.items():
                self._shine_from(port, index)

        namespaces.within(netns, attach_all) if netns else attach_all()

    def _shine_from(self, port: int, index: int) -> None:
        """Have the light of a port's output leave by an interface."""
        out_port = self.ports.inputs + port
        if out_port in self.ports.output_numbers:
            Layout.INTERFACE.pack_into(self._memory.view, self._layout.interface(out_port), index)

    def show(self) -> dict[int, Light]:
        start = self._layout.entry(self._select.value & 1, 0)
        entries = Layout.ENTRY.iter_unpack(self._memory.view[start : start + self._layout.generation_bytes])
        return {port: Light(out, lit_at) for port, (out, _, lit_at) in enumerate(entries) if out}

    def load(self, lights: Mapping[int, Light]) -> None:
        check(self.ports, lights)
        idle = 1 - (self._select.value & 1)
        start = self._layout.entry(idle, 0)
        self._memory.view[start : start + self._layout.generation_bytes] = self._layout.packed(lights)
        self._select.value = idle

    def counters(self) -> dict[int, PortCounters]:
        """What each input port has seen since the crossbar was made."""
        places = ((port, self._layout.counters(port)) for port in self.ports.input_numbers)
        return {
            port: PortCounters(*Layout.COUNTERS.unpack_from(self._memory.view, at)) for port, at in places
        }

    def close(self) -> None:
        """Let go of the crossbar; its light stays as it is while programs are on interfaces."""
        if hasattr(self, "_select"):
            del self._select
        self._memory.close()


def interface_indices(interfaces: Mapping[int, str]) -> dict[int, int]:
    """The kernel's index of each port's interface, in the caller's namespace. FabricError, naming all that aren't there."""
    index_of = {name: index for index, name in socket.if_nameindex()}
    if absent := sorted(set(interfaces.values()) - set(index_of)):
        raise FabricError(f"crossbar: no interface {', '.join(absent)} in its namespace")
    return {port: index_of[name] for port, name in interfaces.items()}


def make_ingress(kernel: "IPRoute", index: int) -> None:
    """See that the interface has a place for programs (clsact); one that is there is kept."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        kernel.tc("add", "clsact", index)
    except NetlinkError as refused:
        if refused.code != 17:  # EEXIST
            raise


def crossbar_support() -> str | None:
    """Why this machine can't have a BpfCrossbar, in one line; None if it can.

    Tried for good: a program is loaded and put on the loopback of a namespace that lives as long as the trial.
    """
    said: list[str] = []

    def attempt() -> None:
        try:
            namespaces.leave()
            with contextlib.closing(BpfCrossbar.create(Ports(1, 1))) as crossbar:
                crossbar.attach({1: "lo"})
        except (FabricError, OSError) as refused:
            said.append(str(refused))

    trial = threading.Thread(target=attempt, name="crossbar-trial", daemon=True)
    trial.start()
    trial.join(timeout=10)
    if trial.is_alive():
        return "no answer from the kernel within 10 s"
    return said[0] if said else None


def require_crossbar() -> None:
    """UnsupportedError with the remedy if this machine can't have a BpfCrossbar."""
    if why := crossbar_support():
        raise UnsupportedError(
            f"no tc-BPF crossbar: {why}; it needs CAP_BPF or CAP_SYS_ADMIN, and CONFIG_NET_CLS_BPF"
        )
