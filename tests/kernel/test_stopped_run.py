"""A run that is interrupted writes what it has, and goes on where it was stopped."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from moefabric.results.journal import JournalReader
from tests.support.slow_machines import finished_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
EXPERIMENT = f"""
experiment: stopped
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 4, sequence: 4096, micro_batch: 8, iterations: 4}}
gating: {{matrix: {ROOT}/examples/data/gating-8x8.json}}
wiring: {{nic_rate: 100Gb/s, regions: [{{servers: 4}}]}}
fabrics:
  - {{name: eps, optical: 0, electrical: 4, policy: eps}}
  - {{name: mixnet, optical: 3, electrical: 1, policy: mixnet}}
scale: {{bytes: 1000, dilation: 2}}
"""


def moefabric(*words: object) -> "subprocess.Popen[str]":
    """Start the command in a process group of its own."""
    argv = [str(Path(sys.executable).with_name("moefabric")), *map(str, words)]
    return subprocess.Popen(
        argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, process_group=0
    )


def iterations(journal: Path, fabric: str) -> int:
    """Return how many iterations of a fabric the journal has; 0 until its header is whole."""
    if not journal.exists() or b"\n" not in journal.read_bytes():
        return 0
    return len(JournalReader(journal).iterations(fabric))


def await_iterations(process: "subprocess.Popen[str]", journal: Path, fabric: str) -> None:
    """Wait for an iteration to end, as a tool outside would: by reading the journal."""
    while not iterations(journal, fabric):
        assert process.poll() is None, process.stderr and process.stderr.read()
        threading.Event().wait(0.05)


def test_interrupted_run_writes_what_it_has_and_goes_on(tmp_path: Path) -> None:
    experiment, file = tmp_path / "stopped.yaml", tmp_path / "run.json"
    journal = file.with_suffix(".jsonl")
    experiment.write_text(EXPERIMENT)
    first = moefabric("run", experiment, "--json", file, "--report", tmp_path / "run.html")
    await_iterations(first, journal, "mixnet")
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate()
    assert first.returncode == 130
    ended = iterations(journal, "mixnet")
    assert f"incomplete: mixnet was stopped after {ended} of 4 iterations" in errors
    before = json.loads(file.read_text())
    assert before["incomplete"] == f"mixnet was stopped after {ended} of 4 iterations"
    assert [len(entry["iterations"]) for entry in before["results"]] == [4, ended]
    assert "none" not in (before["manifest"]["datapath"], before["manifest"]["crossbar"])
    assert "stopped after" in (tmp_path / "run.html").read_text()

    other = moefabric("run", experiment, "--json", file, "--resume", "--set", "seed=7")
    _, errors = other.communicate()
    assert other.returncode == 1
    fault = "experiment.seed: differs from the run that was stopped (1 there, 7 here)"
    assert f"{journal}: {fault}" in errors
    assert "iterations, scale" not in errors, "it is refused before anything is said of a run"

    last = moefabric("run", experiment, "--json", file, "--resume")
    _, errors = last.communicate()
    assert "eps:" not in errors, "a finished fabric is not brought up again"
    after = finished_run(file, last.returncode, errors)
    assert [len(entry["iterations"]) for entry in after["results"]] == [4, 4]
    assert after["results"][0]["iterations"] == before["results"][0]["iterations"]
    assert after["results"][1]["collectives"][: 4 * ended] == before["results"][1]["collectives"]
    assert not after.get("incomplete")
    assert len(after["manifest"]["resumed"]) == 1
    assert after["manifest"]["started"] == before["manifest"]["started"]


def test_killed_run_with_failures_keeps_the_fabrics_before(tmp_path: Path) -> None:
    """Broken components have a state that no journal holds: the fabric under way begins anew."""
    experiment, file = tmp_path / "killed.yaml", tmp_path / "run.json"
    journal = file.with_suffix(".jsonl")
    failure = "failures: [{kind: nic, targets: [s0/e0], iteration: 1, collective: 0}]\n"
    experiment.write_text(EXPERIMENT.replace("stopped", "killed") + failure)
    first = moefabric("run", experiment, "--json", file)
    await_iterations(first, journal, "mixnet")
    first.kill()
    first.communicate()
    before = JournalReader(journal).result("eps")
    last = moefabric("run", experiment, "--json", file, "--resume")
    _, errors = last.communicate()
    assert "eps:" not in errors, "a finished fabric is not brought up again"
    results = json.loads(file.read_text())["results"]
    assert [len(one["iterations"]) for one in results] == [4, 4]
    assert before is not None
    assert results[0]["iterations"] == before.to_json()["iterations"]
    assert [one["kind"] for one in results[1]["failures"]] == ["nic"]
