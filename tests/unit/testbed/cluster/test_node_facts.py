"""Facts of nodes: what differs from the head is refused, with all faults at once."""

from dataclasses import replace
from pathlib import Path

import pytest

from moefabric.core.errors import UnsupportedError
from moefabric.testbed.cluster.ray_reservation import NodeFacts, check_nodes, own_facts

HEAD = NodeFacts("a", "0.1.0", "1234", "3.11", is_root=True)


def test_equal_nodes_pass() -> None:
    check_nodes(HEAD, [HEAD, replace(HEAD, node="b")])
    assert own_facts() == own_facts()


def test_sources_are_those_of_the_whole_package(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()

    def note(path: Path) -> bytes:
        read.append(path.parent.name)
        return b""

    monkeypatch.setattr(Path, "read_bytes", note)
    own_facts()
    assert {"agents", "core", "testbed"} <= set(read)


def test_all_faults_of_all_nodes_are_reported_with_remedies() -> None:
    nodes = [
        replace(HEAD, node="b", moefabric="0.0.9"),
        replace(HEAD, node="c", sources="5678", python="3.12"),
        replace(HEAD, node="d", is_root=False),
    ]
    with pytest.raises(UnsupportedError) as error:
        check_nodes(HEAD, nodes)
    assert str(error.value).splitlines() == [
        "b: moefabric 0.0.9, and 0.1.0 on a: install the same version",
        "c: Python 3.12, and 3.11 on a: start Ray there from an environment with the same Python",
        "c: moefabric 0.1.0 with other source files than on a: install the same build",
        (
            "d: Ray doesn't run as root, which fabrics need: `sudo -E ray start` there, "
            "with RAY_AUTH_TOKEN"
        ),
    ]
