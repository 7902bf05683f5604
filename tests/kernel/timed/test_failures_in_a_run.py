"""A job on packets that loses a GPU, a server and a controller, by schedule and by hand.

Another one, whose servers forward for each other, loses a NIC, an OCS port and a server.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.planner.multihop import MULTIHOP
from tests.support.command_home import NEEDS_COMMAND, Home, new_home
from tests.support.fabrics import fabric
from tests.support.paths import REPOSITORY
from tests.support.slow_machines import finished_run

EXPERIMENT = """
experiment: through
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 4, sequence: 4096, micro_batch: 8, iterations: {iterations}, schedule: {schedule}}}
gating: {{matrix: {gating}}}
wiring:
  nic_rate: 100Gb/s
  backup: {{servers: 1}}
  regions:
    - servers: 4
      ocs: {{settle: 25ms}}
fabrics:
  - {fabric}
scale: {{bytes: 500, dilation: 2}}
controller_timeout: 1s
failures: {failures}
"""
MIXNET = "{name: mixnet, optical: 2, electrical: 1, policy: mixnet}"
FORWARDING = "{name: multihop, optical: 3, electrical: 1, policy: multihop}"
PLANNED = """
  - {kind: gpu, targets: [s1/3], iteration: 1, collective: 1, after: 5ms, clear: {iteration: 2}}
  - {kind: server, targets: [s3], iteration: 2, collective: 1, after: 5ms, clear: {iteration: 3}}
  - {kind: controller, targets: [r0], iteration: 3, collective: 1, mode: kill}
  - {kind: controller, targets: [r0], iteration: 4, mode: stop, clear: {iteration: 5}}
  - {kind: nic, targets: [s2/o0, s2/o1, s2/e0], iteration: 5, collective: 1, after: 5ms, clear: {iteration: 6}}
"""
WITH_FORWARDING = """
  - {kind: nic, targets: [s0/o0], iteration: 1, collective: 1, after: 5ms, clear: {iteration: 4}}
  - {kind: ocs-port, targets: [s3/o1], iteration: 4, collective: 1, after: 5ms, clear: {iteration: 7}}
  - {kind: server, targets: [s2], iteration: 7, collective: 1, after: 5ms, clear: {iteration: 8}}
"""
IN_PAIRS = [[8000 if (a // 2) ^ (b // 2) == 1 else 2000 for b in range(8)] for a in range(8)]
"""Tokens that ranks send experts: most of them go from s0 to s1, s1 to s0, s2 to s3, s3 to s2."""

pytestmark = [*NEEDS_COMMAND, pytest.mark.slow]


class RunLab(Home):
    """A home in which runs with failures are started."""

    def start(
        self,
        iterations: int,
        failures: str,
        schedule: str = "lockstep",
        fabric: str = MIXNET,
        gating: Path = REPOSITORY / "examples/data/gating-8x8.json",
    ) -> "subprocess.Popen[str]":
        """A run of that many iterations."""
        text = EXPERIMENT.format(
            iterations=iterations,
            failures=failures,
            schedule=schedule,
            fabric=fabric,
            gating=gating,
        )
        file = self.write("through.yaml", text)
        return subprocess.Popen(
            self.argv("run", file, "--json", str(self.folder / "out.json")),
            env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def result(self, run: "subprocess.Popen[str]") -> Any:
        """Return what a run says of its only fabric when it has ended."""
        output, _ = run.communicate(timeout=90)
        return finished_run(self.folder / "out.json", run.returncode, output)["results"][0]


@pytest.fixture
def lab() -> Iterator[RunLab]:
    with new_home() as home:
        yield RunLab(home.island, home.folder)


@pytest.mark.parametrize(
    "schedule", ["lockstep", pytest.param("independent", marks=pytest.mark.nightly)]
)
def test_job_survives_the_loss_of_a_gpu_a_server_and_its_controller(
    lab: RunLab, schedule: str
) -> None:
    result = lab.result(lab.start(7, PLANNED, schedule))
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
    result = lab.result(run)
    [failure] = result["failures"]
    assert (failure["kind"], failure["what"], failure["ok"]) == ("gpu", ["s2/1"], True)
    assert {c["kind"] for c in result["collectives"]} == {"dispatch", "combine", "tensor"}


def test_job_survives_the_loss_of_a_nic_a_port_and_a_relay_on_forwarded_paths(lab: RunLab) -> None:
    gating = lab.folder / "pairs.json"
    gating.write_text(json.dumps({"num_global_tokens_per_expert": IN_PAIRS}))
    result = lab.result(lab.start(10, WITH_FORWARDING, fabric=FORWARDING, gating=gating))
    nic, port, server = result["failures"]
    assert [(f["kind"], f["iteration"], f["ok"]) for f in result["failures"]] == [
        ("nic", 1, True),
        ("ocs-port", 4, True),
        ("server", 7, True),
    ]
    assert max(f["detected_s"] for f in (nic, port)) < 0.5
    assert max(f["recovered_s"] for f in (nic, port)) < 0.5
    assert server["detected_s"] < 1.0
    assert server["recovered_s"] < 1.9
    assert server["action"] == "s2 by s4; the iteration starts anew"
    integrity = result["integrity"]
    assert integrity["bytes_sent"] == integrity["bytes_received"]
    assert integrity["lost_transfers"] == integrity["corrupt"] == 0
    assert not [c["misrouted"] for c in result["collectives"] if c["misrouted"]]
    undisturbed = [c for c in result["collectives"] if not c["failures"]]
    # A slow recovery may last into the iteration after the failure, not into the one after that.
    assert {0, 3, 6} <= {c["iteration"] for c in undisturbed}, "plans know what is left or back"
    whole, without_nic, without_port, without_server = (plans(undisturbed, n) for n in (0, 3, 6, 7))
    assert len(whole) == 1
    assert whole.isdisjoint(without_nic | without_port | without_server), "they are split anew"
    assert plans(undisturbed, 9) == whole
    for c in (c for c in undisturbed if c["iteration"] < 7):  # queues keep bytes of a lost attempt
        assert c["bytes_by_light"] == pytest.approx(c["bytes_planned_by_light"], rel=0.02)
    wired = replace(fabric(3, 1), forwarding=True)
    demand = DemandMatrix(wired.servers, result["demand"])
    mesh = CircuitSet.of("~".join(ends) for ends in result["circuits"])
    assert MULTIHOP.split(wired, demand, mesh).forwarded_bytes > 0.05 * demand.array.sum()


def plans(collectives: Sequence[Mapping[str, Any]], iteration: int) -> set[tuple[float, int]]:
    """Return the predicted milliseconds and the bytes planned by light of each collective."""
    return {
        (round(1e3 * c["predicted_s"], 3), c["bytes_planned_by_light"])
        for c in collectives
        if c["iteration"] == iteration
    }
