"""RESTCONF without a network: paths, edits as a pure function, encodings."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.ocs.restconf.edit import Edit, Op, edited
from emulator.ocs.restconf.encoding import from_json, from_xml, taken, to_xml
from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.schema import BY_NAME, PAIR, TOP, Leaf, Node
from emulator.ocs.restconf.target import target

TWO = {"pair": [{"ingress": 1, "egress": 13}, {"ingress": 2, "egress": 14}]}


def pairs(*known: tuple[int, int]) -> dict[str, Any]:
    return {"pair": [{"ingress": p, "egress": q} for p, q in known]}


@pytest.mark.parametrize(
    ("op", "path", "value", "after"),
    [
        pytest.param(
            Op.MERGE, "cross-connects", pairs((3, 15)), pairs((1, 13), (2, 14), (3, 15)), id="merge"
        ),
        pytest.param(
            Op.MERGE,
            "cross-connects/pair",
            [{"ingress": 2, "egress": 15}],
            pairs((1, 13), (2, 15)),
            id="merge-a-list",
        ),
        pytest.param(
            Op.MERGE,
            "cross-connects/pair=2",
            {"ingress": 2, "egress": 15},
            pairs((1, 13), (2, 15)),
            id="merge-an-entry",
        ),
        pytest.param(Op.REPLACE, "cross-connects", pairs((3, 15)), pairs((3, 15)), id="replace"),
        pytest.param(Op.REPLACE, "cross-connects/pairs", [], pairs(), id="replace-a-list"),
        pytest.param(
            Op.REPLACE,
            "cross-connects/pair=1",
            {"ingress": 1, "egress": 15},
            pairs((2, 14), (1, 15)),
            id="replace-an-entry",
        ),
        pytest.param(
            Op.REPLACE, "cross-connects/pair=1/egress", 15, pairs((1, 15), (2, 14)), id="replace-a-leaf"
        ),
        pytest.param(
            Op.CREATE, "cross-connects", pairs((3, 15)), pairs((1, 13), (2, 14), (3, 15)), id="create"
        ),
        pytest.param(Op.DELETE, "cross-connects", None, {}, id="delete"),
        pytest.param(Op.DELETE, "cross-connects/pair", None, pairs(), id="delete-a-list"),
        pytest.param(Op.DELETE, "cross-connects/pair=1", None, pairs((2, 14)), id="delete-an-entry"),
    ],
)
def test_an_edit_makes_of_what_is_what_is_wanted(op: Op, path: str, value: Any, after: Any) -> None:
    before = deepcopy(TWO)
    assert edited(before, Edit(op, target(path), value)) == after
    assert before == TWO


@pytest.mark.parametrize(
    ("op", "path", "value", "status"),
    [
        pytest.param(Op.CREATE, "cross-connects", pairs((1, 15)), 409, id="there-already"),
        pytest.param(Op.DELETE, "cross-connects/pair=3", None, 404, id="not-there"),
        pytest.param(Op.MERGE, "cross-connects/pair=3", {"ingress": 3}, 404, id="not-there-to-merge"),
        pytest.param(Op.DELETE, "cross-connects/pair=1/egress", None, 400, id="needed"),
        pytest.param(Op.DELETE, "cross-connects/pair=x", None, 400, id="no-key"),
    ],
)
def test_an_edit_that_can_not_be_is_refused(op: Op, path: str, value: Any, status: int) -> None:
    with pytest.raises(RestconfError) as refused:
        edited(deepcopy(TWO), Edit(op, target(path), value))
    assert refused.value.status == status


matchings = st.dictionaries(st.integers(1, 12), st.integers(13, 24), max_size=6).map(
    lambda known: pairs(*known.items())
)


@given(matchings, matchings)
def test_what_replaces_is_there_and_what_merges_is_there_too(
    before: dict[str, Any], told: dict[str, Any]
) -> None:
    about = target("cross-connects")
    assert edited(before, Edit(Op.REPLACE, about, deepcopy(told))) == told
    merged = {pair["ingress"]: pair["egress"] for pair in edited(before, Edit(Op.MERGE, about, told))["pair"]}
    old, new = ({pair["ingress"]: pair["egress"] for pair in tree["pair"]} for tree in (before, told))
    assert merged == old | new


@given(matchings)
def test_xml_and_back_is_the_same(tree: dict[str, Any]) -> None:
    sent = to_xml({"optical-switch:cross-connects": tree})
    node = BY_NAME["cross-connects"]
    name, value = from_xml(sent, (node,))
    assert name == "cross-connects"
    assert taken(node, value).get("pair", []) == tree["pair"]


def refusal(read: Callable[[], object]) -> str | None:
    """How it is refused to read something, if it is."""
    try:
        read()
    except RestconfError as wrong:
        return wrong.tag
    return None


@given(st.binary(max_size=60))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    reads: list[Callable[[], tuple[str, Any]]] = [lambda: from_json(body), lambda: from_xml(body, (PAIR,))]
    for read in reads:
        assert refusal(read) in (None, "malformed-message", "unknown-element")


def test_deep_bodies_are_refused() -> None:
    with pytest.raises(RestconfError):
        from_json(b'{"pair":' + b"[" * 100_000)
    with pytest.raises(RestconfError):
        from_xml(b"<pair>" * 70_000, (PAIR,))


@given(st.text(max_size=40))
def test_any_path_is_found_or_refused(path: str) -> None:
    assert refusal(lambda: target(path)) in (None, "invalid-value")


def every(part: Node | Leaf) -> list[Node | Leaf]:
    return (
        [part, *(inner for child in part.children for inner in every(child))]
        if isinstance(part, Node)
        else [part]
    )


def test_a_list_has_the_leaf_that_is_its_key() -> None:
    for node in (part for top in TOP for part in every(top) if isinstance(part, Node) and part.key):
        assert node.key in node.leaves
