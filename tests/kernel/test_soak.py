"""Short form of the soak: reconfigurations under full traffic with faults."""

from pathlib import Path

import pytest

from tests.soak.soak import soak
from tests.support.namespaces import own_machine

pytestmark = pytest.mark.nightly


def test_reconfigurations_under_traffic_lose_nothing(tmp_path: Path) -> None:
    with own_machine():
        report = soak("soak-short", 120, tmp_path)
    assert report.reconfigurations >= 120
    assert report.failed == 0
    assert report.faults > 0
    assert report.lost_frames == 0
    assert (report.lost_transfers, report.corrupt) == (0, 0)
    first, last = report.kernel_objects
    assert first == last
    for process in report.samples:
        assert report.growth(process, "descriptors") == 0, process
