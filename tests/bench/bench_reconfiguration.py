"""Time of a reconfiguration by phase, on real switches and an SCPI device."""

import subprocess
import sys
from itertools import combinations
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import numpy as np
import pytest

from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.controller.client import ControllerClient
from tests.support.controller_lab import fabric, lab, needs

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.ovs,
    pytest.mark.skipif(bool(needs()), reason=f"lacks {needs()}"),
]

CHANGES = 50
PHASES = (
    "demand_s",
    "plan_s",
    "divert_s",
    "command_s",
    "settle_s",
    "verify_s",
    "admit_s",
    "total_s",
)
BOUND_S = 0.010
"""From the demand to the last confirmed rule, without settling."""


ROUNDS = 3
"""The median of the medians of so many rounds counts; all are printed."""


def test_reconfiguration_takes_ten_milliseconds_or_less(tmp_path: Path) -> None:
    """Measure demands of random pairs, each another than the last, so that each moves circuits."""
    draw = np.random.default_rng(1)
    with lab(fabric(), tmp_path) as real:
        real.start_all()
        client = real.client(real.fabric.regions[0])
        medians = [round_of_changes(client, draw) for _ in range(ROUNDS)]
    assert median(medians) <= BOUND_S


def round_of_changes(
    client: ControllerClient, draw: np.random.Generator, what: str = "read-back, 4"
) -> float:
    """Reconfigure many times; return the median seconds without settling."""
    servers = len(client.health()["expected"])
    phases: list[dict[str, float]] = []
    seen_s: list[float] = []
    for pair in _pairs(draw):
        rows = np.zeros((servers, servers))
        rows[pair], rows[pair[::-1]] = 4e9, 2e9
        started = perf_counter()
        answer = client.demand(rows.tolist())
        seen_s.append(perf_counter() - started)
        assert answer["circuits_before"] != answer["circuits_after"]
        phases.append(answer["phases"])
    own = [one["total_s"] - one["settle_s"] for one in phases]
    print(f"\n{CHANGES} changes of light, {what} server switches, ms   p50    p95")
    for name in PHASES:
        _row(name.removesuffix("_s"), [one[name] for one in phases])
    _row("without settling", own)
    _row("as the asker sees it", seen_s)
    return median(own)


def _pairs(draw: np.random.Generator) -> list[tuple[int, int]]:
    """Return random pairs of servers, no two equal in turn, even from round to round."""
    all_pairs = list(combinations(range(4), 2))
    pairs = [all_pairs[0]]
    while len(pairs) < CHANGES:
        others = [
            pair
            for pair in all_pairs
            if pair != pairs[-1] and (len(pairs) < CHANGES - 1 or pair != pairs[0])
        ]
        pairs.append(others[draw.integers(len(others))])
    return pairs


def _row(name: str, seconds: list[float]) -> None:
    print(f"{name:>42} {1e3 * median(seconds):6.2f} {1e3 * quantiles(seconds, n=20)[-1]:6.2f}")


FABRIC = """
fabric: moves
gpus_per_server: 1
nic_rate: 100Mb/s
nics: {{optical: 3, electrical: 1}}
regions:
  - servers: 8
    ocs: {{settle: 0ms, verify: {verify}}}
scale: {{bytes: 1}}
"""
PROOF_S = 0.005
"""What a light probe may add: two frames per new circuit through the fabric's switches."""


@pytest.mark.parametrize("verify", ["read-back", "light"])
def test_light_probe_is_cheap(
    verify: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proof: dict[str, float]
) -> None:
    """Measure eight servers of three optical NICs on a fabric that `up` makes."""
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path / "run"))
    spec = tmp_path / "fabric.yaml"
    spec.write_text(FABRIC.format(verify=verify))
    moefabric = str(Path(sys.executable).with_name("moefabric"))
    subprocess.run([moefabric, "up", str(spec)], check=True, timeout=60, stdout=subprocess.DEVNULL)
    try:
        wiring = FabricWiring.from_json(RunDirectory.of_fabric("moves").wiring_file.read_text())
        with ControllerClient(
            wiring.management.northbound_endpoint(wiring.fabric.regions[0])
        ) as client:
            client.wait_ready(30)
            proof[verify] = median(
                round_of_changes(client, np.random.default_rng(seed), f"{verify}, 8")
                for seed in range(ROUNDS)
            )
    finally:
        subprocess.run(
            [moefabric, "down", "moves"], check=True, timeout=60, stdout=subprocess.DEVNULL
        )
    if len(proof) == 2:
        added_s = proof["light"] - proof["read-back"]
        print(
            f"\na proof of light adds {1e3 * added_s:.2f} ms to {1e3 * proof['read-back']:.2f} ms"
        )
        assert added_s <= PROOF_S


@pytest.fixture(scope="module")
def proof() -> dict[str, float]:
    """Return the seconds without settling, by verification."""
    return {}
