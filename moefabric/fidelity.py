"""Fidelity: whether a run can be believed, judged from what was seen.

Bounds: completion against prediction and CPU head-room as emulation literature sets them (Mininet-HiFi, CoNEXT'12: 35 % idle in every
one-second sample; completion 10 % in the median and 20 % in the 95th percentile); a byte lost or changed is never forgiven.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np


class Verdict(StrEnum):
    """How far a run can be believed."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    DEGRADED = "degraded"
    INVALID = "invalid"


_ORDER: Final = (Verdict.PASS, Verdict.DEGRADED, Verdict.INVALID)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The one that counts for all."""
    return max(verdicts, key=_ORDER.index, default=Verdict.PASS)


@dataclass(frozen=True)
class Bound:
    """Up to `degraded` it passes, up to `invalid` it is degraded, beyond it is invalid."""

    what: str
    degraded: float
    invalid: float

    def judge(self, value: float) -> tuple[Verdict, str | None]:
        """The verdict on a value, with its reason where it isn't a pass."""
        if value <= self.degraded:
            return Verdict.PASS, None
        verdict = Verdict.DEGRADED if value <= self.invalid else Verdict.INVALID
        bound = self.degraded if verdict is Verdict.DEGRADED else self.invalid
        return verdict, f"{self.what} {value:.1%} is over {bound:.0%}"


COMPLETION_P50: Final = Bound("median error of completion times against the fluid prediction", 0.10, 0.20)
COMPLETION_P95: Final = Bound(
    "95th percentile error of completion times against the fluid prediction", 0.20, 0.40
)
LINK_RATE_P95: Final = Bound(
    "95th percentile error of full links' goodput against the planned one", 0.10, 0.25
)
CPU_BUSY: Final = Bound("least CPU idle time is too small: busy share", 0.65, 1.0)
"""A busy second is a warning; whether it did harm, completion times say."""
LATENESS_P95: Final = Bound(
    "95th percentile of how late agents start, as a share of the collective,", 0.05, 0.15
)


DISTURBED: Final = Bound("share of collectives during which others had this machine's CPU", 0.25, 0.75)


@dataclass(frozen=True)
class Observation:
    """What was seen of one fabric's run. Shares are fractions; `error` is measured / predicted - 1.

    `disturbed` is the share of collectives that are left out, since a hypervisor gave the machine to others meanwhile.
    """

    completion_errors: Sequence[float]
    link_rate_errors: Sequence[float]
    cpu_idle: Sequence[float]
    lateness: Sequence[float]
    bytes_sent: int
    bytes_received: int
    corrupt: int
    lost_transfers: int
    remarks: Sequence[str] = field(default_factory=tuple)
    disturbed: float = 0.0


@dataclass(frozen=True)
class Fidelity:
    """A verdict with its reasons and the figures that it rests on."""

    verdict: Verdict
    reasons: tuple[str, ...]
    link_rate_error_p95: float | None
    cpu_idle_min: float | None
    completion_error_p50: float | None
    completion_error_p95: float | None
    start_lateness_p95: float | None
    disturbed: float


def judge(seen: Observation) -> Fidelity:
    """The verdict on a run."""
    errors = np.abs(np.asarray(seen.completion_errors, dtype=float))
    p50, p95 = _percentile(errors, 50), _percentile(errors, 95)
    link = _percentile(np.abs(np.asarray(seen.link_rate_errors, dtype=float)), 95)
    idle = float(min(seen.cpu_idle)) if seen.cpu_idle else None
    late = _percentile(np.asarray(seen.lateness, dtype=float), 95)
    judged = [
        bound.judge(value)
        for bound, value in (
            (COMPLETION_P50, p50),
            (COMPLETION_P95, p95),
            (LINK_RATE_P95, link),
            (LATENESS_P95, late),
        )
        if value is not None
    ]
    if idle is not None:
        judged.append(CPU_BUSY.judge(1 - idle))
    judged.append(DISTURBED.judge(seen.disturbed))
    judged += [(Verdict.DEGRADED, remark) for remark in seen.remarks]
    judged += [(Verdict.INVALID, reason) for reason in _losses(seen)]
    if not len(errors):
        judged.append((Verdict.INVALID, "no collective was measured"))
    reasons = tuple(reason for _, reason in judged if reason)
    return Fidelity(
        worst(verdict for verdict, _ in judged), reasons, link, idle, p50, p95, late, seen.disturbed
    )


def _percentile(values: "np.typing.NDArray[np.float64]", q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None


def _losses(seen: Observation) -> list[str]:
    said = []
    if seen.bytes_sent != seen.bytes_received:
        said.append(f"{seen.bytes_sent} bytes were sent and {seen.bytes_received} received")
    if seen.corrupt:
        said.append(f"{seen.corrupt} transfers arrived changed")
    if seen.lost_transfers:
        said.append(f"{seen.lost_transfers} transfers did not arrive")
    return said
