"""Every kind of fabric carries real bytes at the rate that the fluid model gives it: oversubscribed, on rails, over a patch panel."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]
BENCH = Path(__file__).with_name("kinds_bench.py")


@pytest.mark.parametrize(
    ("kind", "seconds", "hops"),
    [
        pytest.param("oversubscribed", 0.836, 4, id="greedy-flows-share-narrow-uplinks"),
        pytest.param("rail", 0.558, 4, id="flows-keep-to-their-rail-through-a-spine"),
        pytest.param("panel", 1.115, 4, id="a-server-between-passes-on"),
    ],
)
def test_a_fabric_is_as_fast_as_predicted(kind: str, seconds: float, hops: int, tmp_path: Path) -> None:
    said = measured(kind, tmp_path)
    assert said["ok"]
    assert said["hops"] == hops
    assert said["predicted_s"] == pytest.approx(seconds, abs=1e-3)
    assert 0.95 < said["measured_s"] / said["predicted_s"] < 1.15


def measured(kind: str, folder: Path) -> dict[str, Any]:
    """What the bench prints, in a namespace of its own."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(BENCH), kind],
        env=os.environ | {"MOEFABRIC_RUN_DIR": str(folder), "PYTHONPATH": str(BENCH.parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
