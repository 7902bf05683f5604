"""Fixtures of the planner's tests."""

import pytest

from moefabric.planner import even_circuits, multihop, robust_split


@pytest.fixture(scope="session", autouse=True)
def empty_caches() -> None:
    """Compute anew what an earlier session in this process has computed.

    Mutation testing starts a session for each change in a copy of such a process.
    """
    for cached in (even_circuits._best_graph, multihop.relay_linear_program, robust_split._paths):
        cached.cache_clear()
