"""An agent that misbehaves in the way that the variable MOEFABRIC_TEST_SABOTAGE names.

It is started in the place of one server's agent, by the same prefork server as the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from moefabric.agents.engine import collectives, incoming, outgoing, transfers
from moefabric.agents.engine import main as engine
from moefabric.agents.engine.collectives import Collective, Collectives
from moefabric.agents.engine.payload import Payload
from moefabric.agents.engine.transfers import Receive, Send, TransferKey
from moefabric.runtime.event_loop import NOW

VARIABLE = "MOEFABRIC_TEST_SABOTAGE"
DELAY_NS = 30_000_000
LONG_DELAY_NS = 300_000_000
CLOCK_STEP_NS = 40_000_000
SEGMENT = 1448
HONEST_COLLECTIVES = 10
"""Collectives, those before the run included, in which the agent behaves."""
prepare = engine.prepare
_begin: Callable[[Collectives, Collective], None] = Collectives._begin
_init: Callable[..., None] = Send.__init__
_begun: set[int] = set()
"""Numbers of the collectives that have begun."""


def _misbehaves() -> bool:
    return len(_begun) > HONEST_COLLECTIVES


def _count(self: Collectives, collective: Collective) -> None:
    _begun.add(collective.number)
    _begin(self, collective)


def _delay_starts(delay_ns: int) -> None:
    """Take the instant of each collective for a later one: the kernel starts transfers itself."""
    init = Collective.__init__

    def delayed(self: Collective, *arguments: Any) -> None:
        init(self, *arguments)
        if _misbehaves():
            self.start_ns += delay_ns

    Collective.__init__ = delayed  # type: ignore[assignment, method-assign]


def start_late() -> None:
    """Begin each collective 30 ms after its instant."""
    _delay_starts(DELAY_NS)


def start_very_late() -> None:
    """Begin each collective 300 ms after its instant."""
    _delay_starts(LONG_DELAY_NS)


def duplicate() -> None:
    """Send each transfer twice; the receiver expects only the first."""

    def begin(self: Collectives, collective: Collective) -> None:
        _count(self, collective)
        for send in collective.sends if _misbehaves() else ():
            key = TransferKey(send.collective, send.peer, send.path, send.sequence + 1000)
            second = Send(key, send.bytes, send.rate_bps)
            self.connections.outgoing[send.peer, send.path].send(second)

    Collectives._begin = begin  # type: ignore[method-assign]


def resend() -> None:
    """Send each transfer twice, and report the second time as segments that TCP sent again."""
    duplicate()

    def change(report: dict[str, Any]) -> None:
        report["retransmits"] += report["moved"] // SEGMENT

    _report(Send, change)


def halve() -> None:
    """Scale the bytes of each transfer down once more."""

    def halved(self: Send, key: TransferKey, size: int, *others: Any) -> None:
        _init(self, key, size // 2 if _misbehaves() else size, *others)

    Send.__init__ = halved  # type: ignore[assignment, method-assign]


def slow_down() -> None:
    """Send each transfer at 90 % of its pace."""
    _scale_pace(0.9)


def _scale_pace(factor: float) -> None:
    def slowed(
        self: Send, key: TransferKey, size: int, rate_bps: float | None, *others: Any
    ) -> None:
        slower_bps = factor * rate_bps if rate_bps and _misbehaves() else rate_bps
        _init(self, key, size, slower_bps, *others)

    Send.__init__ = slowed  # type: ignore[assignment, method-assign]


def corrupt() -> None:
    """Send other bytes than those of the pattern."""

    class Shifted(Payload):
        def extent(self, most: int) -> tuple[int, int]:
            begin, size = super().extent(most)
            return begin + (1 if _misbehaves() else 0), size

    outgoing.Payload = Shifted  # type: ignore[attr-defined]


def _report(kind: type[transfers.Transfer], change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the agent reports on its transfers."""
    to_json = kind.to_json

    def changed(self: transfers.Transfer) -> dict[str, Any]:
        report = to_json(self)
        if _misbehaves():
            change(report)
        return report

    kind.to_json = changed  # type: ignore[method-assign]


def claim_bytes() -> None:
    """Report a tenth more received bytes than arrived."""
    _report(Receive, lambda report: report.update(moved=report["moved"] * 11 // 10))


def claim_speed() -> None:
    """Report that transfers arrived in 90 % of the time that they took."""

    def change(report: dict[str, Any]) -> None:
        if report["last_ns"]:
            report["last_ns"] -= (report["last_ns"] - report["first_ns"]) // 10

    _report(Receive, change)


def hide_slowness() -> None:
    """Send at half the pace, and report that transfers arrived in half the time that they took."""
    _scale_pace(0.5)

    def change(report: dict[str, Any]) -> None:
        if report["last_ns"]:
            report["last_ns"] -= (report["last_ns"] - report["first_ns"]) // 2

    _report(Receive, change)


def step_clock() -> None:
    """Set the agent's clock forward by 40 ms."""

    def now() -> int:
        return NOW() + (CLOCK_STEP_NS if _misbehaves() else 0)

    for module in (outgoing, incoming, collectives):
        module.NOW = now  # type: ignore[attr-defined]


BEHAVIOURS = {
    function.__name__: function
    for function in (
        start_late, start_very_late, duplicate, resend, halve, corrupt, claim_bytes, claim_speed,
        hide_slowness, step_clock, slow_down,
    )
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the agent with its fault."""
    Collectives._begin = _count  # type: ignore[method-assign]
    BEHAVIOURS[os.environ[VARIABLE]]()
    return engine.main(arguments)
