"""Work of a fabric on which faults fall: `python -m tests.chaos.work NAME`.

Prints JSON: by kind of work, nothing if it was done, else the reason that the fabric has named.
"""

import faulthandler
import json
import sys
from collections.abc import Callable
from typing import Final

from moefabric.api.lab import Lab
from moefabric.core.errors import MoefabricError

LIMIT_S: Final = 90
_PING_S: Final = 8
_BYTES: Final = 100_000


class WrongSumsError(Exception):
    """A collective has returned wrong numbers."""


def _ping(lab: Lab) -> None:
    ping = f"ping -c 1 -w {_PING_S} {lab.address('s1')}"
    lab.exec("s0", ping, timeout_s=2 * _PING_S, check=True)


def _light(lab: Lab) -> None:
    """Set a circuit and remove it, whatever was lit."""
    lab.light("s0/o0~s1/o0")
    lab.dark("s0/o0~s1/o0")


def _collective(lab: Lab) -> None:
    result = lab.perf("allreduce", _BYTES, iterations=1, warm_up=0)
    if result.wrong:
        raise WrongSumsError(f"{result.wrong} sums are wrong")


KINDS: Final[dict[str, Callable[[Lab], None]]] = {
    "ping": _ping, "light": _light, "collective": _collective,
}  # fmt: skip


def _outcome(name: str, work: Callable[[Lab], None]) -> str:
    try:
        work(Lab.running(name))
    except MoefabricError as error:
        return str(error) or type(error).__name__
    return ""


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)  # says where the work hangs
    print(json.dumps({kind: _outcome(sys.argv[1], work) for kind, work in KINDS.items()}))
