"""A Ray cluster is used with a token, or not at all unless its user says that it is alone."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moefabric.core.errors import UnsupportedError
from moefabric.runtime.processes import wait_or_kill
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.cluster.ray_client import check_token

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(180)]
pytest.importorskip("ray", reason="nightly: needs Ray: packaging/setup all")
TOKEN = secrets.token_hex(32)
START_S = 90.0


@contextmanager
def ray_head(**variables: str) -> Iterator[str]:
    """Start the head of a cluster on loopback, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="mf-ray-", dir="/tmp")  # its sockets need a short path
    argv = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    argv += [f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
    argv += ["--object-store-memory=80000000", "--include-dashboard=false"]
    argv += ["--disable-usage-stats", f"--temp-dir={folder}"]
    environment = {**os.environ, "RAY_enable_metrics_collection": "0", **variables}
    with (Path(folder) / "log").open("wb") as log:
        head = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    try:
        Deadline.after(START_S).wait_for(
            lambda: "Ray runtime started" in (Path(folder) / "log").read_text(), "Ray"
        )
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        wait_or_kill(head, 30)


def test_cluster_without_a_token_is_refused_with_the_remedy() -> None:
    with (
        ray_head(RAY_AUTH_MODE="disabled") as address,
        pytest.raises(UnsupportedError, match=r"has no token.*RAY_AUTH_TOKEN.*--open-cluster"),
    ):
        check_token(address)


def test_cluster_with_a_token_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with ray_head(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as address:
        check_token(address)


def test_silent_head_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(UnsupportedError, match="is not known"),
    ):
        check_token(f"127.0.0.1:{silent.getsockname()[1]}")
