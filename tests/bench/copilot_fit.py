"""Copilot's fit beside SLSQP in a process of its own, whose environment sets the BLAS threads.

`python copilot_fit.py TRACE EXPERTS ITERATIONS` prints JSON.
"""

import json
import sys
from time import process_time

import numpy as np
from scipy.optimize import minimize

from moefabric.planner.arrays import Array
from moefabric.workload.gating.copilot import (
    expert_loads,
    fit_transition,
    iteration_weights,
    weighted_loss,
)


def fit_against_slsqp(trace: str, experts: int, iterations: int) -> dict[str, float]:
    """Return CPU seconds of both, and their losses relative to that of the uniform transition."""
    tokens = np.load(trace)["counts"].astype(float)
    loads = expert_loads(tokens.reshape(*tokens.shape[:3], experts, -1).sum(axis=4))
    before, after, weights = loads[568:600, 0], loads[568:600, 1], iteration_weights(32, 8.0)
    sums = np.tile(np.eye(experts), (1, experts))
    gram, cross = (before * weights[:, None]).T @ before, (after * weights[:, None]).T @ before
    scale = 1 / weighted_loss(np.full((experts, experts), 1 / experts), before, after, weights)

    def gradient(flat: Array) -> Array:
        return scale * 2 * (flat.reshape(experts, experts) @ gram - cross).ravel()

    start = process_time()
    slsqp = minimize(
        lambda flat: scale * weighted_loss(flat.reshape(experts, experts), before, after, weights),
        np.full(experts**2, 1 / experts),
        jac=gradient,
        method="SLSQP",
        bounds=[(0, 1)] * experts**2,
        constraints={"type": "eq", "fun": lambda flat: sums @ flat - 1, "jac": lambda _: sums},
        options={"maxiter": iterations, "ftol": 1e-9},
    )
    slsqp_s = process_time() - start
    durations = []
    for _ in range(3):
        start = process_time()
        fit_transition(before, after, weights)
        durations.append(process_time() - start)
    fit = fit_transition(before, after, weights)
    return {
        "fit_s": min(durations),
        "slsqp_s": slsqp_s,
        "fit_loss": fit.loss * scale,
        "fit_gap": fit.gap * scale,
        "slsqp_loss": float(slsqp.fun),
    }


if __name__ == "__main__":
    print(json.dumps(fit_against_slsqp(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
