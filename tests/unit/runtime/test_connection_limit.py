"""Limits of connections: trusted peers keep theirs, strangers crowd out only each other."""

import pytest

from moefabric.runtime.connection_limit import ConnectionLimit


def test_strangers_take_no_place_of_trusted_peers() -> None:
    closed: list[str] = []
    limit = ConnectionLimit(closed.append, most_strangers=2, most_trusted=2)
    assert limit.add("client")
    assert limit.begin_request("client")
    limit.end_request("client")
    for number in range(5):
        assert limit.add(f"stranger {number}")
    assert (closed, limit.refused) == (["stranger 0", "stranger 1", "stranger 2"], 3)
    assert limit.begin_request("client")


def test_new_strangers_are_refused_where_none_is_replaced() -> None:
    closed: list[str] = []
    limit = ConnectionLimit(closed.append, most_strangers=2, most_trusted=1, replaces=False)
    assert [limit.add(name) for name in "abc"] == [True, True, False]
    assert limit.add("controller", trusted=True)
    assert (closed, len(limit), limit.refused) == ([], 3, 1)
    limit.remove("a")
    assert limit.add("d")


@pytest.mark.parametrize("replaces", [True, False])
def test_source_has_a_limit_of_its_own(replaces: bool) -> None:
    closed: list[str] = []
    limit = ConnectionLimit(closed.append, most_strangers=4, most_of_source=2, replaces=replaces)
    kept = [limit.add(f"a{number}", "a") for number in range(4)]
    assert kept == [True, True, replaces, replaces]
    assert closed == ["a0", "a1"] * replaces
    assert limit.add("b", "b")


def test_source_with_most_strangers_makes_room() -> None:
    closed: list[str] = []
    limit = ConnectionLimit(closed.append, most_strangers=4)
    limit.add("b", "b")
    for number in range(5):
        limit.add(f"a{number}", "a")
    assert closed == ["a0", "a1"]


def test_stranger_whose_request_is_served_stays() -> None:
    closed: list[str] = []
    limit = ConnectionLimit(closed.append, most_strangers=2)
    limit.add("served")
    assert limit.begin_request("served", trusted=False)
    limit.add("idle")
    assert limit.add("new")
    assert closed == ["idle"]
    assert limit.begin_request("new", trusted=False)
    assert not limit.add("another")
    limit.end_request("served")
    assert limit.add("another")
    assert closed == ["idle", "served"]


def test_client_that_is_idle_for_longest_makes_room() -> None:
    closed: list[str] = []
    limit = ConnectionLimit(closed.append, most_strangers=2, most_trusted=2)
    for name in "abc":
        limit.add(name)
        assert limit.begin_request(name)
        limit.end_request(name)
    assert (closed, len(limit)) == (["a"], 2)


def test_request_beyond_the_limit_of_busy_ones_is_not_served() -> None:
    closed: list[str] = []
    limit = ConnectionLimit(closed.append, most_strangers=3, most_trusted=2)
    for name in "abc":
        limit.add(name)
    assert [limit.begin_request(name) for name in "abc"] == [True, True, False]
    limit.end_request("a")
    assert limit.begin_request("c")
    assert closed == ["a"]


def test_connection_that_was_closed_for_others_is_not_served() -> None:
    limit = ConnectionLimit[str](lambda _: None, most_strangers=1)
    limit.add("a")
    limit.add("b")
    assert not limit.begin_request("a")
