"""What `make chaos` sees of what a fabric may leave: each kind of leak, planted."""

import json
import subprocess

import pytest

from tests.chaos.planted import KINDS
from tests.chaos.traces import alone_argv
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.ovs, pytest.mark.timeout(300)]
Seen = dict[str, tuple[list[str], list[str]]]


@pytest.fixture(scope="module")
def seen() -> Seen:
    """What the look at the machine sees of each kind, and after its removal."""
    argv = alone_argv("-m", "tests.chaos.planted")
    done = subprocess.run(
        argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return {kind: (found, [*filter(is_own, left)]) for kind, found, left in lines}


def is_own(trace: str) -> bool:
    """Return whether a trace is no cgroup and no named network of a test that runs beside."""
    return "mf-left" in trace if trace.startswith("cgroup ") else "/run/netns/mft" not in trace


@pytest.mark.parametrize("kind", KINDS)
def test_planted_leak_is_seen(seen: Seen, kind: str) -> None:
    found, left = seen[kind]
    start, _ = KINDS[kind]
    assert [trace for trace in found if trace.startswith(start)], found
    assert left == []


def test_all_of_many_descriptors_are_seen(seen: Seen) -> None:
    found, _ = seen["100 descriptors of the tester"]
    assert len([trace for trace in found if trace.startswith("descriptor ")]) == 100
