"""The kernel's backlog: frames that have passed a veth pair and wait for a core to receive them.

A core drops what exceeds the machine's limit. Agents then send again what no queue of the fabric
has dropped.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

_LIMIT: Final = Path("/proc/sys/net/core/netdev_max_backlog")
_NIC_FRAMES: Final = 64
"""Frames that may wait for each NIC, all on one core: two of each of some ten connections at both
ends, and acknowledgements. The limit takes no memory."""


def backlog_limit() -> int | None:
    """Return the frames that may wait for a core; None where only the host may read it."""
    with suppress(OSError):
        return int(_LIMIT.read_text())
    return None


def nics_within(limit: int) -> int:
    """Return the number of NICs for which a backlog suffices."""
    return limit // _NIC_FRAMES


def enlarge_backlog(nics: int) -> None:
    """Raise the limit for a number of NICs, as far as this machine lets us; it is never lowered.

    The limit is one of the machine's few settings that no namespace has of its own. It stays, since
    another fabric may need it.
    """
    limit, needed = backlog_limit(), nics * _NIC_FRAMES
    if limit is not None and limit < needed:
        with suppress(OSError):  # in a container; `moefabric doctor` names the remedy
            _LIMIT.write_text(str(needed))
