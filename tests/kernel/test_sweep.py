"""A sweep with packets: a run whose process is killed leaves nothing and is tried again."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.slow_machines import finished_run
from tests.support.sweep_runs import EXPERIMENT

pytest.importorskip("ray", reason="nightly: needs Ray: packaging/setup all")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]
SWEEP = {
    "sweep": "killed",
    "experiment": {**EXPERIMENT, "fabrics": EXPERIMENT["fabrics"][:1]},
    "cores": 1,
    "figures": ["iteration_s"],
}


def processes(run_dir: Path, words: str = "") -> Iterator[int]:
    """Yield the processes that use a run directory, and whose command contains some words."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
        if f"MOEFABRIC_RUN_DIR={run_dir}".encode() in environment and words in command:
            yield int(folder.name)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A run directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sweep-", dir="/tmp") as folder:
        yield Path(folder)


def test_killed_run_leaves_nothing_and_is_tried_again(run_dir: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(SWEEP))
    sweep = subprocess.Popen(
        [sys.executable, "-m", "moefabric", "sweep", str(file), "--out", str(out)],
        env={**os.environ, "MOEFABRIC_RUN_DIR": str(run_dir)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(run_dir.glob("*/fabric.json")):
        assert sweep.poll() is None, sweep.stderr and sweep.stderr.read()
        threading.Event().wait(0.05)
    (run,) = processes(run_dir, "-m moefabric run ")
    assert len(os.sched_getaffinity(run)) == 1
    os.kill(parent(run), signal.SIGKILL)
    _, errors = sweep.communicate()
    assert "trying again: no change, seed 1: WorkerCrashedError" in errors
    (record,) = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    assert [bool(attempt["error"]) for attempt in record["attempts"]] == [True, False]
    result = finished_run(out / f"runs/{record['run']}.json", sweep.returncode, errors)
    assert result["manifest"]["cores"] == 1
    assert list(processes(run_dir)) == []
    assert list(run_dir.glob("*/fabric.json")) == []
