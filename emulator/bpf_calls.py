"""The bpf(2) calls that make memory, maps and programs in the kernel, and what is done with them there.

Memory is an array map of one element that is mapped (BPF_F_MMAPABLE, Linux 5.5), so that whoever holds its descriptor reads and writes
it without any privilege or call.
"""

import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence

from emulator.bpf import IN_ORDER, BpfError, Instruction, Label, assembled

SYSCALL_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
MEMBARRIER_NUMBER = {"aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
_MEMBARRIER_GLOBAL_EXPEDITED = 1 << 1
MAP_CREATE, PROG_LOAD, PROG_TEST_RUN = 0, 5, 10
MAP_UPDATE_BATCH, MAP_DELETE_BATCH = 26, 27
MAP_TYPE_HASH, MAP_TYPE_ARRAY, PROG_TYPE_SCHED_CLS, MAP_TYPE_ARRAY_OF_MAPS, MAP_TYPE_RINGBUF = 1, 2, 3, 12, 27
F_NO_PREALLOC, F_MMAPABLE = 1 << 0, 1 << 10
VERIFIER_LOG_BYTES = 256 * 1024
_LIBC = ctypes.CDLL(None, use_errno=True)


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
