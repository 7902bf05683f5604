"""BPF without a compiler: a small assembler, and the bpf(2) calls that make memory and programs in the kernel.

Instructions and their encoding: RFC 9669. The system call: bpf(2). Memory is an array map of one element that is mapped
(BPF_F_MMAPABLE, Linux 5.5), so that whoever holds its descriptor reads and writes it without any privilege or call.
"""

import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from moefabric.errors import FabricError

SYSCALL_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
MAP_CREATE, PROG_LOAD = 0, 5
MAP_TYPE_ARRAY, PROG_TYPE_SCHED_CLS = 2, 3
F_MMAPABLE = 1 << 10
VERIFIER_LOG_BYTES = 256 * 1024

KTIME_GET_NS, REDIRECT = 5, 23  # helpers open to programs of any licence (the first since Linux 5.8)
TC_ACT_OK, TC_ACT_SHOT = 0, 2


class BpfError(FabricError):
    """The kernel refused a bpf(2) call; for a program, with the verifier's last words."""


class Reg(IntEnum):
    """Registers: R0 result, R1-R5 arguments (lost in a call), R6-R9 kept over calls, R10 the frame."""

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)


class Size(IntEnum):
    """Width of a load or store."""

    WORD = 0x00  # 4 bytes
    DOUBLE = 0x18  # 8 bytes


class Jump(IntEnum):
    """Unsigned comparisons, as operation bits of the jump class."""

    EQUAL = 0x10
    GREATER = 0x20
    GREATER_OR_EQUAL = 0x30
    NOT_EQUAL = 0x50


@dataclass(frozen=True)
class Instruction:
    """One instruction; `target` is a label still to be resolved into `offset`; `wide` holds a second slot's immediate."""

    code: int
    dst: int = 0
    src: int = 0
    offset: int = 0
    immediate: int = 0
    target: str | None = None
    wide: int | None = None

    @property
    def slots(self) -> int:
        return 1 if self.wide is None else 2

    def packed(self) -> bytes:
        first = struct.pack("<BBhi", self.code, self.src << 4 | self.dst, self.offset, self.immediate)
        return first if self.wide is None else first + struct.pack("<BBhi", 0, 0, 0, self.wide)


@dataclass(frozen=True)
class Label:
    """A place to jump to."""

    name: str


def _alu(operation: int, dst: Reg, src: Reg | int) -> Instruction:
    if isinstance(src, Reg):
        return Instruction(0x0F | operation, dst, src)
    return Instruction(0x07 | operation, dst, immediate=src)


def move(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0xB0, dst, src)


def add(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x00, dst, src)


def multiply(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x20, dst, src)


def bit_and(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x50, dst, src)


def load(size: Size, dst: Reg, base: Reg, offset: int = 0) -> Instruction:
    """`dst = *(size *)(base + offset)`"""
    return Instruction(0x61 | size, dst, base, offset)


def atomic_add(base: Reg, offset: int, src: Reg) -> Instruction:
    """`*(u64 *)(base + offset) += src`, whatever other processors do."""
    return Instruction(0xDB, base, src, offset)


def address(dst: Reg, memory_fd: int, offset: int) -> Instruction:
    """`dst` = the address of byte `offset` of a Memory (BPF_PSEUDO_MAP_VALUE, Linux 5.2)."""
    return Instruction(0x18, dst, 2, immediate=memory_fd, wide=offset)


def jump(target: str) -> Instruction:
    return Instruction(0x05, target=target)


def jump_if(test: Jump, dst: Reg, src: Reg | int, target: str) -> Instruction:
    if isinstance(src, Reg):
        return Instruction(0x0D | test, dst, src, target=target)
    return Instruction(0x05 | test, dst, immediate=src, target=target)


def call(helper: int) -> Instruction:
    return Instruction(0x85, immediate=helper)


def leave() -> Instruction:
    """End the program; R0 is the verdict."""
    return Instruction(0x95)


def assembled(program: Iterable[Instruction | Label]) -> bytes:
    """The program as the kernel reads it, its labels resolved.

    Raises BpfError for a label that is missing or stands twice.
    """
    places: dict[str, int] = {}
    placed: list[tuple[int, Instruction]] = []
    slot = 0
    for line in program:
        if isinstance(line, Label):
            if line.name in places:
                raise BpfError(f"label {line.name} stands twice")
            places[line.name] = slot
        else:
            placed.append((slot, line))
            slot += line.slots
    return b"".join(_resolved(line, at, places).packed() for at, line in placed)


def _resolved(line: Instruction, at: int, places: dict[str, int]) -> Instruction:
    if line.target is None:
        return line
    if line.target not in places:
        raise BpfError(f"no label {line.target}")
    return replace(line, offset=places[line.target] - at - 1)


def _bpf(command: int, attributes: bytes) -> int:
    """One bpf(2) call; its result is a descriptor. Raises OSError."""
    number = SYSCALL_NUMBER.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) has no known number on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, command, buffer, len(buffer)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def load_classifier(name: str, program: Iterable[Instruction | Label], licence: str = "Apache-2.0") -> int:
    """Load a tc classifier (BPF_PROG_TYPE_SCHED_CLS) and return its descriptor, which the caller closes.

    Raises BpfError with the verifier's log.
    """
    instructions = ctypes.create_string_buffer(code := assembled(program), len(code))
    licensed = ctypes.create_string_buffer(licence.encode())
    log = ctypes.create_string_buffer(VERIFIER_LOG_BYTES)

    def load_with(log_level: int) -> int:
        log_at = (log_level, len(log), ctypes.addressof(log)) if log_level else (0, 0, 0)
        attributes = struct.pack(
            "=IIQQIIQII16s",
            *(
                PROG_TYPE_SCHED_CLS,
                len(code) // 8,
                ctypes.addressof(instructions),
                ctypes.addressof(licensed),
            ),
            *(*log_at, 0, 0, name.encode()[:15]),
        )
        return _bpf(PROG_LOAD, attributes)

    try:
        return load_with(log_level=0)
    except OSError as refused:
        why = refused
    try:  # again with a log, which the kernel writes much slower
        return load_with(log_level=1)
    except OSError:
        raise _verdict(name, why, log.value.decode(errors="replace")) from why


def _verdict(name: str, why: OSError, log: str) -> BpfError:
    """The verifier's reason in one line, and its whole log as a note."""
    reasons = [line for line in log.splitlines() if line and not line.startswith("processed ")]
    error = BpfError(
        f"bpf(BPF_PROG_LOAD) of {name}: {why.strerror}; verifier: {reasons[-1] if reasons else 'silent'}"
    )
    error.add_note(log)
    return error


def create_memory(name: str, length: int) -> int:
    """A descriptor of new memory of `length` bytes, all zero. Raises BpfError (without CAP_BPF or CAP_SYS_ADMIN, for one)."""
    named = name.encode()[:15]
    try:
        return _bpf(
            MAP_CREATE, struct.pack("=IIIIIII16s", MAP_TYPE_ARRAY, 4, length, 1, F_MMAPABLE, 0, 0, named)
        )
    except OSError as refused:
        raise BpfError(f"bpf(BPF_MAP_CREATE) of {length} bytes for {name}: {refused.strerror}") from refused


class Memory:
    """Bytes that BPF programs and processes share: `view` is the same memory the programs see.

    Whoever is given the descriptor may map it, without privilege; it lives as long as anyone holds it.
    """

    def __init__(self, fd: int, length: int) -> None:
        """Map the memory behind `fd`, which this object then owns. Raises BpfError if it is no such memory."""
        self.fd, self.length = fd, length
        try:
            self._mapped = mmap.mmap(fd, -(-length // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.MAP_SHARED)
        except (OSError, ValueError) as refused:
            raise BpfError(
                f"descriptor {fd} does not map as {length} bytes of BPF memory: {refused}"
            ) from refused
        self.view = memoryview(self._mapped)

    def close(self) -> None:
        """Let go of the memory; programs that use it keep it. Twice is no fault."""
        if self.fd < 0:
            return
        self.view.release()
        self._mapped.close()
        os.close(self.fd)
        self.fd = -1
