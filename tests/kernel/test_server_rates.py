"""Servers of different speed, with packets: a slow one takes longer, and experts avoid it."""

from pathlib import Path

from moefabric.config.loader import experiment_of
from moefabric.execution.run import run
from moefabric.results.model import FabricResult
from moefabric.results.progress import PlainProgressReporter
from moefabric.simulator.fluid import goodput_share
from tests.support.namespaces import own_machine
from tests.support.paths import EXAMPLES

SLOW = "s0"
SLOW_BPS = 25e9
EPS = {"optical": 0, "electrical": 1, "policy": "eps"}


def dispatches(result: FabricResult) -> list[tuple[int, int, float]]:
    """Return what the slow server sends and receives in each dispatch, and its seconds."""
    rows = []
    for way in ("forward", "backward"):
        flows = [f for f in result.flows if (f.kind, f.direction) == ("dispatch", way)]
        own = [f for f in flows if SLOW in (f.src, f.dst)]
        sent = sum(f.bytes for f in own if f.src == SLOW)
        rows.append((sent, sum(f.bytes for f in own) - sent, max(f.end_s for f in own)))
    return rows


def test_slow_server_receives_at_its_own_rate_and_experts_of_most_tokens_avoid_it(
    tmp_path: Path,
) -> None:
    spec = experiment_of(
        {
            "experiment": "speeds",
            "model": {"name": "mixtral-8x7b", "layers": 1},
            "training": {"ep": 8, "tp": 1, "sequence": 4096, "micro_batch": 1, "iterations": 1},
            "gating": {"matrix": str(EXAMPLES / "data/gating-8x8.json")},
            "wiring": {
                "gpus_per_server": 2,
                "nic_rate": "100Gb/s",
                "servers": {SLOW: {"nic_rate": f"{SLOW_BPS:g}b/s"}},
                "regions": [{"servers": 4}],
            },
            "fabrics": [{"name": "numbers", **EPS}, {"name": "rates", **EPS, "place": "aurora"}],
            "scale": {"bytes": 250, "dilation": 4},
        }
    )
    with own_machine():
        result = run(spec, tmp_path, PlainProgressReporter(), flows=True)
    numbers, rates = result.results
    assert numbers.wiring.own_nic_rates_bps == {SLOW: SLOW_BPS}
    # Links save up 0.5 ms of wall time while they are idle.
    saved_s = 0.5e-3 / 4
    for sent, received, seconds in dispatches(numbers):
        alone_s = 8 * max(sent, received) / (SLOW_BPS * goodput_share(1500))
        assert alone_s - saved_s <= seconds * 1.01
        assert seconds < 2 * alone_s, "a NIC of 100 Gb/s would take a quarter"
    # By number, the first two experts are on the slow server, and the first gets most tokens.
    (_, by_number, _), (_, by_rate, _) = (dispatches(one)[0] for one in (numbers, rates))
    assert by_rate < 0.5 * by_number
