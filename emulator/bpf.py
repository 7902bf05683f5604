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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from moefabric.errors import FabricError

SYSCALL_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
MEMBARRIER_NUMBER = {"aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
IN_ORDER = platform.machine() == "x86_64"
"""Whether this processor's loads keep their order among each other, and its stores theirs."""
_MEMBARRIER_GLOBAL_EXPEDITED = 1 << 1
MAP_CREATE, PROG_LOAD, PROG_TEST_RUN = 0, 5, 10
MAP_UPDATE_BATCH, MAP_DELETE_BATCH = 26, 27
MAP_TYPE_HASH, MAP_TYPE_ARRAY, PROG_TYPE_SCHED_CLS, MAP_TYPE_ARRAY_OF_MAPS, MAP_TYPE_RINGBUF = 1, 2, 3, 12, 27
F_NO_PREALLOC, F_MMAPABLE = 1 << 0, 1 << 10
VERIFIER_LOG_BYTES = 256 * 1024
_FETCH = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# Helpers open to programs of any licence (the first since Linux 5.8).
KTIME_GET_NS, REDIRECT = 5, 23
MAP_LOOKUP, SKB_STORE_BYTES, L3_CHECKSUM_REPLACE, CLONE_REDIRECT, SKB_LOAD_BYTES = 1, 9, 10, 13, 26
RING_RESERVE, RING_SUBMIT = 131, 132
TC_ACT_OK, TC_ACT_SHOT = 0, 2


class BpfError(FabricError):
    """The kernel refused a bpf(2) call; for a program, with the verifier's last words."""


class Reg(IntEnum):
    """Registers: R0 result, R1-R5 arguments (lost in a call), R6-R9 kept over calls, R10 the frame."""

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)


class Size(IntEnum):
    """Width of a load or store."""

    WORD = 0x00  # 4 bytes
    HALF = 0x08  # 2 bytes
    BYTE = 0x10
    DOUBLE = 0x18  # 8 bytes


class Jump(IntEnum):
    """Unsigned comparisons, as operation bits of the jump class."""

    EQUAL = 0x10
    GREATER = 0x20
    GREATER_OR_EQUAL = 0x30
    NOT_EQUAL = 0x50
    NEGATIVE = 0xC0  # less than, both with a sign; for what helpers return


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


def bit_or(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x40, dst, src)


def shift_left(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x60, dst, src)


def shift_right(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x70, dst, src)


def big_endian(dst: Reg, bits: int) -> Instruction:
    """`dst` = its lowest `bits` (16, 32, 64), between the processor's byte order and the network's."""
    return Instruction(0xDC, dst, immediate=bits)


def constant(dst: Reg, value: int) -> Instruction:
    """`dst` = 64 bits."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value))
    return Instruction(0x18, dst, immediate=low, wide=high)


def load(size: Size, dst: Reg, base: Reg, offset: int = 0) -> Instruction:
    """`dst = *(size *)(base + offset)`"""
    return Instruction(0x61 | size, dst, base, offset)


def store(size: Size, base: Reg, offset: int, value: Reg | int) -> Instruction:
    """`*(size *)(base + offset) = value`"""
    if isinstance(value, Reg):
        return Instruction(0x63 | size, base, value, offset)
    return Instruction(0x62 | size, base, offset=offset, immediate=value)


def atomic_add(base: Reg, offset: int, src: Reg) -> Instruction:
    """`*(u64 *)(base + offset) += src`, whatever other processors do."""
    return Instruction(0xDB, base, src, offset)


def barrier(scratch: Reg, spare: int) -> Instruction:
    """What comes before it is done before what comes after: an atomic addition that gives back, of whatever `scratch` holds, to a spare double word of the frame.

    `scratch` is lost.
    """
    return Instruction(0xDB, Reg.R10, scratch, spare, immediate=_FETCH)


def address(dst: Reg, memory_fd: int, offset: int) -> Instruction:
    """`dst` = the address of byte `offset` of a Memory (BPF_PSEUDO_MAP_VALUE, Linux 5.2)."""
    return Instruction(0x18, dst, 2, immediate=memory_fd, wide=offset)


def map_at(dst: Reg, map_fd: int) -> Instruction:
    """`dst` = a map, for the helpers that take one (BPF_PSEUDO_MAP_FD)."""
    return Instruction(0x18, dst, 1, immediate=map_fd, wide=0)


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
    return _answered(command, attributes)[0]


def _answered(command: int, attributes: bytes) -> tuple[int, bytes]:
    """One bpf(2) call: its result, and the attributes as the kernel leaves them. Raises OSError."""
    number = SYSCALL_NUMBER.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) has no known number on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = int(_LIBC.syscall(number, command, buffer, len(buffer)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, buffer.raw


def fence() -> None:
    """What the calling thread has stored before is seen by every program before what it stores next. BpfError where that can't be had."""
    if IN_ORDER:
        return
    number = MEMBARRIER_NUMBER.get(platform.machine(), -1)
    if _LIBC.syscall(number, _MEMBARRIER_GLOBAL_EXPEDITED, 0, 0) < 0:  # both its ends are barriers
        raise BpfError(f"membarrier(2) on {platform.machine()}: {os.strerror(ctypes.get_errno())}")


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


def run_classifier(program_fd: int, frame: bytes, times: int) -> tuple[int, int]:
    """Run a classifier on a frame that goes nowhere (BPF_PROG_TEST_RUN): its verdict, and the mean of its duration in ns.

    Raises BpfError.
    """
    data = ctypes.create_string_buffer(frame, len(frame))
    attributes = struct.pack("=IIIIQQII", program_fd, 0, len(frame), 0, ctypes.addressof(data), 0, times, 0)
    try:
        _, answer = _answered(PROG_TEST_RUN, attributes)
    except OSError as refused:
        raise BpfError(
            f"bpf(BPF_PROG_TEST_RUN) on a frame of {len(frame)} bytes: {refused.strerror}"
        ) from refused
    verdict, duration_ns = struct.unpack_from("=I", answer, 4)[0], struct.unpack_from("=I", answer, 36)[0]
    return verdict, duration_ns


def create_map(
    map_type: int, name: str, key: int, value: int, entries: int, flags: int = 0, inner_fd: int = 0
) -> int:
    """A descriptor of a new map; sizes of key and value in bytes. `inner_fd` is a map like those that a map of maps will hold.

    Raises BpfError (without CAP_BPF or CAP_SYS_ADMIN, for one).
    """
    sizes = (map_type, key, value, entries, flags, inner_fd, 0)
    try:
        return _bpf(MAP_CREATE, struct.pack("=IIIIIII16s", *sizes, name.encode()[:15]))
    except OSError as refused:
        raise BpfError(
            f"bpf(BPF_MAP_CREATE) of {entries} x {value} bytes for {name}: {refused.strerror}"
        ) from refused


def put_in_map(map_fd: int, entries: Mapping[bytes, bytes]) -> None:
    """Put entries in a map by one call (BPF_MAP_UPDATE_BATCH, Linux 5.6; 5.17 for maps of maps). BpfError; some may then be in."""
    if not entries:
        return
    try:
        _batch(MAP_UPDATE_BATCH, map_fd, b"".join(entries), b"".join(entries.values()), len(entries))
    except OSError as refused:
        raise BpfError(
            f"bpf(BPF_MAP_UPDATE_BATCH) of {len(entries)} entries: {refused.strerror}"
        ) from refused


def delete_from_map(map_fd: int, keys: Sequence[bytes], spared: int = 0) -> None:
    """Take entries out of a map by one call. BpfError, but for the errno that is spared; some may then be out."""
    if not keys:
        return
    try:
        _batch(MAP_DELETE_BATCH, map_fd, b"".join(keys), b"", len(keys))
    except OSError as refused:
        if refused.errno != spared:
            raise BpfError(
                f"bpf(BPF_MAP_DELETE_BATCH) of {len(keys)} entries: {refused.strerror}"
            ) from refused


def _batch(command: int, map_fd: int, keys: bytes, values: bytes, count: int) -> None:
    key_bytes = ctypes.create_string_buffer(keys, len(keys))
    value_bytes = ctypes.create_string_buffer(values, max(len(values), 1))
    places = ctypes.addressof(key_bytes), ctypes.addressof(value_bytes) if values else 0
    _bpf(command, struct.pack("=QQQQIIQQ", 0, 0, *places, count, map_fd, 0, 0))


def create_memory(name: str, length: int) -> int:
    """A descriptor of new memory of `length` bytes, all zero. Raises BpfError (without CAP_BPF or CAP_SYS_ADMIN, for one)."""
    return create_map(MAP_TYPE_ARRAY, name, 4, length, 1, F_MMAPABLE)


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
