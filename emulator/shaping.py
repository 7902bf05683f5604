"""Shaping: each end of a NIC's link sends at the NIC's emulated rate, by HTB, and nothing is dropped in the wait."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from emulator.command import Line, batch, run
from moefabric.errors import FabricError

LEAST_BPS: Final = 100e3
"""A 64 kB frame lasts 5 s at this rate; below, one frame outlasts TCP's patience and the fabric only resembles itself in the mean."""
MOST_BPS: Final = 10e9
"""Of one link. A bare veth pair carries about 16 Gb/s and a switch in user space about 8 on two cores; beyond this HTB's timer is
late by more than its burst and the link is slower than said."""
_LATENESS_S: Final = 2e-3
_TOLERANCE: Final = 2e-3
_FRAMES: Final = 100_000
_QUANTUM_BYTES: Final = 65_536
_RATE: Final = re.compile(r"class htb 1:1 .*?rate (\d+)([KMGT]?)bit")
_PREFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def refusal(rate_bps: float) -> str | None:
    """Why a link can't be shaped to this rate, with the remedy; None where it can."""
    if not rate_bps >= LEAST_BPS:
        return f"{rate_bps:.0f} b/s is too slow to shape (100 kb/s at least); scale the bytes down by less"
    if rate_bps > MOST_BPS:
        return f"{rate_bps / 1e9:g} Gb/s is more than this machine can shape (10 Gb/s a link); scale the bytes down by more"
    return None


def burst_bytes(rate_bps: float, mtu: int) -> int:
    """The tokens that HTB may save up: what it must catch up on when its timer is 2 ms late, and two frames at least.

    HTB sends a frame whenever it isn't in debt and lets the debt grow by the whole frame, so 64 kB frames keep the rate with a
    burst far below their size; a larger one would let each idle link send that much ahead of its time.
    """
    return max(2 * (mtu + 14), int(rate_bps / 8 * _LATENESS_S))


@dataclass(frozen=True)
class Shape:
    """What one interface is shaped to; `place` is the link that it is an end of."""

    place: str
    interface: str
    rate_bps: float
    mtu: int


def shape(shapes: Sequence[Shape]) -> None:
    """Shape interfaces of the calling thread's namespace, and read back that they are. FabricError names the link."""
    tell(shapes)
    verify(shapes)


def tell(shapes: Sequence[Shape]) -> None:
    """Shape interfaces of the calling thread's namespace; `verify` reads back that they are. FabricError names the link."""
    batch(["tc"], [line for one in shapes for line in _lines(one)])


def _lines(one: Shape) -> tuple[Line, Line, Line]:
    rate, burst = round(one.rate_bps), burst_bytes(one.rate_bps, one.mtu)
    at = f"dev {one.interface}"
    return (
        Line(one.place, f"qdisc replace {at} root handle 1: htb default 1"),
        Line(
            one.place,
            f"class replace {at} parent 1: classid 1:1 htb rate {rate}bit ceil {rate}bit "
            f"burst {burst} cburst {burst} quantum {_QUANTUM_BYTES}",
        ),
        Line(one.place, f"qdisc replace {at} parent 1:1 handle 10: pfifo limit {_FRAMES}"),
    )


def verify(shapes: Sequence[Shape]) -> None:
    """FabricError, naming each link of the calling thread's namespace that isn't shaped to its rate."""
    if not shapes:
        return
    roots = {
        qdisc["dev"]: qdisc["kind"]
        for qdisc in json.loads(run(["tc", "-j", "qdisc", "show"]))
        if qdisc.get("root")
    }
    kinds = {one.interface: roots.get(one.interface, "none") for one in shapes}
    if faults := [
        f"{one.place}: {one.interface} has qdisc {kind} where htb was set"
        for one in shapes
        if (kind := kinds[one.interface]) != "htb"
    ]:
        raise FabricError("; ".join(faults))
    # tc has no JSON for HTB's classes; one line comes for each question.
    shown = batch(["tc"], [Line(one.place, f"class show dev {one.interface} classid 1:1") for one in shapes])
    rates = shown_rates_bps(shown)
    if len(rates) != len(shapes):
        raise FabricError(
            f"shaping: {len(shapes)} interfaces were shaped and {len(rates)} are, of {shapes[0].place} and others"
        )
    wrong = [
        (one, rate)
        for one, rate in zip(shapes, rates, strict=True)
        if abs(rate / one.rate_bps - 1) > _TOLERANCE
    ]
    if wrong:
        told = (
            f"{one.place}: {one.interface} is shaped to {rate:.0f} b/s, not {one.rate_bps:.0f}"
            for one, rate in wrong
        )
        raise FabricError("; ".join(told))


def shown_rates_bps(text: str) -> list[float]:
    """The rate of each HTB class that `tc class show` tells of; tc rounds to a thousandth."""
    return [int(number) * _PREFIXES[prefix] for number, prefix in _RATE.findall(text)]
