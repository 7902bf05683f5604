"""An EPS whose flows are hashed, beside the fat tree of the paper's experiment."""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest
from moefabric_studies.paper.job import GPUS_PER_SERVER, FloatArray
from moefabric_studies.paper.loader import load_jobs
from moefabric_studies.paper.path_collisions import hashed_to_spread

from moefabric import CircuitSet, DemandMatrix, Eps, Fabric, Region, flows, policy_named, predict
from tests.support.paths import EXAMPLES

JOB = load_jobs(EXAMPLES / "paper/jobs.yaml")["mixtral-8x22b"]


def _seconds(demand: FloatArray, seed: int | None) -> float:
    """Return the time of an all-to-all on a leaf for each server and a spine for each NIC."""
    servers = tuple(f"s{number}" for number in range(len(demand)))
    eps = Eps(1, GPUS_PER_SERVER, hash_seed=seed)
    fabric = Fabric("tree", (Region("r0", 0, servers, None),), 8, 0, GPUS_PER_SERVER, 100e9, eps)
    split = policy_named("eps").split(fabric, DemandMatrix(servers, demand), CircuitSet())
    return predict(fabric, CircuitSet(), flows(fabric, CircuitSet(), split)).seconds


def _both_s(seed: int | None) -> float:
    tokens = JOB.token_matrix.copy()
    np.fill_diagonal(tokens, 0.0)
    return _seconds(tokens, seed) + _seconds(tokens.T, seed)


def test_hashing_costs_as_much_as_on_the_tree_of_the_papers_simulator() -> None:
    """Both draw paths at random, by other generators."""
    ratio = mean(map(_both_s, range(50))) / _both_s(None)
    assert ratio == pytest.approx(hashed_to_spread(JOB), rel=0.03)
    assert 1.3 < ratio < 1.8
