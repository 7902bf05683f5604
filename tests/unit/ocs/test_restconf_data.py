"""RESTCONF without a network: paths, edits as a pure function, encodings."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.emulator.ocs.restconf.errors import RestconfError
from moefabric.emulator.ocs.restconf.schema import CONTAINERS, Node, from_json, validate
from moefabric.emulator.ocs.restconf.tree import Op, apply_edit, parse_target

TWO = {"pair": [{"ingress": 1, "egress": 13}, {"ingress": 2, "egress": 14}]}


def pairs(*connected: tuple[int, int]) -> dict[str, Any]:
    return {"pair": [{"ingress": p, "egress": q} for p, q in connected]}


EDITS: dict[str, tuple[Op, str, Any, Any]] = {
    "merge": (Op.MERGE, "cross-connects", pairs((3, 15)), pairs((1, 13), (2, 14), (3, 15))),
    "merge-a-list": (
        Op.MERGE,
        "cross-connects/pair",
        [{"ingress": 2, "egress": 15}],
        pairs((1, 13), (2, 15)),
    ),
    "merge-an-entry": (
        Op.MERGE,
        "cross-connects/pair=2",
        {"ingress": 2, "egress": 15},
        pairs((1, 13), (2, 15)),
    ),
    "replace": (Op.REPLACE, "cross-connects", pairs((3, 15)), pairs((3, 15))),
    "replace-a-list": (Op.REPLACE, "cross-connects/pairs", [], pairs()),
    "replace-an-entry": (
        Op.REPLACE,
        "cross-connects/pair=1",
        {"ingress": 1, "egress": 15},
        pairs((2, 14), (1, 15)),
    ),
    "replace-a-leaf": (Op.REPLACE, "cross-connects/pair=1/egress", 15, pairs((1, 15), (2, 14))),
    "repeat-a-key": (Op.REPLACE, "cross-connects/pair=1/ingress", 1, TWO),
    "create": (Op.CREATE, "cross-connects", pairs((3, 15)), pairs((1, 13), (2, 14), (3, 15))),
    "delete": (Op.DELETE, "cross-connects", None, {}),
    "delete-a-list": (Op.DELETE, "cross-connects/pair", None, pairs()),
    "delete-an-entry": (Op.DELETE, "cross-connects/pair=1", None, pairs((2, 14))),
}


@pytest.mark.parametrize(("op", "path", "value", "after"), EDITS.values(), ids=EDITS)
def test_edit_changes_tree(op: Op, path: str, value: Any, after: Any) -> None:
    before = deepcopy(TWO)
    assert apply_edit(before, op, parse_target(path), value) == after
    assert before == TWO


@pytest.mark.parametrize(
    ("op", "path", "value", "status"),
    [
        pytest.param(Op.CREATE, "cross-connects", pairs((1, 15)), 409, id="exists"),
        pytest.param(Op.DELETE, "cross-connects/pair=3", None, 404, id="absent"),
        pytest.param(
            Op.MERGE, "cross-connects/pair=3", {"ingress": 3}, 404, id="merge-into-absent"
        ),
        pytest.param(Op.DELETE, "cross-connects/pair=1/egress", None, 400, id="mandatory-leaf"),
        pytest.param(Op.DELETE, "cross-connects/pair=1/ingress", None, 400, id="key-leaf"),
        pytest.param(Op.REPLACE, "cross-connects/pair=1/ingress", 3, 400, id="replace-a-key"),
        pytest.param(Op.MERGE, "cross-connects/pair=1/ingress", 2, 400, id="merge-a-key"),
        pytest.param(Op.DELETE, "cross-connects/pair=x", None, 400, id="invalid-key"),
    ],
)
def test_impossible_edit_is_refused(op: Op, path: str, value: Any, status: int) -> None:
    with pytest.raises(RestconfError) as refused:
        apply_edit(deepcopy(TWO), op, parse_target(path), value)
    assert refused.value.status == status


matchings = st.dictionaries(st.integers(1, 12), st.integers(13, 24), max_size=6).map(
    lambda matching: pairs(*matching.items())
)


@given(matchings, matchings)
def test_replace_and_merge_of_any_matching(before: dict[str, Any], value: dict[str, Any]) -> None:
    target = parse_target("cross-connects")
    assert apply_edit(before, Op.REPLACE, target, deepcopy(value)) == value
    merged = {
        pair["ingress"]: pair["egress"]
        for pair in apply_edit(before, Op.MERGE, target, value)["pair"]
    }
    old, new = (
        {pair["ingress"]: pair["egress"] for pair in tree["pair"]} for tree in (before, value)
    )
    assert merged == old | new


def error_tag(read: Callable[[], object]) -> str | None:
    """Return the error-tag of a refusal, if there is one."""
    try:
        read()
    except RestconfError as error:
        return error.tag
    return None


@given(st.binary(max_size=60))
def test_any_body_is_parsed_or_refused(body: bytes) -> None:
    assert error_tag(lambda: from_json(body, "pair")) in (None, "malformed-message")


def test_deep_bodies_are_refused() -> None:
    with pytest.raises(RestconfError):
        from_json(b'{"pair":' + b"[" * 100_000, "pair")


def test_numbers_are_no_strings() -> None:
    pair = CONTAINERS["cross-connects"]["pair"]
    assert validate(pair, [{"ingress": 1, "egress": 13}]) == [{"ingress": 1, "egress": 13}]
    with pytest.raises(RestconfError, match="'1' is no value of ingress"):
        validate(pair, [{"ingress": "1", "egress": 13}])


@given(st.text(max_size=40))
def test_any_path_is_resolved_or_refused(path: str) -> None:
    assert error_tag(lambda: parse_target(path)) in (None, "invalid-value")


def descendants(part: Node) -> list[Node]:
    return [part, *(inner for child in part.children for inner in descendants(child))]


def test_every_list_has_its_key_leaf() -> None:
    lists = [part for top in CONTAINERS.values() for part in descendants(top) if part.key]
    assert lists
    assert all(node[node.key].type for node in lists)
