"""Agents started by a test, one a namespace, and flows for them to send."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from moefabric.agents.fleet.channel import Channel, connect_local, wait
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.inflight import flow_records
from moefabric.agents.remote.bundle import AGENT, bundle
from moefabric.core.flows import FlowRecord, PacedFlow
from moefabric.emulator.fabric.daemon_protocol import request
from moefabric.runtime.run_directory import RunDirectory
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


def kill_agent(fabric: str, server: str) -> None:
    """Kill the agent of a server of a running fabric, and no other agent."""
    message = {"do": "signal", "server": server, "number": signal.SIGKILL}
    request(RunDirectory.of_fabric(fabric), message)


def arm(fleet: Fleet, number: int, flows: Sequence[PacedFlow], deadline_s: float) -> int:
    """Order flows that start together soon; return when."""
    start_ns = time.monotonic_ns() + fleet.lead_ns(fleet.channels)
    fleet.launch(flows, start_ns, deadline_s, number=number)
    return start_ns


def collect(fleet: Fleet, number: int) -> list[FlowRecord]:
    """Return the records of an ordered collective once it has ended."""
    while number not in (ended := fleet.wait_ended(None)):
        pass
    return ended[number]


def reported(fleet: Fleet, number: int, flows: Sequence[PacedFlow]) -> list[FlowRecord]:
    """Return the records of a collective that was requested without the fleet."""
    channels = [fleet.channel(name) for flow in flows for name in (flow.src, flow.dst)]
    assert not wait(channels, lambda channel: number in channel.reports, 10.0)
    reports = {channel.name: channel.reports[number] for channel in channels}
    return flow_records(number, flows, reports, fleet.clocks.our_time)


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
