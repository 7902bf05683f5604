"""Sweeps of tests: small ones, and runs whose ends tests decide. Processes of Ray import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moefabric.api.sweeps.engine import RunEnded, RunTask
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.config.validation import validate
from moefabric.core.resource_needs import ResourceNeeds
from tests.support.paths import EXAMPLES

EXPERIMENT: dict[str, Any] = {
    "experiment": "small",
    "model": {"name": "mixtral-8x7b", "layers": 1},
    "training": {"ep": 8, "tp": 4, "sequence": 4096, "micro_batch": 8, "iterations": 1},
    "gating": {"matrix": str(EXAMPLES / "data/gating-8x8.json"), "noise": 0.2},
    "wiring": {"nic_rate": "100Gb/s", "regions": [{"servers": 4, "ocs": {"settle": "25ms"}}]},
    "fabrics": [
        {"name": "eps", "optical": 0, "electrical": 4, "policy": "eps"},
        {"name": "mixnet", "optical": 3, "electrical": 1, "policy": "mixnet"},
    ],
}
RATES = "wiring.nic_rate"
GB = 1_000_000_000


def sweep_spec(**keys: Any) -> SweepSpec:
    """Return a sweep of predictions over two NIC rates and two seeds, with other keys."""
    keys_of_sweep: dict[str, Any] = {
        "sweep": "small",
        "experiment": EXPERIMENT,
        "mode": "predict",
        "grid": {RATES: ["100Gb/s", "400Gb/s"]},
        "seeds": [1, 2],
        "figures": ["iteration_s", "all_to_all_s"],
    }
    return validate(SweepSpec, {k: v for k, v in (keys_of_sweep | keys).items() if v is not None})


def task(name: str, cores: int = 1, folder: Path | None = None, **document: Any) -> RunTask:
    """Return a task whose document is for one of the functions below."""
    document |= {"folder": str(folder)} if folder else {}
    return RunTask(name, name, "predict", document, (), ResourceNeeds(cores, GB // 10), "0")


def interval(run: RunTask, archives: Mapping[str, bytes]) -> RunEnded:
    """Take a moment, and return its start and end as the result."""
    begin = time.monotonic_ns()
    time.sleep(0.2)
    return RunEnded(run.id, f"{begin} {time.monotonic_ns()}")


def meeting(run: RunTask, archives: Mapping[str, bytes]) -> RunEnded:
    """Return when as many runs as the document says are under way at once."""
    folder, runs = Path(run.document["folder"]), run.document["runs"]
    (folder / run.id).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < runs:
        if time.monotonic() > deadline:
            return RunEnded(run.id, error="nobody came")
        time.sleep(0.05)
    return RunEnded(run.id, "met")


def killed_once(run: RunTask, archives: Mapping[str, bytes]) -> RunEnded:
    """Kill this process at the first attempt; return the number of attempts at the next ones."""
    attempts = Path(run.document["folder"]) / run.id
    with attempts.open("a") as file:
        file.write(".")
    if len(attempts.read_text()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return RunEnded(run.id, str(len(attempts.read_text())))


def contents(run: RunTask, archives: Mapping[str, bytes]) -> RunEnded:
    """Return the bytes of all archives."""
    return RunEnded(run.id, " ".join(text.decode() for text in archives.values()))


def failing(run: RunTask, archives: Mapping[str, bytes]) -> RunEnded:
    """Raise an error that no run raises."""
    raise RuntimeError("a defect")
