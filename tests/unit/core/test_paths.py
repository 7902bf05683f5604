"""Paths over the EPS: even over NICs and spines, each with a mark of its own."""

from collections import defaultdict
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.eps import Eps, EpsKind
from moefabric.core.paths import MARKS, dscp, eps_paths, marks_needed, spine_of_mark, spine_paths
from moefabric.core.topology import Fabric
from tests.support.fabrics import fabric, fabrics


@given(fabrics())
def test_paths_of_a_pair_are_even_over_nics_and_spines(wired: Fabric) -> None:
    for pair in permutations(wired.servers[:5], 2):
        by_nic: defaultdict[int, float] = defaultdict(float)
        by_spine: defaultdict[int, float] = defaultdict(float)
        for path in eps_paths(wired, *pair):
            by_nic[path.nic] += path.share
            if path.spine is not None:
                by_spine[path.spine] += path.share
        assert list(by_nic.values()) == pytest.approx([1 / wired.electrical] * wired.electrical)
        spines = len(wired.spines)
        assert not by_spine or list(by_spine.values()) == pytest.approx([1 / spines] * spines)


@pytest.mark.parametrize(
    ("electrical", "spines", "names"),
    [
        pytest.param(4, 2, "", id="each-nic-has-one-spine"),
        pytest.param(4, 3, "e0.0 e1.0 e1.1 e2.1 e2.2 e3.2", id="nics-share-spines"),
        pytest.param(2, 4, "e0.0 e0.1 e1.2 e1.3", id="more-spines-than-nics"),
        pytest.param(1, 2, "e0.0 e0.1", id="one-nic"),
    ],
)
def test_nic_has_a_path_for_each_of_its_spines(electrical: int, spines: int, names: str) -> None:
    wired = fabric(0, electrical, eps=Eps(2, spines))
    assert [path.name for path in spine_paths(wired)] == names.split()
    assert [path.name for path in eps_paths(wired, "s0", "s1")] == [
        f"e{nic}" for nic in range(electrical)
    ]


def test_every_nic_of_a_rail_uses_every_spine() -> None:
    wired = fabric(0, 2, eps=Eps(2, 2, kind=EpsKind.RAIL))
    assert [path.name for path in eps_paths(wired, "s0", "s2")] == ["e0.0", "e0.1", "e1.0", "e1.1"]


@pytest.mark.parametrize("kind", EpsKind)
def test_hashed_bytes_of_a_pair_and_nic_cross_one_spine(kind: EpsKind) -> None:
    chosen = {}
    for seed in range(20):
        wired = fabric(0, 4, eps=Eps(2, 3, kind=kind, hash_seed=seed))
        paths = eps_paths(wired, "s0", "s2")
        assert [(path.nic, path.share) for path in paths] == [(nic, 0.25) for nic in range(4)]
        assert {path.name for path in paths} <= {path.name for path in spine_paths(wired)}
        assert {spine_of_mark(wired, path.name) for path in paths} <= {0, 1, 2}
        assert paths == eps_paths(fabric(0, 4, eps=wired.eps), "s0", "s2")
        chosen[seed] = tuple(path.spine for path in paths)
    assert len(set(chosen.values())) > 10
    assert {spine for spines in chosen.values() for spine in spines} == {0, 1, 2}


def test_hashed_flows_of_servers_on_one_leaf_cross_no_spine() -> None:
    wired = fabric(0, 2, eps=Eps(2, 3, hash_seed=1))
    assert [path.name for path in eps_paths(wired, "s0", "s1")] == ["e0", "e1"]
    alone = fabric(0, 2, eps=Eps(2, 1, hash_seed=1))
    assert [path.name for path in eps_paths(alone, "s0", "s2")] == ["e0", "e1"]


@given(st.integers(0, 16), st.integers(1, 16), st.integers(1, 16), st.sampled_from(EpsKind))
def test_marks_are_unique_and_fit_six_bits(
    optical: int, electrical: int, spines: int, kind: EpsKind
) -> None:
    """0 is for programs that mark nothing."""
    wired = fabric(optical, electrical, eps=Eps(1, spines, kind=kind))
    if marks_needed(wired) > MARKS:
        assert kind is EpsKind.RAIL
        return
    paths = [nic.path for nic in wired.nics("s0")] + [path.name for path in spine_paths(wired)]
    marks = {dscp(wired, path) for path in paths}
    assert len(marks) == len(paths) == marks_needed(wired)
    assert min(marks) >= 1
    assert max(marks) <= MARKS
