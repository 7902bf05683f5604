"""The link of this process to its agent, which all its process groups use."""

import atexit
import os
import sys
import threading
from typing import Final

from moefabric.execution.torch.agent_link import AgentLink

AGENT_VARIABLE: Final = "MOEFABRIC_AGENT"
"""Environment variable of a rank: the socket of ranks of its server's agent."""

_lock = threading.Lock()
_link: AgentLink | None = None
_users = 0


def open_link(rank: int) -> AgentLink | None:
    """Return the link, opened for the first group; None if the environment names no agent.

    Args:
        rank: The global rank of this process.

    Raises:
        RuntimeError: if the agent doesn't answer.
    """
    global _link, _users  # noqa: PLW0603 - one link a process
    path = os.environ.get(AGENT_VARIABLE)
    if not path:
        return None
    with _lock:
        if _link is None:
            try:
                _link = AgentLink(path, rank)
            except OSError as error:
                raise RuntimeError(
                    f"{AGENT_VARIABLE}: no agent answers at {path}: {error.strerror}; start this "
                    "program by `moefabric torchrun`, or unset the variable to use gloo"
                ) from error
        _users += 1
        return _link


def close_link() -> None:
    """Leave the agent when the last group is shut down."""
    global _link, _users  # noqa: PLW0603 - one link a process
    with _lock:
        _users -= 1
        link, _link = (_link, None) if not _users else (None, _link)
    if link is not None:
        link.close()


@atexit.register
def _leave_at_exit() -> None:
    """Leave, unless the program ends by an exception: its rank then counts as lost."""
    if _link is not None and not hasattr(sys, "last_value"):
        _link.close()
