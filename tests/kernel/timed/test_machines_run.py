"""An experiment on two machines has the times and bytes that it has on one."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.attempts import measurements
from tests.support.machine_namespaces import NamespaceMachine, machine_namespaces
from tests.support.paths import REPOSITORY
from tests.support.placed_fabrics import machine_service, result_of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]
Machines = dict[str, NamespaceMachine]
EXPERIMENT = """
experiment: machines-run
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: {tp}, dp: {dp}, sequence: 4096, micro_batch: 8, iterations: 2}}
gating: {{matrix: {gating}}}
wiring:
  gpus_per_server: 8
  nic_rate: 100Gb/s
  regions: [{regions}]
fabrics:
  - {fabric}
scale: {{bytes: 500, dilation: 8}}
"""
REGION = "{{servers: {}, ocs: {{settle: 25ms}}}}"
SHARE = 0.02
AHEAD_S = 1000


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with machine_namespaces(["head", "m1"], subnet="10.96.0") as both:
        yield both


def experiment(folder: Path, fabric: str, regions: int) -> Path:
    file = folder / "experiment.yaml"
    text = EXPERIMENT.format(
        tp=4 // regions,
        dp=regions,
        gating=REPOSITORY / "examples/data/gating-8x8.json",
        regions=", ".join([REGION.format(4 // regions)] * regions),
        fabric=fabric,
    )
    file.write_text(text)
    return file


def collective_s(result: dict[str, Any]) -> float:
    return float(median(one["measured_s"] for one in result["results"][0]["collectives"]))


def counted(result: dict[str, Any], network: str) -> list[float]:
    return [one[f"bytes_by_{network}"] for one in result["results"][0]["collectives"]]


def assert_same_bytes(one: dict[str, Any], other: dict[str, Any]) -> None:
    for network in ("light", "eps"):
        assert counted(one, network) == pytest.approx(counted(other, network), rel=1e-3)


def is_alike(results: list[dict[str, Any]]) -> bool:
    alone, spread = map(collective_s, results)
    return abs(spread / alone - 1) < SHARE


def test_regions_on_two_machines_whose_clocks_differ(machines: Machines, tmp_path: Path) -> None:
    file = experiment(tmp_path, "{name: eps, optical: 0, electrical: 2, policy: eps}", 2)
    with machine_service(machines["m1"], clock_ahead_s=AHEAD_S) as other:
        alone, spread = measurements(
            lambda: [result_of(file, machines), result_of(file, machines, other)], is_alike, 3
        )[-1]
    assert is_alike([alone, spread])
    assert_same_bytes(spread, alone)
    hosts = spread["manifest"]["hosts"]
    assert [(one["server"], one["host"]) for one in hosts] == [("s2", "m1"), ("s3", "m1")]
    for one in hosts:
        assert abs(one["clock_offset_s"] - AHEAD_S) <= one["clock_uncertainty_s"]


def test_region_and_packet_switches_on_different_machines(
    machines: Machines, tmp_path: Path
) -> None:
    fabric = "{name: spill, optical: 2, electrical: 2, policy: spill}"
    file = experiment(tmp_path, fabric, 1)
    with machine_service(machines["m1"]) as other:
        alone, spread = measurements(
            lambda: [result_of(file, machines), result_of(file, machines, other, "eps")],
            is_alike,
            3,
        )[-1]
    assert is_alike([alone, spread])
    assert_same_bytes(spread, alone)
    assert all(counted(spread, "light") + counted(spread, "eps"))
