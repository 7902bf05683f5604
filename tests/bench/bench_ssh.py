"""Seconds to start the agents of eight hosts over SSH: one login alone, and all at once."""

import os
import statistics
import time
from pathlib import Path

import pytest

from moefabric.agents.remote.ssh import agents_on
from tests.bench.recording import record
from tests.support.ssh_lab import SshLab, ssh_lab

pytestmark = [pytest.mark.kernel, pytest.mark.sshd]
SERVERS = tuple(f"s{i}" for i in range(8))
ROUNDS = 5
LIMIT_S = 5.0


def deployment_s(lab: SshLab, servers: tuple[str, ...]) -> float:
    begin_s = time.monotonic()
    channels = agents_on({server: lab.host(server) for server in servers})
    duration_s = time.monotonic() - begin_s
    for channel in channels:
        channel.close()
    return duration_s


def test_eight_hosts_are_deployed_in_parallel(tmp_path: Path) -> None:
    with ssh_lab(tmp_path, SERVERS) as lab:
        times = [
            (deployment_s(lab, SERVERS[:1]), deployment_s(lab, SERVERS)) for _ in range(ROUNDS)
        ]
    one_s, eight_s = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"\none host {one_s:.2f} s, eight hosts {eight_s:.2f} s, on {os.cpu_count()} cores")
    one, eight = zip(*times, strict=True)
    record("start of agents over SSH: 1 host", "s", samples=one)
    record(
        "start of agents over SSH, best: 8 hosts", "s", min(eight), samples=eight, at_most=LIMIT_S
    )
    assert min(eight) < LIMIT_S
