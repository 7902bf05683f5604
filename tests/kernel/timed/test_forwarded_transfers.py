"""Transfers that hosts forward: whole, counted at every hop, and ended by name if a relay dies."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import REPOSITORY

SCRIPT = Path(__file__).with_name("forwarded_transfers.py")


def result_of(folder: Path, *action: str) -> dict[str, Any]:
    """Run the script in a new network namespace and return what it prints."""
    process = subprocess.run(
        ["unshare", "--net", sys.executable, str(SCRIPT), *action],
        env=os.environ | {"MOEFABRIC_RUN_DIR": str(folder), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def test_bytes_arrive_whole_and_are_counted_at_every_hop(short_folder: Path) -> None:
    results = result_of(short_folder, "compare", "16000000")
    assert len(results) == 3
    for kind, result in results.items():
        assert result["whole"], result["why"]
        # Four flows, each with four ports on a circuit and four more on a second one.
        assert result["ports"] == (16 if kind == "direct" else 32)
        assert result["port_error"] < 0.002
        assert 0.97 < result["measured_s"] / result["predicted_s"] < 1.15


def test_relay_that_dies_ends_its_transfers_by_name(short_folder: Path) -> None:
    result = result_of(short_folder, "death")
    assert result["lost"] == ["s1"]
    assert "agent s1: its control channel" in result["text"]
    assert result["sender"].startswith("connection to s2 by r1 over s1 at 10.0.1.1 port ")
    assert result["sender"].endswith(f" of {250_000_000} bytes were sent")
    assert result["receiver"].startswith("connection from s0 by r1 over s1: ")
    assert result["again"] == ["", ""]
