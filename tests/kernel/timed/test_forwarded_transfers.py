"""Transfers that hosts forward: whole, counted at every hop, and ended by name if a relay dies."""

from pathlib import Path

from tests.support.namespaces import isolated_result

SCRIPT = str(Path(__file__).with_name("forwarded_transfers.py"))


def test_bytes_arrive_whole_and_are_counted_at_every_hop(short_folder: Path) -> None:
    results = isolated_result(SCRIPT, "compare", "16000000", folder=short_folder)
    assert len(results) == 3
    for kind, result in results.items():
        assert result["whole"], result["why"]
        # Four flows, each with four ports on a circuit and four more on a second one.
        assert result["ports"] == (16 if kind == "direct" else 32)
        assert result["port_error"] < 0.002
        assert 0.97 < result["measured_s"] / result["predicted_s"] < 1.15


def test_relay_that_dies_ends_its_transfers_by_name(short_folder: Path) -> None:
    result = isolated_result(SCRIPT, "death", folder=short_folder)
    assert result["lost"] == ["s1"]
    assert "agent s1: its control channel" in result["text"]
    assert result["sender"].startswith("connection to s2 by r1 over s1 at 10.0.1.1 port ")
    assert result["sender"].endswith(f" of {250_000_000} bytes were sent")
    assert result["receiver"].startswith("connection from s0 by r1 over s1: ")
    assert result["again"] == ["", ""]
