"""Run programs of the machine (`ip`, `tc`, `ovs-vsctl`) with a time limit and report failures."""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from moefabric.core.errors import CommandFailedError, FabricError

_BATCH_S, _LINE_S = 30.0, 0.01
"""Time limit of a batch: a constant, plus a time per line 100 times that of an idle machine."""
_FAILED_LINE = re.compile(r"Command failed -:(\d+)")


def run(
    argv: Sequence[str],
    *,
    input_text: str = "",
    timeout_s: float = 10.0,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program and return its standard output.

    Raises:
        CommandFailedError: if the program can't be started, fails or exceeds `timeout_s`.
    """
    try:
        result = subprocess.run(
            argv,
            input=input_text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailedError(argv, -1, f"no end within {timeout_s:g} s") from error
    except OSError as error:
        raise CommandFailedError(argv, 127, f"{error.strerror}") from error
    if result.returncode:
        raise CommandFailedError(argv, result.returncode, result.stderr or result.stdout)
    return result.stdout


BatchLine = tuple[str, str]
"""The part of the fabric (`s0/o1`) that errors name, and one command of a batch."""


def ip_batch(lines: Iterable[BatchLine]) -> str:
    """Run all lines, in order, by one `ip -batch -`, which stops at the first failure.

    Returns:
        The standard output of all lines.

    Raises:
        FabricError: names the place of the line that failed.
    """
    if not (listed := list(lines)):
        return ""
    text = "".join(f"{command}\n" for _, command in listed)
    limit_s = _BATCH_S + _LINE_S * len(listed)
    try:
        return run(["ip", "-batch", "-"], input_text=text, timeout_s=limit_s)
    except CommandFailedError as error:
        match = _FAILED_LINE.search(error.output)
        if match is None:
            raise
        place, command = listed[int(match[1]) - 1]
        reason = " ".join(_FAILED_LINE.sub("", error.output).split())
        raise FabricError(f"{place}: ip {command}: {reason}") from error
