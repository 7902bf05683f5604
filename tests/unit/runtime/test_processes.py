"""Ends and restarts of processes."""

import os
import signal
import subprocess
import sys

import pytest

from moefabric.core.errors import FabricError
from moefabric.runtime.processes import Process, Supervisor, end_processes

_GRACEFUL = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    signal.pause()
"""


def started(script: str) -> tuple[Process, "subprocess.Popen[bytes]"]:
    argv = [sys.executable, "-S", "-c", script]
    popen = subprocess.Popen(argv, stdout=subprocess.PIPE)
    return Process("one", popen.pid, os.pidfd_open(popen.pid)), popen


def test_stopped_process_gets_to_handle_sigterm() -> None:
    process, popen = started(_GRACEFUL)
    with popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        process.signal(signal.SIGSTOP)
        assert end_processes([process.pidfd], grace_s=30) == set()
        assert process.exit_status == 7
        popen.wait()
        process.reap()


def test_exit_status_is_negative_for_a_signal() -> None:
    process, popen = started("import signal; signal.pause()")
    with popen:
        before = process.exit_status
        assert before is None
        assert end_processes([process.pidfd], grace_s=0) == {process.pidfd}
        assert process.exit_status == -signal.SIGKILL
        popen.wait()
        process.reap()


def test_supervisor_delays_a_process_that_cannot_start(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor[str, Process]()
    attempts = 0

    def start() -> Process:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise FabricError("no room")
        return Process("ocs0", 1, -1)

    assert supervisor.start_due("ocs0", "ocs0", start) is None
    assert supervisor.start_due("ocs0", "ocs0", start) is None, "the first retry is immediate"
    assert supervisor.start_due("ocs0", "ocs0", start) is None
    assert attempts == 2, "later ones have to wait"
    assert 0 < (supervisor.wait_s or 0) <= 0.2
    supervisor.restarts["ocs0"].not_before_s = 0.0
    assert supervisor.start_due("ocs0", "ocs0", start) == Process("ocs0", 1, -1)
    assert supervisor.wait_s is None
    assert [record.getMessage() for record in caplog.records] == [
        "ocs0 can't start, next in 0 s: no room",
        "ocs0 can't start, next in 0.2 s: no room",
    ]
    assert supervisor.note_end("ocs0") == 0.4
    assert supervisor.running == {}
