"""The solver is loaded when it is wanted: at once, or beside a controller's work."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANNED = """
import sys
from threading import enumerate as threads
import numpy as np
from controller.planner import aimed, joint, solver, water
links = water.EpsLinks(np.ones((1, 8)), np.zeros((0, 8)), np.zeros((8, 8), dtype=bool), np.full(16, 2.0))
owed = np.random.default_rng(5).pareto(1.2, (8, 8)) * ~np.eye(8, dtype=bool)
def planned():
    light = joint.best(owed, np.full(8, 6), 1.0, links, 60.0).astype(float)
    return round(water.seconds(owed, light, links), 6)
"""
ASIDE = """
solver.load_aside()
first = planned()
for thread in threads():
    if thread.name == "solver":
        thread.join(60)
second = planned()
print("scipy.optimize" in sys.modules, second < first)
"""
AT_ONCE = """
assert "scipy" not in sys.modules
first = planned()
print("scipy.optimize" in sys.modules, planned() == first)
"""


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(ASIDE, id="beside-other-work-the-first-answer-does-without"),
        pytest.param(AT_ONCE, id="at-once-every-answer-is-the-same"),
    ],
)
def test_the_solver_is_loaded(then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANNED + then],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")
