"""Fork children from a process that has loaded their program once.

The prefork server of OCS devices and agents does so, and the supervisor of the controllers. Each
agent has the memory of its prefork server, so this module imports little.
"""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Final

from moefabric.core.errors import MoefabricError

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_NAME_BYTES: Final = 15
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def fork(name: str, run: Callable[[], int], *, ends_with_parent: bool = False) -> int:
    """Fork a child that runs one function and exits with the status that the function returns.

    The child never returns into the caller's stack. It reports an exception on standard error (a
    MoefabricError in one line, others with their traceback) and exits with status 1.

    Args:
        name: the child's name in `ps` (prctl(2), PR_SET_NAME); the kernel keeps 15 bytes.
        run: the child's work.
        ends_with_parent: whether the child gets SIGTERM when the calling process ends.

    Returns:
        The pid of the child.
    """
    parent = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        _LIBC.prctl(_PR_SET_NAME, name.encode()[:_NAME_BYTES], 0, 0, 0)
        if ends_with_parent:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if not ends_with_parent or os.getppid() == parent:  # else the parent ended before prctl
            status = run()
    except MoefabricError as error:
        sys.stderr.write(f"{error}\n")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - nothing of the parent's stack may run in the child
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
