"""Control groups of a process."""

import os
from pathlib import Path

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.linux import cgroups


@pytest.mark.skipif(
    not Path("/sys/fs/cgroup").is_mount(), reason="this machine mounts no control groups"
)
def test_groups_of_a_process_contain_it() -> None:
    groups = list(cgroups.limiting_groups(os.getpid()))
    assert groups
    for group in groups:
        assert str(os.getpid()) in (group / "cgroup.procs").read_text().split()


def test_ended_process_is_an_error() -> None:
    with pytest.raises(FabricError, match=r"control group /proc/4194304/cgroup: No such file"):
        cgroups.join(os.getpid(), 4194304)
