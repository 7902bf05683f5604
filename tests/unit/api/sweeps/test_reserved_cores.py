"""Cores that a run has for itself on a machine."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moefabric.api.sweeps.execution import reserved_cores
from moefabric.core.errors import UnsupportedError

CORES = len(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(CORES < 2, reason="optional: two cores")


@pytest.fixture(autouse=True)
def run_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))


def test_runs_have_different_cores() -> None:
    with reserved_cores(1) as (first, _), reserved_cores(1) as (second, _):
        assert set(first) < os.sched_getaffinity(0)
        assert set(first).isdisjoint(second)


def test_run_waits_for_all_its_cores_at_once() -> None:
    waiting, entered = threading.Event(), threading.Event()

    def take_all() -> None:
        waiting.set()
        with reserved_cores(CORES):
            entered.set()

    with ThreadPoolExecutor() as pool:
        with reserved_cores(1):
            ended = pool.submit(take_all)
            waiting.wait(60)
            assert not entered.wait(0.2)
        ended.result(60)
    assert entered.is_set()


def test_cores_stay_reserved_while_a_process_holds_them() -> None:
    argv = [sys.executable, "-c", "input()"]
    with reserved_cores(CORES) as (_, descriptors):
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=descriptors)
    with ThreadPoolExecutor() as pool:
        entered = threading.Event()

        def take_one() -> None:
            with reserved_cores(1):
                entered.set()

        ended = pool.submit(take_one)
        assert not entered.wait(0.2)
        process.communicate(b"\n")
        ended.result(60)


def test_more_cores_than_there_are_is_refused() -> None:
    refused = pytest.raises(UnsupportedError, match="cores are needed, and this machine has")
    with refused, reserved_cores(CORES + 1):
        pass
