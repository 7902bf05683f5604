"""The identity of the clock that all instants of an agent refer to."""

from __future__ import annotations

import os
from pathlib import Path


def clock_identity() -> str:
    """Return the identity of this process's CLOCK_MONOTONIC: boot and time namespace.

    Processes with the same identity have the same clock. The identity is empty if it is unknown: on
    a kernel before 5.6, or without /proc.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/time")  # noqa: PTH115 - Path.readlink needs 3.9
    except OSError:
        return ""
    return f"{boot} {namespace}"
