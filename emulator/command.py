"""Programs of the machine (`ip`, `tc`, `ovs-vsctl`), run with a deadline and told about whole when they fail."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moefabric.errors import CommandFailedError, FabricError

_BATCH_S, _LINE_S = 30.0, 0.01
"""What a batch may take, a hundred times what each line does on an idle machine."""
_FAILED_LINE = re.compile(r"Command failed -:(\d+)")


def run(
    argv: Sequence[str], *, given: str = "", timeout_s: float = 10.0, env: Mapping[str, str] | None = None
) -> str:
    """What the program prints when it gets `given` on its standard input. CommandFailedError where it fails or lasts too long."""
    try:
        done = subprocess.run(
            argv, input=given, capture_output=True, text=True, timeout=timeout_s, env=env, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise CommandFailedError(argv, -1, f"no end within {timeout_s:g} s") from late
    except OSError as absent:
        raise CommandFailedError(argv, 127, f"{absent.strerror}") from absent
    if done.returncode:
        raise CommandFailedError(argv, done.returncode, done.stderr or done.stdout)
    return done.stdout


@dataclass(frozen=True)
class Line:
    """One command of a batch, and the place in the fabric (`s0/o1`) that it is about."""

    place: str
    words: str


def batch(program: Sequence[str], lines: Sequence[Line]) -> str:
    """Run all lines by one `ip -batch -` or `tc -batch -`. FabricError names the place of the line that failed; none after it is run."""
    if not lines:
        return ""
    try:
        return run(
            [*program, "-batch", "-"],
            given="".join(f"{line.words}\n" for line in lines),
            timeout_s=_BATCH_S + _LINE_S * len(lines),
        )
    except CommandFailedError as failed:
        at = _FAILED_LINE.search(failed.said)
        if at is None:
            raise
        line = lines[int(at[1]) - 1]
        said = _FAILED_LINE.sub("", failed.said).strip()
        raise FabricError(f"{line.place}: {program[-1]} {line.words}: {' '.join(said.split())}") from failed
