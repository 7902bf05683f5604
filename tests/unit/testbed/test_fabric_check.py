"""Check of a fabric: the pairs and circuits that it tries, and how it reports."""

from collections import Counter
from itertools import permutations

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.testbed.fabric_check import FabricCheck, matching, rounds
from tests.support.fabrics import fabric


def test_rounds_have_every_pair_once_and_each_sender_once_a_round() -> None:
    servers = [f"s{i}" for i in range(5)]
    pairs = rounds(servers)
    assert Counter(pairs) == Counter(permutations(servers, 2))
    for first in range(0, len(pairs), 5):
        one_round = pairs[first : first + 5]
        assert {source for source, _ in one_round} == {target for _, target in one_round}
    assert rounds(["s0"]) == []


@pytest.mark.parametrize(
    ("servers", "optical", "turns"),
    [
        (4, 3, ["s0/o0~s1/o0 s2/o0~s3/o0", "s0/o1~s3/o1 s1/o1~s2/o1"]),
        (5, 1, ["s0/o0~s1/o0 s2/o0~s3/o0", "s1/o0~s2/o0 s3/o0~s4/o0"]),
        (2, 2, ["s0/o0~s1/o0", "s0/o1~s1/o1"]),
    ],
)
def test_matchings_differ_from_turn_to_turn(servers: int, optical: int, turns: list[str]) -> None:
    wired = fabric(optical, 1, regions=(servers,))
    for turn, expected in enumerate(turns):
        circuits = CircuitSet(frozenset(matching(wired, wired.regions[0], turn)))
        assert " ".join(sorted(map(str, circuits))) == expected


def test_lines_count_successes_and_name_failures() -> None:
    pairs = tuple(f"s0 to s{i}" for i in range(1, 8))
    check = FabricCheck(8, 56, pairs, 1, 8, ("s0/o0~s1/o0",), 3, ("s2/o0~s3/o0",))
    assert not check.passed
    assert list(check.lines()) == [
        "before the check: 2 of 3 circuits carried packets",
        "8 servers: 49 of 56 pairs connect",
        "1 regions: 7 of 8 circuits carry packets",
        "not connected: s0 to s1, s0 to s2, s0 to s3, s0 to s4, s0 to s5 and 2 more",
        "dark before the check: s2/o0~s3/o0",
        "dark: s0/o0~s1/o0",
    ]
    assert check.to_json()["passed"] is False
    assert not FabricCheck(8, 56, standing=1, lost=("s2/o0~s3/o0",)).passed
    assert list(FabricCheck(2, 2).lines()) == ["2 servers: 2 of 2 pairs connect"]
