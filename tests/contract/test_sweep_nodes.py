"""A sweep on a Ray cluster of two nodes: another node for further attempts, files that travel."""

import json
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from moefabric.api.sweeps.campaign import carry_out
from moefabric.api.sweeps.engine import RunEnded, RunStarted
from moefabric.api.sweeps.folder import sweep_folder
from moefabric.api.sweeps.plan import plan_sweep
from moefabric.api.sweeps.ray_engine import RayEngine
from moefabric.testbed.cluster.ray_client import connected
from tests.support import sweep_runs
from tests.support.paths import EXAMPLES
from tests.support.sweep_runs import EXPERIMENT, sweep_spec, task

pytestmark = pytest.mark.nightly
pytest.importorskip("ray", reason="nightly: needs Ray: packaging/setup all")


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of two nodes with a core each, whose processes start in another folder."""
    utilities: Any = import_module("ray.cluster_utils")
    size = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        cluster = utilities.Cluster(initialize_head=True, head_node_args=size)
        cluster.add_node(**size)
    try:
        with connected(cluster.address, open_cluster=True) as ray:
            yield ray
    finally:
        cluster.shutdown()


def node_of(engine: RayEngine, *avoid: str) -> str:
    """Carry a run out and return the node that it has had."""
    engine.submit(task("a"), avoid)
    started, ended = engine.next_event(), engine.next_event()
    assert isinstance(started, RunStarted)
    assert isinstance(ended, RunEnded)
    return started.node


def test_further_attempt_has_another_node_if_there_is_one(ray: Any) -> None:
    engine = RayEngine(ray, {}, sweep_runs.interval)
    first = node_of(engine)
    second = node_of(engine, first)
    assert first != second
    assert node_of(engine, second) == first
    assert node_of(engine, first, second) in {first, second}


def test_input_files_travel_to_nodes(ray: Any, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    shutil.copy(EXAMPLES / "data/gating-8x8.json", here / "matrix.json")
    experiment = EXPERIMENT | {"gating": {"matrix": "matrix.json", "noise": 0.2}}
    plan = plan_sweep(sweep_spec(experiment=experiment), here)
    shutil.rmtree(here)
    with sweep_folder(tmp_path / "out", plan) as folder:
        carry_out(plan, RayEngine(ray, plan.archives), folder, Silent())
    records = folder.ordered()
    assert [record.error for record in records] == [""] * 4
    rows = [json.loads(line) for line in (tmp_path / "out/table.jsonl").read_text().splitlines()]
    assert len({(row["fabric"], row["iteration_s"]) for row in rows}) == 8


class Silent:
    """Shows nothing."""

    def show_message(self, text: str) -> None:
        pass

    def advance(self, text: str) -> None:
        pass
