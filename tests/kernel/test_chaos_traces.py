"""What `make chaos` sees of what a fabric may leave: each kind of leak, planted."""

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.planted import KINDS, control_group
from tests.chaos.traces import alone_argv, in_network
from tests.support.namespaces import island
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.ovs, pytest.mark.timeout(300)]
Seen = dict[str, tuple[list[str], list[str]]]


@pytest.fixture(scope="module")
def seen() -> Seen:
    """What the look at the machine sees of each kind, and after its removal."""
    seen, argv = Seen(), alone_argv("-m", "tests.chaos.planted")
    group = control_group(f"moefabric-beside-{os.getpid()}")
    with (
        ExitStack() as groups,
        island("beside") as beside,
        subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as planted,
    ):
        assert planted.stdout is not None
        try:
            for line in planted.stdout:
                beside.undo.close()  # the networks of a test that runs beside go meanwhile
                if not group.exists():
                    group.mkdir()
                    groups.callback(group.rmdir)
                kind, found, left = json.loads(line)
                seen[kind] = found, left
        except BaseException:
            planted.kill()
            raise
    assert planted.returncode == 0
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_planted_leak_is_seen(seen: Seen, kind: str) -> None:
    found, left = seen[kind]
    start, _ = KINDS[kind]
    assert [trace for trace in found if trace.startswith(start)], found
    assert left == []


def test_all_of_many_descriptors_are_seen(seen: Seen) -> None:
    found, _ = seen["100 descriptors of the tester"]
    assert len([trace for trace in found if trace.startswith("descriptor ")]) == 100


def test_network_is_read_by_the_paths_that_still_lead_there() -> None:
    gone, here = Path("/proc/0/ns/net"), Path("/proc/self/ns/net")
    assert any(trace.startswith("link lo ") for trace in in_network("net:[1]", [gone, here]))
    assert not [*in_network("net:[1]", [gone])]


def test_tester_cannot_change_a_setting_of_the_whole_machine() -> None:
    argv = alone_argv("-c", "open('/proc/sys/kernel/printk_ratelimit_burst', 'w')")
    tried = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "Read-only file system" in tried.stderr, tried
