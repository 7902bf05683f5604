"""A thousand random matchings under traffic: frames led astray, and frames that untouched circuits lost."""

import random
from pathlib import Path

import pytest

from tests.kernel.light_under_traffic import MatchedUnderTraffic
from tests.kernel.light_under_traffic import pytestmark as needs

pytestmark = [*needs, pytest.mark.timeout(400)]


def test_a_thousand_matchings_lead_no_frame_astray_and_untouched_circuits_lose_none(tmp_path: Path) -> None:
    seen = MatchedUnderTraffic(hosts=8, settle_ns=1_000_000).played(tmp_path, 1000, random.Random(1))
    print(
        f"\n1000 matchings of 8 hosts under traffic: {seen.delivered} frames delivered, {len(seen.astray)} led astray, "
        f"{len(seen.lost_untouched)} lost on untouched circuits"
    )
    assert seen.astray == []
    assert seen.lost_untouched == []
