"""Traces with real bytes on fabrics that the plugin of pytest brings up."""

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric.execution.programs.replay import ReplayOptions, ReplayResult
from moefabric.traces.formats import read_trace
from moefabric.ui.cli.main import main
from moefabric.ui.testing import FabricUnderTest
from moefabric.workload.graphs.execution_graph import ExecutionGraph
from tests.support.attempts import measurements
from tests.support.paths import EXAMPLES, REPOSITORY

pytestmark = [
    pytest.mark.usefixtures("own_machine"),
    pytest.mark.fabric(
        fabric="replay",
        gpus_per_server=2,
        nic_rate="100Gb/s",
        nics={"optical": 2, "electrical": 2},
        regions=[{"servers": 4, "ocs": {"settle": "25ms"}}],
        scale={"bytes": 1000},
    ),
]
TRACES = REPOSITORY / "tests/data/traces"
CHAKRA = TRACES / "chakra"


def graph_of(path: Path) -> ExecutionGraph:
    graph = read_trace(path)
    assert isinstance(graph, ExecutionGraph)
    return graph


def test_traces_take_what_the_model_says_and_give_right_results(fabric: FabricUnderTest) -> None:
    """A training step with two groups, and real traces of ResNet and DLRM."""
    for path, kinds in (
        (CHAKRA / "mini_moe_ep4_dp2/m", {"all_reduce", "all_to_all", "compute"}),
        (TRACES / "pytorch/resnet_2gpu_et.json.gz", {"all_reduce", "broadcast"}),
        (TRACES / "pytorch/dlrm", {"all_reduce", "all_to_all", "compute"}),
    ):
        graph = graph_of(path)
        results = measurements(
            partial(fabric.replay, graph, ReplayOptions(runs=1, wall_s=1.0)),
            lambda result: abs(result.error) < 0.1,
            attempts=3,
        )
        assert {row.kind for row in results[-1].operations} == kinds
        assert [result.wrong for result in results] == [0] * len(results)
        assert abs(results[-1].error) < 0.1, (path, results)


def sent_bytes(result: ReplayResult) -> float:
    return result.bytes_by_light + result.bytes_by_eps


def test_policy_chooses_circuits_for_the_bytes_of_a_trace(fabric: FabricUnderTest) -> None:
    graph = graph_of(CHAKRA / "mini_moe_ep4_dp2/m")
    result = fabric.replay(graph, ReplayOptions(via="policy", runs=1, wall_s=1.0))
    assert result.wrong == 0
    assert fabric.circuits()
    assert result.bytes_by_light == pytest.approx(result.bytes_planned_by_light, rel=0.05)
    assert min(result.bytes_by_light, result.bytes_by_eps) > 0.3 * sent_bytes(result)


@pytest.mark.nightly
def test_command_folds_a_large_job_and_says_so(fabric: FabricUnderTest, tmp_path: Path) -> None:
    """A job of 9,216 GPUs on four ranks."""
    output = tmp_path / "replay.json"
    command = ("replay", str(EXAMPLES / "data/simai-moe-9216.txt.gz"), "--name", fabric.name)
    options = (
        "--ranks",
        "4",
        "--operations",
        "60",
        "--runs",
        "1",
        "--wall",
        "2",
        "--json",
        str(output),
    )
    run = CliRunner().invoke(main, [*command, *options, "--json", str(output)])
    assert "note: 9216 GPUs (tensor 2, expert 16, pipeline 12, data 384) are folded" in run.output
    result = json.loads(output.read_text())
    assert run.exit_code == (3 if result["verdict"] == "invalid" else 0), run.output
    assert result["ranks"] == 4
    assert result["wrong"] == 0
    assert "all_to_all" in {row["kind"] for row in result["operations"]}
