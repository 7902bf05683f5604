"""Light under traffic, through a real switch process and a real crossbar: no frame where no light is, none lost where it stays."""

import random
from pathlib import Path

from tests.kernel.light_under_traffic import MatchedUnderTraffic
from tests.kernel.light_under_traffic import pytestmark as needs

pytestmark = needs


def test_random_matchings_lead_no_frame_astray_and_untouched_circuits_lose_none(tmp_path: Path) -> None:
    seen = MatchedUnderTraffic(hosts=6, settle_ns=2_000_000).played(tmp_path, 60, random.Random(4))
    assert seen.astray == []
    assert seen.lost_untouched == []
    assert seen.delivered > 200
