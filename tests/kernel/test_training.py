"""A model trains on fabrics: equal losses, times that a replay of its gates has, and restarts."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from moefabric.core.errors import SpecError
from moefabric.results.journal import JournalReader
from moefabric.runtime.waiting import Deadline
from tests.support.command_home import NEEDS_COMMAND, Home, new_home
from tests.support.machine_namespaces import machine_namespaces
from tests.support.paths import EXAMPLES
from tests.support.placed_fabrics import machine_service, result_of
from tests.support.slow_machines import finished_run

PROGRAM = EXAMPLES / "train/train.py"
SIZES = ("--layers=1", "--experts=4", "--hidden=64", "--sequence=64", "--batch=8", "--seed=1")
ITERATIONS, RANKS = 4, 4
JOB = f"""
experiment: learns
model: {{name: mixtral-8x7b, layers: 1, experts: 4}}
training: {{ep: 4, tp: 8, sequence: 4096, micro_batch: 4, iterations: {ITERATIONS}}}
wiring:
  nic_rate: 100Gb/s
  regions: [{{servers: 4, ocs: {{settle: 10ms}}}}]
scale: {{dilation: 5}}
control_time: 5ms
"""
TRAINS = f"""
train:
  program: {PROGRAM}
  hidden: 64
  sequence: 64
  batch: 8
  checkpoint_every: 2
  arguments: [--backend=moefabric, "--steps={{iterations}}", {", ".join(SIZES)},
              "--checkpoint={{checkpoint}}", "--checkpoint-every={{checkpoint_every}}"]
"""
SPILL = "{name: spill, optical: 3, electrical: 1, policy: spill}"
EPS = "{name: eps, optical: 0, electrical: 4, policy: eps}"
FAILURES = """
failures:
  - {kind: nic, targets: [s0/o0], iteration: 1, collective: 0}
  - {kind: controller, targets: [r0], iteration: 2, collective: 0}
  - {kind: ocs, targets: [ocs0], iteration: 3, collective: 0}
"""

pytestmark = [*NEEDS_COMMAND, pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(600)]
pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")


def start(home: Home, text: str, verb: str, *words: str) -> "subprocess.Popen[str]":
    """Start an experiment; its results are in `result.json`."""
    result = ("--json", str(home.folder / "result.json"))
    return subprocess.Popen(
        home.argv(verb, home.write("experiment.yaml", text), *result, *words),
        env=home.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(home: Home, process: "subprocess.Popen[str]") -> dict[str, Any]:
    output, _ = process.communicate(timeout=250)
    return finished_run(home.folder / "result.json", process.returncode, output)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with new_home() as home:
        yield home


@pytest.fixture(scope="module")
def trained(home: Home) -> dict[str, Any]:
    """The result of a training on two fabrics; its gating is in `gating.npz`."""
    gating = str(home.folder / "gating.npz")
    process = start(home, f"{JOB}{TRAINS}fabrics: [{EPS}, {SPILL}]", "train", "--gating", gating)
    return finish(home, process)


def test_killed_training_goes_on_with_the_fabric_that_was_stopped(home: Home) -> None:
    file = home.folder / "stopped.json"
    journal = file.with_suffix(".jsonl")
    text = f"{JOB}{TRAINS}fabrics: [{EPS}, {SPILL}]".replace("learns", "stopped")
    words = ["train", home.write("stopped.yaml", text), "--json", str(file)]
    first = subprocess.Popen(home.argv(*words), env=home.env, stderr=subprocess.DEVNULL)
    Deadline.after(250).wait_for(lambda: bool(finished(journal)), "the end of the first fabric")
    first.kill()
    first.wait()
    before = JournalReader(journal).result("eps")
    again = home.call(*words, "--resume", timeout_s=250)
    result = finished_run(file, again.returncode, again.stderr)
    assert [one["fabric"] for one in result["results"]] == ["eps", "spill"]
    assert before is not None
    assert before.training is not None
    assert losses(result["results"][0]) == [one.text for one in before.training.losses]
    assert len(result["results"][1]["training"]["losses"]) == ITERATIONS
    assert "eps: bringing" not in again.stderr


def finished(journal: Path) -> list[str]:
    """Return the fabrics that a journal has results of."""
    try:
        fabrics = JournalReader(journal).fabrics
    except SpecError:  # it has no header yet
        return []
    return [name for name, lines in fabrics.items() if lines.result]


def losses(fabric: dict[str, Any]) -> list[str]:
    return [entry["text"] for entry in fabric["training"]["losses"]]


@pytest.fixture(scope="module")
def gloo_losses() -> list[str]:
    """The losses of plain gloo on the loopback interface."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4",
        str(PROGRAM), f"--steps={ITERATIONS}", *SIZES,
    ]  # fmt: skip
    output = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=250, check=True
    ).stdout
    return [line.split()[3] for line in output.splitlines() if line.startswith("step ")]


def test_losses_are_those_of_plain_gloo_to_the_last_bit(
    trained: dict[str, Any], gloo_losses: list[str]
) -> None:
    assert len(gloo_losses) == ITERATIONS
    for fabric in trained["results"]:
        assert losses(fabric) == gloo_losses
        assert fabric["integrity"]["lost_transfers"] == fabric["integrity"]["corrupt"] == 0


def test_each_byte_of_ranks_crosses_the_fabric(trained: dict[str, Any]) -> None:
    for fabric in trained["results"]:
        tokens = fabric["training"]["tokens"]
        leaving = sum(
            count
            for iteration in tokens
            for layer in iteration
            for rank, row in enumerate(layer)
            for expert, count in enumerate(row)
            if expert != rank
        )
        summed = sum(one["bytes"] for one in fabric["transfers"])
        assert {one["kind"] for one in fabric["transfers"]} == {"all-reduce"}
        assert summed > 0, "ranks sum the gradients of attention"
        sent = fabric["integrity"]["bytes_sent"] - summed / fabric["training"]["byte_scale"]
        assert sent == 4 * leaving * 64 * 4
    eps, spill = trained["results"]
    assert sum(part["bytes_by_light"] for part in eps["collectives"]) == 0
    shares = sum(p["bytes_by_light"] for p in spill["collectives"]) / sum(
        p["bytes"] for p in spill["collectives"]
    )
    assert 0.5 < shares < 0.9
    assert len(spill["reconfigurations"]) >= ITERATIONS


def test_replay_of_the_gates_takes_as_long(home: Home, trained: dict[str, Any]) -> None:
    text = f"{JOB}gating: {{trace: gating.npz}}\nfabrics: [{EPS}, {SPILL}]"
    text = text.replace("scale: {", "scale: {bytes: 1024, ")  # that of the training
    replayed = finish(home, start(home, text, "run"))
    for fabric, other in zip(trained["results"], replayed["results"], strict=True):
        expected, found = (
            fmean(entry["predicted_s"] for entry in one["iterations"]) for one in (fabric, other)
        )
        assert found == pytest.approx(expected, rel=0.03)


def test_failures_change_no_loss(home: Home, trained: dict[str, Any]) -> None:
    result = finish(home, start(home, f"{JOB}{TRAINS}{FAILURES}fabrics: [{SPILL}]", "train"))
    [fabric] = result["results"]
    assert losses(fabric) == losses(trained["results"][1])
    assert {failure["kind"] for failure in fabric["failures"]} == {"nic", "controller", "ocs"}


def test_killed_rank_starts_again_from_the_checkpoint(home: Home, trained: dict[str, Any]) -> None:
    # Ranks save their state while the run still sums gradients: a rank that is lost then costs an
    # iteration's record.
    job = JOB.replace("micro_batch: 4", "micro_batch: 4, gradient_sums: false")
    process = start(home, f"{job}{TRAINS}fabrics: [{SPILL}]", "train")
    Deadline.after(250).wait_for(
        lambda: bool(ranks_with_checkpoint(home)) or process.poll() is not None, "a checkpoint"
    )
    os.kill(ranks_with_checkpoint(home)[-1], signal.SIGKILL)
    [fabric] = finish(home, process)["results"]
    [restart] = fabric["training"]["restarts"]
    assert "signal 9" in restart["reason"] or "has ended" in restart["reason"]
    assert restart["resumed"] == 2
    assert losses(fabric) == losses(trained["results"][1])


def test_ranks_on_another_machine_have_the_same_losses(
    tmp_path: Path, gloo_losses: list[str]
) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(f"{JOB}{TRAINS}fabrics: [{SPILL}]")
    with (
        machine_namespaces(["head", "m1"], subnet="10.95.0") as machines,
        machine_service(machines["m1"]) as other,
    ):
        result = result_of(file, machines, other, "servers", "train")
    [fabric] = result["results"]
    assert {one["host"] for one in result["manifest"]["hosts"]} == {"m1"}
    assert losses(fabric) == gloo_losses
    assert sum(part["bytes_by_light"] for part in fabric["collectives"]) > 0


def ranks_with_checkpoint(home: Home) -> list[int]:
    """Processes of this home's ranks, once all of them have written a checkpoint."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            argv = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        mine = f"MOEFABRIC_AGENT={home.folder}".encode()
        if any(line.startswith(mine) for line in environment) and str(PROGRAM) in argv:
            prefix = next(word for word in argv if word.startswith("--checkpoint=")).split("=")[1]
            if len(list(Path(prefix).parent.glob("*-step*.pt"))) >= RANKS:
                found.append(int(entry.name))
    return sorted(found)
