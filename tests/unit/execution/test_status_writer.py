"""State of a run under way, as others read it."""

import time
from pathlib import Path

from moefabric.execution.fabric_recorder import RunStatusWriter
from moefabric.results.journal import Journal
from moefabric.runtime.run_status import RunStatus, read_run_status
from tests.support.recorded_runs import RecordedRun


def test_state_shows_what_has_ended_and_goes_with_the_run(tmp_path: Path) -> None:
    file, path = tmp_path / "run-status.json", tmp_path / "run.jsonl"
    lab = RecordedRun(path)
    initial = RunStatus(
        run_id="ab",
        experiment="memory",
        fabric="mixnet",
        policy="mixnet",
        pid=1,
        started="now",
        iterations=3,
    )
    with RunStatusWriter(file, initial) as writer, Journal(path) as journal:
        lab.begin(journal, 3)
        lab.run(journal, 3, status=writer)
        while (status := read_run_status(file)) is None or len(status.done) < 3:
            time.sleep(0.01)  # another process learns of a state only by reading it
    assert (status.run_id, status.fabric, status.iterations) == ("ab", "mixnet", 3)
    assert [one.iteration for one in status.done] == [0, 1, 2]
    assert status.totals.collectives == 6
    assert status.totals.bytes == sum(one.bytes for one in status.done) > 0
    assert status.totals.bytes_by_light + status.totals.bytes_by_eps > 0.99 * status.totals.bytes
    assert {one.kind for one in status.timeline} >= {"attention", "dispatch", "combine"}
    assert status.nic_bytes is not None
    assert status.nic_bytes["s0/o0"] > 0
    assert not file.exists()
