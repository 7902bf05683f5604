"""Fabrics whose agents need more descriptors than this machine gives are refused beforehand."""

import resource

import pytest

from moefabric.api.fabric import EmulatedFabric
from moefabric.core.errors import UnsupportedError
from moefabric.emulator.fabric import lifecycle
from moefabric.testbed.fabric_processes import RESERVE
from moefabric.testbed.testbed import check_descriptor_limit, data_paths, descriptors_needed
from tests.support.fabrics import fabric
from tests.support.paths import REPOSITORY


def test_each_end_of_a_path_needs_a_descriptor() -> None:
    paths = data_paths(fabric(2, 2))
    ends = [server for path in paths for server in (path.src, path.dst)]
    assert not any(path.relay for path in paths)
    assert descriptors_needed(paths) == {
        server: ends.count(server) + RESERVE for server in fabric(2, 2).servers
    }


@pytest.mark.parametrize("spare", [-1, 0])
def test_limit_is_compared_with_the_largest_need(
    monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    paths = data_paths(fabric(2, 2))
    limit = max(descriptors_needed(paths).values()) + spare
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    if spare < 0:
        with pytest.raises(UnsupportedError, match=rf"may open {limit}: raise the hard limit"):
            check_descriptor_limit(paths)
    else:
        check_descriptor_limit(paths)


def test_fabric_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    monkeypatch.setattr(lifecycle, "up", lambda *_, **__: pytest.fail("it was started"))
    with pytest.raises(UnsupportedError, match="the agent of s0 needs 88 descriptors"):
        EmulatedFabric.load(REPOSITORY / "examples" / "fabric.yaml").up()
