"""Oversubscribed, rail and patch-panel fabrics are as fast as the fluid model predicts."""

from pathlib import Path

import pytest

from tests.support.namespaces import isolated_result

SCRIPT = Path(__file__).with_name("fabric_kinds_transfers.py")


@pytest.mark.parametrize(
    ("kind", "seconds", "hops"),
    [
        pytest.param("oversubscribed", 0.836, 4, id="greedy-flows-share-narrow-uplinks"),
        pytest.param("rail", 0.558, 4, id="flows-stay-on-their-rail"),
        pytest.param("spines", 0.558, 4, id="nics-share-spines"),
        pytest.param("panel", 1.115, 4, id="server-relays"),
        pytest.param("relay-trees", 0.558, 4, id="senders-choose-relays"),
        pytest.param("relay-hosts", 0.558, 4, id="hosts-relay"),
    ],
)
def test_transfers_take_predicted_time(
    kind: str, seconds: float, hops: int, tmp_path: Path
) -> None:
    result = isolated_result(str(SCRIPT), kind, folder=tmp_path)
    assert result["ok"]
    assert result["hops"] == hops
    assert result["predicted_s"] == pytest.approx(seconds, abs=1e-3)
    assert 0.95 < min(result["measured_s"]) / result["predicted_s"] < 1.15, result["measured_s"]
    for uplink, ratio in result["uplinks"].items():
        assert 0.97 < ratio < 1.1, f"{uplink} carries {ratio:.2f} times the planned payload"
