"""Transfers over a small fabric of each kind, run in a network namespace of its own: `unshare --net python kinds_bench.py KIND`.

Prints what was measured and what the fluid model says, as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from controller.planner.policy import Policy
from controller.planner.static import Static
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.sending import PacedFlow
from moefabric.experiment.testbed import Lights, standing
from moefabric.flows import Flow
from moefabric.fluid import predict, route
from moefabric.records import FlowRecord
from moefabric.topology import Eps, EpsKind, Fabric, Ocs, Region

RATE_BPS: Final = 60e6
BYTES: Final = 2_000_000


@dataclass(frozen=True)
class Case:
    """A fabric, who sends on it by which NIC, and whether that is paced as planned or as fast as it goes."""

    fabric: Fabric
    flows: tuple[Flow, ...]
    paced: bool = True
    policy: Policy | None = None


def _wired(electrical: int, eps: Eps | None, optical: int = 0) -> Fabric:
    servers = ("s0", "s1", "s2", "s3")
    region = Region("r0", 0, servers, Ocs("ocs0", 4 * optical) if optical else None)
    return Fabric("kinds", (region,), 1, optical, electrical, RATE_BPS, eps, panel=optical > 0)


def _all(pairs: Sequence[tuple[str, str]], paths: Sequence[str]) -> tuple[Flow, ...]:
    return tuple(Flow(a, b, path, BYTES) for a, b in pairs for path in paths)


_ACROSS = (("s0", "s2"), ("s1", "s3"), ("s2", "s0"), ("s3", "s1"))
CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        "oversubscribed": Case(_wired(2, Eps(2, 2, 3.0)), _all(_ACROSS, ("e0", "e1")), paced=False),
        "rail": Case(_wired(2, Eps(2, 1, 1.0, EpsKind.RAIL)), _all([*_ACROSS, ("s0", "s1")], ("e0", "e1"))),
        "panel": Case(
            _wired(0, None, optical=2),
            _all([("s0", "s2"), ("s3", "s1"), ("s0", "s1")], ("o0", "o1")),
            policy=Static(),
        ),
    }
)


def _laid(case: Case, lights: Lights) -> CircuitSet:
    if case.policy is None:
        return CircuitSet()
    nothing = DemandMatrix(case.fabric.servers, [[0.0] * 4] * 4)
    return lights.reconfigure(case.policy.name, nothing, case.fabric)


def measured(case: Case) -> dict[str, Any]:
    """Bring the fabric up, send, and take it down."""
    lay = (lambda lights: _laid(case, lights)) if case.policy else None
    congestion = "reno" if case.paced else "cubic"
    with standing(case.fabric, congestion=congestion, lay=lay) as (_, fleet, lights):
        lit = _laid(case, lights)
        said = predict(case.fabric, lit, case.flows)
        told = [
            PacedFlow(f.src, f.dst, f.path, round(f.bytes), 1.03 * rate if case.paced else None)
            for f, rate in zip(case.flows, said.rates_bps, strict=True)
        ]
        records = min((fleet.run(number, told) for number in (1, 2)), key=_seconds)
        return {
            "predicted_s": said.seconds,
            "measured_s": _seconds(records),
            "ok": all(record.ok for record in records),
            "circuits": [str(circuit) for circuit in lit],
            "hops": max(len(route(case.fabric, lit, flow)) for flow in case.flows),
        }


def _seconds(records: Sequence[FlowRecord]) -> float:
    return (max(r.last_received_ns for r in records) - min(r.first_sent_ns for r in records)) / 1e9


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=5)
    print(json.dumps(measured(CASES[sys.argv[1]])))
