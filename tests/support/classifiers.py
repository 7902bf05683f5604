"""Runs of a classifier on frames that aren't sent."""

import ctypes
import struct

from moefabric.emulator.linux.bpf_assembler import BpfError
from moefabric.emulator.linux.bpf_syscalls import call_bpf

PROG_TEST_RUN = 10
LOOPBACK = 1
"""Index of the interface where frames of `run_classifier` arrive."""


def run_classifier(program_fd: int, frame: bytes, times: int) -> tuple[int, int]:
    """The verdict of a program, and the mean duration of a run in ns (BPF_PROG_TEST_RUN)."""
    data = ctypes.create_string_buffer(frame, len(frame))
    fields = program_fd, 0, len(frame), 0, ctypes.addressof(data), 0, times, 0
    attributes = struct.pack("=IIIIQQII", *fields)
    try:
        _, answer = call_bpf(PROG_TEST_RUN, attributes)
    except OSError as error:
        call = f"bpf(BPF_PROG_TEST_RUN) on a frame of {len(frame)} bytes"
        raise BpfError(f"{call}: {error.strerror}") from error
    (verdict,), (duration_ns,) = (struct.unpack_from("=I", answer, at) for at in (4, 36))
    return verdict, duration_ns
