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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from moefabric.emulator.linux.bpf_assembler import (
    IS_STRONGLY_ORDERED,
    BpfError,
    Instruction,
    Label,
    assemble,
)

SYSCALL_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
MEMBARRIER_NUMBER = {"aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
_MEMBARRIER_GLOBAL_EXPEDITED = 1 << 1
MAP_CREATE, PROG_LOAD, PROG_TEST_RUN = 0, 5, 10
MAP_UPDATE_BATCH, MAP_DELETE_BATCH = 26, 27
MAP_TYPE_HASH, MAP_TYPE_ARRAY, MAP_TYPE_PERCPU_ARRAY = 1, 2, 6
MAP_TYPE_ARRAY_OF_MAPS, MAP_TYPE_RINGBUF = 12, 27
PROG_TYPE_SCHED_CLS = 3
F_NO_PREALLOC, F_MMAPABLE = 1 << 0, 1 << 10
VERIFIER_LOG_BYTES = 256 * 1024
_LIBC = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """Call bpf(2); return its result and the attributes after the kernel's changes."""
    number = SYSCALL_NUMBER.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) has no known number on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = int(_LIBC.syscall(number, command, buffer, len(buffer)))
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
        BpfError: if membarrier(2) fails.
    """
    if IS_STRONGLY_ORDERED:
        return
    # membarrier(2) is a full barrier on entry and on return.
    number = MEMBARRIER_NUMBER.get(platform.machine(), -1)
    if _LIBC.syscall(number, _MEMBARRIER_GLOBAL_EXPEDITED, 0, 0) < 0:
        raise BpfError(f"membarrier(2) on {platform.machine()}: {os.strerror(ctypes.get_errno())}")


def load_classifier(
    name: str, program: Iterable[Instruction | Label], licence: str = "Apache-2.0"
) -> int:
    """Load a tc classifier (BPF_PROG_TYPE_SCHED_CLS); the caller closes its descriptor.

    Raises:
        BpfError: with the verifier's log as a note.
    """
    instructions = ctypes.create_string_buffer(code := assemble(program), len(code))
    license_text = ctypes.create_string_buffer(licence.encode())
    log = ctypes.create_string_buffer(VERIFIER_LOG_BYTES)
    addresses = ctypes.addressof(instructions), ctypes.addressof(license_text)
    program_fields = PROG_TYPE_SCHED_CLS, len(code) // 8, *addresses

    def load_with(log_level: int) -> int:
        log_fields = (log_level, len(log), ctypes.addressof(log)) if log_level else (0, 0, 0)
        attributes = struct.pack(
            "=IIQQIIQII16s", *program_fields, *log_fields, 0, 0, name.encode()[:15]
        )
        return _bpf(PROG_LOAD, attributes)[0]

    try:
        return load_with(log_level=0)
    except OSError as error:
        first_error = error
    try:  # try again with a log, which takes much longer
        return load_with(log_level=1)
    except OSError:
        raise _verifier_error(
            name, first_error, log.value.decode(errors="replace")
        ) from first_error


def _verifier_error(name: str, cause: OSError, log: str) -> BpfError:
    """Return an error with the verifier's last line, and its whole log as a note."""
    reasons = [line for line in log.splitlines() if line and not line.startswith("processed ")]
    reason = reasons[-1] if reasons else "silent"
    error = BpfError(f"bpf(BPF_PROG_LOAD) of {name}: {cause.strerror}; verifier: {reason}")
    error.add_note(log)
    return error


def run_classifier(program_fd: int, frame: bytes, times: int) -> tuple[int, int]:
    """Run a classifier on a test frame that isn't sent (BPF_PROG_TEST_RUN).

    Returns:
        The program's verdict and the mean duration of a run in ns.

    Raises:
        BpfError: if the kernel refuses.
    """
    data = ctypes.create_string_buffer(frame, len(frame))
    attributes = struct.pack(
        "=IIIIQQII", program_fd, 0, len(frame), 0, ctypes.addressof(data), 0, times, 0
    )
    with _bpf_errors(f"bpf(BPF_PROG_TEST_RUN) on a frame of {len(frame)} bytes"):
        _, answer = _bpf(PROG_TEST_RUN, attributes)
    (verdict,), (duration_ns,) = (struct.unpack_from("=I", answer, at) for at in (4, 36))
    return verdict, duration_ns


def create_map(
    map_type: int, name: str, key: int, value: int, entries: int, flags: int = 0, inner_fd: int = 0
) -> int:
    """Create a map and return its descriptor.

    Args:
        map_type: MAP_TYPE_...
        name: the kernel keeps 15 letters.
        key: size in bytes.
        value: size in bytes.
        entries: number of entries at most.
        flags: F_...
        inner_fd: for a map of maps, descriptor of a map like those that it will hold.

    Raises:
        BpfError: if the kernel refuses, for example without CAP_BPF and CAP_SYS_ADMIN.
    """
    sizes = (map_type, key, value, entries, flags, inner_fd, 0)
    with _bpf_errors(f"bpf(BPF_MAP_CREATE) of {entries} x {value} bytes for {name}"):
        return _bpf(MAP_CREATE, struct.pack("=IIIIIII16s", *sizes, name.encode()[:15]))[0]


def update_map(map_fd: int, entries: Mapping[bytes, bytes]) -> None:
    """Put entries in a map by one call (BPF_MAP_UPDATE_BATCH).

    It needs Linux 5.6, or 5.17 for a map of maps.

    Raises:
        BpfError: if the kernel refuses; the map may then have some of the entries.
    """
    if not entries:
        return
    keys, values = b"".join(entries), b"".join(entries.values())
    with _bpf_errors(f"bpf(BPF_MAP_UPDATE_BATCH) of {len(entries)} entries"):
        _batch(MAP_UPDATE_BATCH, map_fd, keys, values, len(entries))


def delete_from_map(map_fd: int, keys: Sequence[bytes], ignored_errno: int = 0) -> None:
    """Delete entries of a map by one call (BPF_MAP_DELETE_BATCH).

    Raises:
        BpfError: if the kernel refuses with another errno than the ignored one; the map may then
            lack some of the entries.
    """
    if not keys:
        return
    with _bpf_errors(f"bpf(BPF_MAP_DELETE_BATCH) of {len(keys)} entries", ignored_errno):
        _batch(MAP_DELETE_BATCH, map_fd, b"".join(keys), b"", len(keys))


def _batch(command: int, map_fd: int, keys: bytes, values: bytes, count: int) -> None:
    key_bytes = ctypes.create_string_buffer(keys, len(keys))
    value_bytes = ctypes.create_string_buffer(values, max(len(values), 1))
    addresses = ctypes.addressof(key_bytes), ctypes.addressof(value_bytes) if values else 0
    _bpf(command, struct.pack("=QQQQIIQQ", 0, 0, *addresses, count, map_fd, 0, 0))


def create_memory(name: str, length: int) -> int:
    """Create memory of `length` zero bytes and return its descriptor; raise as `create_map`."""
    return create_map(MAP_TYPE_ARRAY, name, 4, length, 1, F_MMAPABLE)


class Memory:
    """Memory that BPF programs and processes share; processes use it through `view`.

    The kernel frees it when no process or program holds it. Mapping its descriptor needs no
    privilege.
    """

    def __init__(self, fd: int, length: int) -> None:
        """Map the memory behind a descriptor, which the object then owns.

        Raises:
            BpfError: if the descriptor doesn't refer to memory of this length.
        """
        self.fd, self.length = fd, length
        try:
            self._mapped = mmap.mmap(
                fd, -(-length // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.MAP_SHARED
            )
        except (OSError, ValueError) as error:
            raise BpfError(
                f"descriptor {fd} does not map as {length} bytes of BPF memory: {error}"
            ) from error
        self.view = memoryview(self._mapped)

    def close(self) -> None:
        """Unmap the memory; BPF programs may still use it. A second call has no effect."""
        if self.fd < 0:
            return
        self.view.release()
        self._mapped.close()
        os.close(self.fd)
        self.fd = -1
