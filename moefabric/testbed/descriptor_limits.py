"""Descriptors that the agents of a fabric need, and those that this machine gives a process."""

import resource
from collections import Counter
from collections.abc import Iterable
from typing import Final

from moefabric.agents.fleet.connections import DataPath
from moefabric.core.errors import UnsupportedError

RESERVE: Final = 64
"""Descriptors of an agent besides its data connections: channels, ranks, files."""


def descriptors_needed(paths: Iterable[DataPath]) -> Counter[str]:
    """Return the descriptors that each server's agent needs to keep all paths open."""
    needed = Counter[str]()
    for path in paths:
        needed.update([path.src, path.dst])
        if path.relay:
            needed[path.relay] += 2
    return Counter({server: count + RESERVE for server, count in needed.items()})


def check_descriptor_limit(paths: Iterable[DataPath]) -> None:
    """Check that agents may open as many descriptors as the paths need.

    Raises:
        UnsupportedError: if the hard limit of this process, which agents inherit, is lower.
    """
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = descriptors_needed(paths).most_common(1)
    if needed and limit != resource.RLIM_INFINITY and needed[0][1] > limit:
        server, count = needed[0]
        raise UnsupportedError(
            f"the agent of {server} needs {count} descriptors for its connections, and this "
            f"process may open {limit}: raise the hard limit (`ulimit -Hn {count}` as root, "
            "`nofile` in /etc/security/limits.conf or `ulimits` of the container), or use fewer "
            "servers or NICs"
        )
