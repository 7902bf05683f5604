"""Fabrics on the nodes of a Ray cluster: placed, commanded from the head, gone after any death."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moefabric.results.journal import JournalReader
from tests.support.machine_namespaces import NamespaceMachine, machine_namespaces
from tests.support.paths import REPOSITORY
from tests.support.ray_machines import ray_cluster

pytest.importorskip("ray", reason="nightly: needs Ray: packaging/setup all")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

MOEFABRIC = (sys.executable, "-m", "moefabric")
ON_CLUSTER = ("--cluster", "auto", "--spread", "strict-spread")
FABRIC = """
fabric: NAME
gpus_per_server: 1
nic_rate: 100Gb/s
nics: {optical: 1, electrical: 1}
regions: [{count: 2, servers: 2, ocs: {settle: 1ms}}]
scale: {bytes: 1000}
"""
EXPERIMENT = f"""
experiment: NAME
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 4, sequence: 4096, micro_batch: 8, iterations: 200}}
gating: {{matrix: {REPOSITORY}/examples/data/gating-8x8.json}}
wiring: {{nic_rate: 100Gb/s, regions: [{{servers: 4, ocs: {{settle: 1ms}}}}]}}
fabrics: [{{name: mixnet, optical: 2, electrical: 1, policy: mixnet}}]
scale: {{bytes: 2000, dilation: 4}}
"""

Cluster = dict[str, NamespaceMachine]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with machine_namespaces(["a", "b", "c"]) as machines, ray_cluster(machines) as nodes:
        yield nodes


def written(folder: Path, text: str, name: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("NAME", name))
    return str(path)


def wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Return whether something of another machine becomes so in time."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)  # machines announce nothing to the test
    return True


def iterations(journal: Path) -> int:
    """Return how many iterations the journal of a run has; 0 until its header is whole."""
    if not journal.exists() or b"\n" not in journal.read_bytes():
        return 0
    return len(JournalReader(journal).iterations("mixnet"))


def leftovers(machine: NamespaceMachine) -> list[str]:
    """Return interfaces and processes of fabrics on a machine."""
    processes = [line for line in machine.processes() if "moefabric." in line]
    return [*machine.interfaces(), *processes]


def is_clean_within(machine: NamespaceMachine, limit_s: float) -> bool:
    """Return whether nothing of fabrics is left on a machine in time."""
    return wait_until(lambda: not leftovers(machine), limit_s)


def alive(cluster: Cluster) -> list[str]:
    """Return the names of the machines that still run."""
    return [name for name, machine in cluster.items() if machine.init.poll() is None]


def test_regions_on_nodes_of_their_own_reach_each_other_and_go_down_from_any_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = written(tmp_path, FABRIC, "rayup")
    cluster["a"].run(*MOEFABRIC, "up", file, *ON_CLUSTER, timeout_s=120)
    again = cluster["a"].run(*MOEFABRIC, "up", file, *ON_CLUSTER, timeout_s=120)
    assert "was up already" in again.stdout
    for machine in cluster.values():
        assert leftovers(machine)
    cluster["a"].run(*MOEFABRIC, "exec", "s0", "--", "ping", "-c1", "-W5", "10.1.0.1")
    cluster["a"].run(*MOEFABRIC, "light", "s2/o0~s3/o0")
    cluster["a"].run(*MOEFABRIC, "exec", "s2", "--", "ping", "-c1", "-W5", "10.1.1.1")
    cluster["b"].run(*MOEFABRIC, "down", "rayup", "--cluster", "auto", timeout_s=120)
    for machine in cluster.values():
        assert is_clean_within(machine, 30), leftovers(machine)


def test_a_fabric_without_room_is_refused_with_numbers(cluster: Cluster, tmp_path: Path) -> None:
    file = written(tmp_path, FABRIC, "raybig")
    many = ("--set", "scale.bytes=10", "--set", "nics={optical: 4, electrical: 4}")
    ended = cluster["a"].run(*MOEFABRIC, "up", file, *many, *ON_CLUSTER, check=False)
    assert ended.returncode == 1
    assert "r0 needs 16.3 cores, no node has more than 8 left" in ended.stderr


def test_a_node_that_dies_makes_the_run_invalid_and_leaves_nothing_elsewhere(
    cluster: Cluster, tmp_path: Path
) -> None:
    file, result = written(tmp_path, EXPERIMENT, "raydie"), tmp_path / "result.json"
    run = cluster["a"].start(*MOEFABRIC, "run", file, "--json", str(result), *ON_CLUSTER)
    try:
        assert wait_until(lambda: bool(iterations(tmp_path / "result.jsonl")), 120)
        dead = next(name for name in "cb" if leftovers(cluster[name]))  # Ray chose it
        cluster[dead].kill()
        assert run.wait(timeout=60) == 3
    finally:
        run.kill()
        run.wait()
    (fabric,) = json.loads(result.read_text())["results"]
    assert fabric["fidelity"]["verdict"] == "invalid"
    assert any(f"machine {dead}" in reason for reason in fabric["fidelity"]["reasons"])
    for name in alive(cluster):
        assert is_clean_within(cluster[name], 30), leftovers(cluster[name])


def test_a_head_that_dies_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    file = written(tmp_path, FABRIC, "rayhead")
    head = alive(cluster)[-1]
    words = ("up", file, "--cluster", "auto", "--spread", "spread")
    cluster[head].run(*MOEFABRIC, *words, timeout_s=120)
    assert leftovers(cluster["a"])
    cluster[head].kill()
    assert is_clean_within(cluster["a"], 60), leftovers(cluster["a"])
