"""Long form of the soak: 10,000 reconfigurations, for an hour or so."""

import os
from pathlib import Path

import pytest

from moefabric.runtime.atomic_file import write_whole
from moefabric.runtime.structured_log import MOST_BYTES
from tests.soak.picture import soak_picture
from tests.soak.soak import soak

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

RECONFIGURATIONS = int(os.environ.get("RECONFIGURATIONS", "10000"))
_DRIFT = 0.25
_RSS_KB = 200
"""Growth of a process per 1,000 reconfigurations that allocators cause by themselves."""
_RUN_RSS_KB = 1000
"""Growth of the run: the errors of its flows, and the activities during the first faults."""


def test_thousands_of_reconfigurations_lose_nothing_and_nothing_grows() -> None:
    folder = Path("out")
    folder.mkdir(exist_ok=True)
    report = soak("soak", RECONFIGURATIONS, folder)
    write_whole(folder / "soak.svg", soak_picture(report))
    assert report.reconfigurations >= RECONFIGURATIONS
    assert report.failed == 0
    assert report.faults > 0
    assert (report.lost_transfers, report.corrupt, report.lost_frames) == (0, 0, 0)
    assert abs(report.latency_drift) < _DRIFT
    first, last = report.kernel_objects
    assert first == last
    for process in report.samples:
        assert report.growth(process, "descriptors") == 0, process
        most_kb = _RUN_RSS_KB if process == "run" else _RSS_KB
        assert report.growth(process, "rss_kb") < most_kb, process
    logs = max(report.samples["fabric"]["log_bytes"])
    assert logs < 2 * MOST_BYTES * len(report.samples), "each process has a log and an older one"
