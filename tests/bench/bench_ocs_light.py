"""A thousand random matchings under traffic: misdelivered frames, and losses on circuits."""

import random
from pathlib import Path

import pytest

from tests.bench.recording import record
from tests.kernel.light_under_traffic import MatchingsUnderTraffic

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(400)]


def test_thousand_matchings_misdeliver_no_frame_and_untouched_circuits_lose_none(
    tmp_path: Path,
) -> None:
    bench = MatchingsUnderTraffic(hosts=8, settle_ns=1_000_000)
    deliveries = bench.run(tmp_path, 1000, random.Random(1))
    print(
        f"\n1000 matchings of 8 hosts under traffic: {deliveries.delivered} frames delivered, "
        f"{len(deliveries.misdelivered)} misdelivered, "
        f"{len(deliveries.lost_untouched)} lost on untouched circuits"
    )
    what = "frames of 1,000 random matchings under traffic"
    record(f"{what}: delivered", "", deliveries.delivered)
    record(f"{what}: misdelivered", "", len(deliveries.misdelivered), at_most=0)
    record(f"{what}: lost on circuits that stay", "", len(deliveries.lost_untouched), at_most=0)
    assert deliveries.misdelivered == []
    assert deliveries.lost_untouched == []
