"""A job on packets that loses a GPU, a server and a controller, by schedule and by hand."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.namespaces import island
from tests.support.paths import REPOSITORY

MOEFABRIC = shutil.which("moefabric", path=str(REPOSITORY / ".venv/bin")) or ""
EXPERIMENT = """
experiment: through
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 4, sequence: 4096, micro_batch: 8, iterations: {iterations}, schedule: {schedule}}}
gating: {{matrix: {repository}/examples/data/gating-8x8.json}}
wiring:
  nic_rate: 100Gb/s
  backup: {{servers: 1}}
  regions:
    - servers: 4
      ocs: {{settle: 25ms}}
fabrics:
  - {{name: mixnet, optical: 2, electrical: 1, policy: mixnet}}
scale: {{bytes: 500, dilation: 2}}
controller_timeout: 1s
failures: {failures}
"""
PLANNED = """
  - {kind: gpu, targets: [s1/3], iteration: 1, collective: 1, after: 5ms, clear: {iteration: 2}}
  - {kind: server, targets: [s3], iteration: 2, collective: 1, after: 5ms, clear: {iteration: 3}}
  - {kind: controller, targets: [r0], iteration: 3, collective: 1, mode: kill}
  - {kind: controller, targets: [r0], iteration: 4, mode: stop, clear: {iteration: 5}}
  - {kind: nic, targets: [s2/o0, s2/o1, s2/e0], iteration: 5, collective: 1, after: 5ms, clear: {iteration: 6}}
"""

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(not MOEFABRIC, reason="needs the command: packaging/setup run"),
]


@dataclass
class RunLab:
    """A namespace and a run directory for the command."""

    before: list[str]
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "MOEFABRIC_RUN_DIR": str(self.folder / "run")}

    def start(
        self, iterations: int, failures: str, schedule: str = "lockstep"
    ) -> "subprocess.Popen[str]":
        """A run of that many iterations."""
        file = self.folder / "through.yaml"
        file.write_text(
            EXPERIMENT.format(
                iterations=iterations, repository=REPOSITORY, failures=failures, schedule=schedule
            )
        )
        words = [*self.before, MOEFABRIC, "run", str(file), "--json", str(self.folder / "out.json")]
        return subprocess.Popen(
            words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self.before, MOEFABRIC, *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    @property
    def result(self) -> Any:
        return json.loads((self.folder / "out.json").read_text())["results"][0]


@pytest.fixture
def lab() -> Iterator[RunLab]:
    with tempfile.TemporaryDirectory(dir="/run") as folder, island("home") as where:
        yield RunLab(where.inside("home"), Path(folder))


@pytest.mark.parametrize("schedule", ["lockstep", "independent"])
def test_job_survives_the_loss_of_a_gpu_a_server_and_its_controller(
    lab: RunLab, schedule: str
) -> None:
    run = lab.start(7, PLANNED, schedule)
    said, _ = run.communicate(timeout=90)
    assert run.returncode in (0, 3), said  # a busy machine may make it invalid, and never a fault
    result = lab.result
    gpu, server, killed, stopped, cut_off = result["failures"]
    assert [(f["kind"], f["iteration"], f["ok"]) for f in result["failures"]] == [
        ("gpu", 1, True),
        ("server", 2, True),
        ("controller", 3, True),
        ("controller", 4, True),
        ("nic", 5, True),
    ]
    assert gpu["detected_s"] < 0.5
    assert gpu["action"] == "s1/3 by s4/0; the iteration starts anew"
    assert server["detected_s"] < 1.0, "its region's controller sees its NICs go"
    assert server["recovered_s"] < 1.9, "and the job needn't wait for its silence"
    assert "no NIC has a link" in server["detected_by"]
    assert server["action"] == "s3 by s4; the iteration starts anew"
    assert 1.0 <= stopped["recovered_s"] < 4.0, "its region's patience"
    assert killed["recovered_s"] < 5.0
    # Its links fail one after the other: while only the electrical ones are known to be down, a
    # peer relays for it.
    assert cut_off["action"].endswith("s2 by s4; the iteration starts anew"), (
        "though its agent lives"
    )
    kinds = [c["kind"] for c in result["collectives"] if c["iteration"] == 1]
    assert kinds.count("tensor") == 4, "the rank of four GPUs is on two servers"
    integrity = result["integrity"]
    assert integrity["bytes_sent"] == integrity["bytes_received"]
    assert integrity["lost_transfers"] == integrity["corrupt"] == 0
    assert integrity["retried_transfers"] >= 12
    alone = [r for r in result["reconfigurations"] if r["iteration"] == 4]
    assert all(r["error"] for r in alone)
    dark, lit = (
        [c for c in result["collectives"] if c["iteration"] == number] for number in (4, 6)
    )
    assert {c["bytes_planned_by_light"] for c in dark} == {0}
    assert all((c["bytes_by_light"] or 0) < 1e-3 * c["bytes"] for c in dark)
    assert sum(c["bytes_by_light"] or 0 for c in lit) > 0.1 * sum(c["bytes"] for c in lit)
    print(*(c["misrouted"] for c in result["collectives"] if c["misrouted"]), sep="\n")
    assert not [c for c in result["collectives"] if c["misrouted"]]


def test_failures_injected_by_hand_are_survived_and_reported(lab: RunLab) -> None:
    run = lab.start(3, "[]")
    ends = time.monotonic() + 30
    while (told := lab.call("fault", "gpu", "s2/1")).returncode and time.monotonic() < ends:
        assert run.poll() is None, run.communicate()[0]
    assert told.returncode == 0, told.stderr
    said, _ = run.communicate(timeout=90)
    assert run.returncode in (0, 3), said  # a busy machine may make it invalid, and never a fault
    [failure] = lab.result["failures"]
    assert (failure["kind"], failure["what"], failure["ok"]) == ("gpu", ["s2/1"], True)
    assert {c["kind"] for c in lab.result["collectives"]} == {"dispatch", "combine", "tensor"}
