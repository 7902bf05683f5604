"""Light under traffic, through a real switch process and a real crossbar."""

import random
from pathlib import Path

from tests.kernel.light_under_traffic import MatchingsUnderTraffic


def test_random_matchings_misdeliver_no_frame_and_untouched_circuits_lose_none(
    tmp_path: Path,
) -> None:
    bench = MatchingsUnderTraffic(hosts=6, settle_ns=2_000_000)
    deliveries = bench.run(tmp_path, 60, random.Random(4))
    assert deliveries.misdelivered == []
    assert deliveries.lost_untouched == []
    assert deliveries.delivered > 200
