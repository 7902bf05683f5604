"""System call bpf(2): create shared memory, maps and programs in the kernel, and use them.

Memory is an array map of one element that can be mapped (BPF_F_MMAPABLE, Linux 5.5). A process with
its descriptor reads and writes it without privilege or system call.
"""

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from moefabric.emulator.linux.bpf_assembler import IS_STRONGLY_ORDERED, BpfError, Code, assemble

SYSCALL_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_NUMBER: Final = SYSCALL_NUMBER.get(platform.machine())
MEMBARRIER_NUMBER = {"aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
_MEMBARRIER_GLOBAL_EXPEDITED = 1 << 1
MAP_CREATE, MAP_UPDATE_ELEM, PROG_LOAD = 0, 2, 5
BTF_LOAD, LINK_CREATE = 18, 28
MAP_UPDATE_BATCH, MAP_DELETE_BATCH = 26, 27
MAP_TYPE_HASH, MAP_TYPE_ARRAY, MAP_TYPE_PERCPU_ARRAY = 1, 2, 6
MAP_TYPE_ARRAY_OF_MAPS, MAP_TYPE_STRUCT_OPS, MAP_TYPE_RINGBUF = 12, 26, 27
PROG_TYPE_SCHED_CLS, PROG_TYPE_STRUCT_OPS = 3, 27
F_NO_PREALLOC, F_MMAPABLE, F_LINK = 1 << 0, 1 << 10, 1 << 13
ATTACH_STRUCT_OPS = 44
VERIFIER_LOG_BYTES = 256 * 1024
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def call_bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """Call bpf(2); return its result and the attributes after the kernel's changes."""
    if _NUMBER is None:
        raise OSError(errno.ENOSYS, f"bpf(2) has no known number on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = int(_LIBC.syscall(_NUMBER, command, buffer, len(buffer)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, buffer.raw


@contextmanager
def _bpf_errors(what: str, ignored_errno: int = 0) -> Iterator[None]:
    """Turn an OSError into a BpfError that names the call; ignore one errno."""
    try:
        yield
    except OSError as error:
        if error.errno != ignored_errno:
            raise BpfError(f"{what}: {error.strerror}") from error


def fence() -> None:
    """Order the calling thread's earlier stores before its later ones for BPF programs.

    Raises:
        BpfError: If membarrier(2) fails.
    """
    if IS_STRONGLY_ORDERED:
        return
    # membarrier(2) is a full barrier on entry and on return.
    number = MEMBARRIER_NUMBER.get(platform.machine(), -1)
    if _LIBC.syscall(number, _MEMBARRIER_GLOBAL_EXPEDITED, 0, 0) < 0:
        raise BpfError(f"membarrier(2) on {platform.machine()}: {os.strerror(ctypes.get_errno())}")


@dataclass(frozen=True)
class ProgramKind:
    """The purpose of a program.

    Attributes:
        number: PROG_TYPE_...
        licence: Its licence; helpers and kinds for GPL programs are refused to others.
        attached_type: For PROG_TYPE_STRUCT_OPS, number of the structure's type.
        member: For PROG_TYPE_STRUCT_OPS, which of its members the program is.
    """

    number: int
    licence: str = "Apache-2.0"
    attached_type: int = 0
    member: int = 0


CLASSIFIER: Final = ProgramKind(PROG_TYPE_SCHED_CLS)
"""A tc classifier."""


def load_program(name: str, program: Code, kind: ProgramKind = CLASSIFIER) -> int:
    """Load a program; the caller closes its descriptor.

    Raises:
        BpfError: with the verifier's log as a note.
    """
    instructions = ctypes.create_string_buffer(code := assemble(program), len(code))
    license_text = ctypes.create_string_buffer(kind.licence.encode())
    log = ctypes.create_string_buffer(VERIFIER_LOG_BYTES)
    addresses = ctypes.addressof(instructions), ctypes.addressof(license_text)

    def load_with(*log_fields: int) -> int:
        attributes = struct.pack(
            "=IIQQIIQII16sII36xI",
            *(kind.number, len(code) // 8, *addresses, *log_fields, 0, 0),
            *(name.encode()[:15], 0, kind.member, kind.attached_type),
        )
        return call_bpf(PROG_LOAD, attributes)[0]

    try:
        return load_with(0, 0, 0)
    except OSError as error:
        cause = error
    try:  # try again with a log, which takes much longer
        return load_with(1, len(log), ctypes.addressof(log))
    except OSError:
        text = log.value.decode(errors="replace")
    reasons = [line for line in text.splitlines() if line and not line.startswith("processed ")]
    reason = reasons[-1] if reasons else "silent"
    refusal = BpfError(f"bpf(BPF_PROG_LOAD) of {name}: {cause.strerror}; verifier: {reason}")
    refusal.add_note(text)
    raise refusal from cause


def create_map(
    map_type: int,
    name: str,
    key: int,
    value: int,
    entries: int,
    flags: int = 0,
    inner_fd: int = 0,
    kernel_type: int = 0,
    types_fd: int = 0,
) -> int:
    """Create a map and return its descriptor.

    Args:
        map_type: MAP_TYPE_...
        name: the kernel keeps 15 letters.
        key: Size of a key in bytes.
        value: Size of a value in bytes.
        entries: number of entries at most.
        flags: F_...
        inner_fd: for a map of maps, descriptor of a map like those that it will hold.
        kernel_type: for a map of struct_ops, number of the value's type in the kernel's BTF.
        types_fd: for a map of struct_ops, descriptor of any BTF of a program.

    Raises:
        BpfError: If the kernel refuses, for example without CAP_BPF and CAP_SYS_ADMIN.
    """
    sizes = (map_type, key, value, entries, flags, inner_fd, 0)
    with _bpf_errors(f"bpf(BPF_MAP_CREATE) of {entries} x {value} bytes for {name}"):
        types = types_fd, 0, 0, kernel_type
        attributes = struct.pack("=IIIIIII16s4xIIII", *sizes, name.encode()[:15], *types)
        return call_bpf(MAP_CREATE, attributes)[0]


def word(number: int) -> bytes:
    """Return a key or value of 32 bits in the machine's byte order."""
    return number.to_bytes(4, sys.byteorder)


def update_map(map_fd: int, entries: Mapping[bytes, bytes]) -> None:
    """Put entries in a map by one call (BPF_MAP_UPDATE_BATCH).

    It needs Linux 5.6, or 5.17 for a map of maps.

    Raises:
        BpfError: If the kernel refuses; the map may then have some of the entries.
    """
    with _bpf_errors(f"bpf(BPF_MAP_UPDATE_BATCH) of {len(entries)} entries"):
        _batch(MAP_UPDATE_BATCH, map_fd, list(entries), b"".join(entries.values()))


def delete_from_map(map_fd: int, keys: Sequence[bytes], ignored_errno: int = 0) -> None:
    """Delete entries of a map by one call (BPF_MAP_DELETE_BATCH).

    Raises:
        BpfError: If the kernel refuses with another errno than the ignored one; the map may then
            lack some of the entries.
    """
    with _bpf_errors(f"bpf(BPF_MAP_DELETE_BATCH) of {len(keys)} entries", ignored_errno):
        _batch(MAP_DELETE_BATCH, map_fd, keys, b"")


def _batch(command: int, map_fd: int, keys: Sequence[bytes], values: bytes) -> None:
    if not keys:
        return
    key_bytes = ctypes.create_string_buffer(b"".join(keys))
    value_bytes = ctypes.create_string_buffer(values)
    addresses = ctypes.addressof(key_bytes), ctypes.addressof(value_bytes) if values else 0
    call_bpf(command, struct.pack("=QQQQIIQQ", 0, 0, *addresses, len(keys), map_fd, 0, 0))


def load_types(types: bytes) -> int:
    """Load BTF and return its descriptor.

    Raises:
        BpfError: If the kernel refuses.
    """
    data = ctypes.create_string_buffer(types, len(types))
    with _bpf_errors("bpf(BPF_BTF_LOAD)"):
        return call_bpf(BTF_LOAD, struct.pack("=QQI", ctypes.addressof(data), 0, len(types)))[0]


def link_struct_ops(name: str, map_fd: int, value: bytes) -> int:
    """Put functions in force that a map of struct_ops (F_LINK) names; return the link (Linux 6.4).

    They leave force when the last descriptor of the link closes, also by the end of its process.

    Raises:
        BpfError: If the kernel refuses, for example a name that is taken.
    """
    value_bytes = ctypes.create_string_buffer(value, len(value))
    key_bytes = ctypes.create_string_buffer(4)
    addresses = ctypes.addressof(key_bytes), ctypes.addressof(value_bytes)
    with _bpf_errors(f"bpf(BPF_MAP_UPDATE_ELEM) of struct_ops {name}"):
        call_bpf(MAP_UPDATE_ELEM, struct.pack("=IIQQQ", map_fd, 0, *addresses, 0))
    with _bpf_errors(f"bpf(BPF_LINK_CREATE) of struct_ops {name}"):
        return call_bpf(LINK_CREATE, struct.pack("=IIII", map_fd, 0, ATTACH_STRUCT_OPS, 0))[0]


def create_memory(name: str, length: int) -> int:
    """Create memory of `length` zero bytes and return its descriptor; raise as `create_map`."""
    return create_map(MAP_TYPE_ARRAY, name, 4, length, 1, F_MMAPABLE)


class MappedPages:
    """Shared pages behind a descriptor, used through `view`.

    They stay when the descriptor is closed. Python's mmap would keep a copy of it open, and a
    process has room for 20,000 descriptors in some containers.
    """

    def __init__(self, fd: int, length: int, offset: int = 0, *, writable: bool = True) -> None:
        """Map the pages of `length` bytes from an offset on.

        Raises:
            BpfError: If the descriptor can't be mapped so.
        """
        self._length = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._address = _LIBC.mmap(None, self._length, access, mmap.MAP_SHARED, fd, offset)
        if self._address == ctypes.c_void_p(-1).value:
            what = f"descriptor {fd} does not map as {length} bytes of BPF memory"
            raise BpfError(f"{what}: {os.strerror(ctypes.get_errno())}")
        octets = (ctypes.c_ubyte * self._length).from_address(self._address)
        self.view = memoryview(octets).cast("B")

    def close(self) -> None:
        """Unmap the pages; raise BufferError if something still uses the view."""
        self.view.release()
        _LIBC.munmap(self._address, self._length)


class Memory(MappedPages):
    """Memory that BPF programs and processes share; processes use it through `view`.

    The kernel frees it when no process or program holds it. Mapping its descriptor needs no
    privilege.
    """

    def __init__(self, fd: int, length: int) -> None:
        """Map the memory behind a descriptor, which the object then owns.

        Raises:
            BpfError: If the descriptor doesn't refer to memory of this length.
        """
        super().__init__(fd, length)
        self.fd = fd

    def close(self) -> None:
        """Unmap the memory; BPF programs may still use it. A second call has no effect."""
        if self.fd >= 0:
            super().close()
            os.close(self.fd)
            self.fd = -1
