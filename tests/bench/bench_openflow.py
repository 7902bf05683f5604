"""What rules cost through Ryu: one flow-mod with its barrier, and a thousand, on a switch of ours and on Open vSwitch."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest

from emulator.ovs import Bridge
from emulator.waiting import Deadline
from tests.switch_processes import Door, open_vswitch, own_network, wire

pytestmark = [pytest.mark.kernel, pytest.mark.ovs]

HERE = Path(__file__).parent
ADDRESS = ("127.0.0.1", 6653)
PORTS = range(1, 10)  # the host's, and eight NICs
ONE_MS, MANY_MS = 0.7, 60.0
TRIES = 3
"""What else the machine does only adds to the time: the best of so many tries counts, and all are printed."""


def _figures(kind: str, folder: Path) -> dict[str, Any]:
    with own_network(), ExitStack() as undo:
        for port in PORTS:
            wire(f"p{port}", f"p{port}e")
        ports = {port: f"p{port}" for port in PORTS}
        if kind == "bpf":
            Door([{"name": "s0", "datapath_id": 1, "ports": ports}], None, undo).connect({"s0": ADDRESS})
        else:
            ovs = open_vswitch(
                [Bridge("s0", 1, tuple((name, port) for port, name in ports.items()))], folder, undo
            )
            ovs.connect({"s0": ADDRESS}, Deadline.after(20))
        argv = [sys.executable, str(HERE / "openflow_changes.py"), str(ADDRESS[1])]
        env = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        said = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=True).stdout
    found: dict[str, Any] = json.loads(said)
    return found


def _print(kind: str, found: dict[str, Any]) -> tuple[float, float]:
    """The medians of one flow-mod and of many, in ms."""
    one, many = median(found["added"]), median(found["many"])
    p95 = quantiles(found["added"], n=20)[-1]
    print(
        f"\n{kind}: flow-mod + barrier p50 {one:.2f} ms, p95 {p95:.2f}, deletion p50 {median(found['deleted']):.2f}; "
        f"{found['rules']} flow-mods + barrier {many:.0f} ms ({min(found['many']):.0f}..{max(found['many']):.0f})"
    )
    return one, many


def test_rules_change_as_quickly_as_is_asked_for(tmp_path: Path) -> None:
    _print("ovs", _figures("ovs", tmp_path / "ovs"))
    best_one = best_many = float("inf")
    for _ in range(TRIES):
        one, many = _print("bpf", _figures("bpf", tmp_path))
        best_one, best_many = min(best_one, one), min(best_many, many)
        if best_one <= ONE_MS and best_many <= MANY_MS:
            break
    assert best_one <= ONE_MS
    assert best_many <= MANY_MS
