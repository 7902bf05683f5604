"""Agents started by a test, one a namespace, and flows for them to send."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from moefabric.agents.fleet.channel import Channel, connect_local
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.remote.bundle import AGENT, bundle
from moefabric.core.flows import PacedFlow
from tests.support.namespaces import Island


def _works(python: str) -> bool:
    return subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0


OLDEST_PYTHONS = [
    path for name in ("python3.8", "python3") if (path := shutil.which(name)) and _works(path)
]


def paced_flow(
    src: str, dst: str, size: int, rate_bps: float | None = None, path: str = "o0"
) -> PacedFlow:
    """Return a transfer of `size` bytes by one NIC, unpaced unless a rate is given."""
    return PacedFlow(src, dst, path, size, rate_bps)


def bundled(folder: Path) -> Path:
    """Write the bundle into a folder without our packages."""
    file = folder / "agent.pyz"
    file.write_bytes(bundle())
    return file


@contextmanager
def agent(
    name: str,
    folder: Path,
    before: Sequence[str] = (),
    python: str = sys.executable,
    program: Path = AGENT,
) -> Iterator[tuple[Channel, "subprocess.Popen[bytes]"]]:
    """Yield an agent's channel and process; `before` is the argv it is started through."""
    sock = folder / f"{name}.sock"
    ranks = str(folder / f"{name}.ranks")
    process = subprocess.Popen([
        *before, python, str(program), "--name", name, "--control", str(sock), "--ranks", ranks
    ])  # fmt: skip
    try:
        channel = connect_local(name, sock, deadline_s=30.0)
        yield channel, process
        channel.close()
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def fleet_on(
    where: Island, folder: Path, python: str = sys.executable, program: Path = AGENT
) -> Iterator[Fleet]:
    """Yield a fleet of one agent in each of the namespaces."""
    with ExitStack() as undo:
        started = [
            undo.enter_context(agent(n, folder, where.inside(n), python, program))
            for n in where.names
        ]
        yield undo.enter_context(Fleet(channel for channel, _ in started))
