"""Agents started by a test, one a namespace, and flows for them to send."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agents.bundle import AGENT, bundle
from agents.channel import Channel, local
from agents.fleet import Fleet
from tests.namespaces import Island


@dataclass(frozen=True)
class Paced:
    """A flow as an agent is asked for it."""

    src: str
    dst: str
    bytes: int
    rate_bps: float | None = None
    path: str = "o0"


def bundled(folder: Path) -> Path:
    """The agent as one file in that folder, where nothing else of ours is."""
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
    """An agent's channel and process; `before` is the argv it is started through."""
    sock = folder / f"{name}.sock"
    process = subprocess.Popen([*before, python, str(program), "--name", name, "--control", str(sock)])
    try:
        channel = local(name, sock)
        yield channel, process
        channel.close()
    finally:
        process.terminate()
        process.wait(5)


@contextmanager
def fleet_on(
    where: Island, folder: Path, python: str = sys.executable, program: Path = AGENT
) -> Iterator[Fleet]:
    """A fleet of one agent in each of the island's namespaces."""
    with ExitStack() as undo:
        started = [
            undo.enter_context(agent(n, folder, where.inside(n), python, program)) for n in where.names
        ]
        yield Fleet(channel for channel, _ in started)
