"""Time from the injection of a failure to its detection and to rerouted traffic."""

from collections.abc import Sequence
from statistics import median, quantiles

import pytest

from tests.bench.recording import record
from tests.kernel.fabric_lab import isolated_machine
from tests.support.attempts import measurements
from tests.support.failure_lab import RING, FailureLab, failure_lab, four_servers

pytestmark = pytest.mark.kernel

TIMES = 15
ROUNDS = 3
BOUND_S = 0.05
"""Ways that are there already are found within this, whatever else the machine does.

Light that has to be moved first takes its settle time besides.
"""
KINDS: Sequence[tuple[str, str, Sequence[str], Sequence[str]]] = (
    ("electrical NIC of two", "nic", ["s0/e0"], ["r0", "eps"]),
    ("both: relay over light", "nic", ["s0/e0", "s0/e1"], ["r0", "eps"]),
    ("optical NIC", "nic", ["s0/o0"], ["r0"]),
    ("port of the OCS", "ocs-port", ["s0/o0"], ["r0"]),
    ("whole OCS", "ocs", ["ocs0"], ["r0"]),
    ("server", "server", ["s3"], ["r0"]),
)


def test_failure_is_detected_and_rerouted_within_milliseconds() -> None:
    """Four servers of two optical and two electrical NICs, the light a ring.

    The last of the controllers concerned counts.
    """
    with (
        isolated_machine() as machine,
        failure_lab(machine, four_servers("bench", 50e6), agents=False) as lab,
    ):
        print(
            f"\n{TIMES} failures, ms     detected p50    p95  recovered p50    p95  works again p50"
        )
        slowest = max(_best(lab, *kind) for kind in KINDS)
    assert slowest <= BOUND_S


def _best(lab: FailureLab, name: str, kind: str, what: Sequence[str], who: Sequence[str]) -> float:
    """The least median of some rounds: what else the machine does only adds to the time."""
    rounds = measurements(
        lambda: _measured(lab, name, kind, what, who),
        lambda times: median(times[1]) <= BOUND_S,
        ROUNDS,
    )
    detected, recovered, back = min(rounds, key=lambda times: median(times[1]))
    failed = name.replace(": ", ", ")
    record(f"failure detected, p50: {failed}", "ms", samples=detected)
    record(f"traffic has another way, p50: {failed}", "ms", samples=recovered, at_most=BOUND_S)
    record(f"part works again, p50: {failed}", "ms", samples=back)
    return median(recovered)


def _measured(
    lab: FailureLab, name: str, kind: str, what: Sequence[str], who: Sequence[str]
) -> tuple[list[float], list[float], list[float]]:
    """The times until a failure is noticed, traffic has another way, and the part works again."""
    detected, recovered, back = list[float](), list[float](), list[float]()
    for _ in range(TIMES):
        lab.clients["r0"].light(RING)
        found = lab.inject(kind, what, who)
        detected.append(max(one.detected_s for one in found))
        recovered.append(max(one.recovered_s for one in found))
        back.append(lab.clear(RING))
    columns = [median(detected), _p95(detected), median(recovered), _p95(recovered), median(back)]
    shown = " ".join(
        f"{1e3 * seconds:{width}.2f}"
        for seconds, width in zip(columns, (14, 6, 14, 6, 16), strict=True)
    )
    print(f"{name:>24} {shown}")
    return detected, recovered, back


def _p95(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=20)[-1]
