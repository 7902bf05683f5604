"""State of a run: what is written is read back, and what is no state is nothing."""

from pathlib import Path

import pytest

from moefabric.runtime.run_status import (
    DemandStatus,
    OperationStatus,
    RunStatus,
    read_run_status,
    write_run_status,
)

STATUS = RunStatus(
    run_id="ab12", experiment="e", fabric="mixnet", policy="mixnet", pid=1, started="2026-01-01",
    operation=OperationStatus(kind="dispatch", direction="forward", layer=0, region="all"),
    demand=DemandStatus(servers=["s0", "s1"], bytes=[[0, 1], [2, 0]]), nic_bytes={"s0/o0": 7},
)  # fmt: skip


def test_state_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "run-status.json"
    assert read_run_status(file) is None
    write_run_status(file, STATUS)
    assert read_run_status(file) == STATUS


@pytest.mark.parametrize("contents", [b"", b"{", b"[]", b'{"run_id": 1}', b"\xff"])
def test_other_contents_are_no_state(tmp_path: Path, contents: bytes) -> None:
    file = tmp_path / "run-status.json"
    file.write_bytes(contents)
    assert read_run_status(file) is None
