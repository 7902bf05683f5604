"""Shaping of links: HTB limits each end of a link to the emulated rate, without drops."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.core.units import QueueLimit
from moefabric.emulator.linux.command import BatchLine, run, run_batch

LEAST_BPS: Final = 100e3
"""A 64 kB frame takes 5 s at this rate. At lower rates a frame takes longer than TCP's timeouts."""
MOST_BPS: Final = 10e9
"""Limit of one link.

On two cores a bare veth pair carries about 16 Gb/s and a switch in user space about 8 Gb/s. At
higher rates HTB's timer lateness exceeds its burst, and the link is slower than its rate.
"""
_TIMER_LATENESS_S: Final = 1e-3
"""Time by which HTB's timer may be late without loss of rate.

An idle link saves up so many bytes, so a collective may end this much before the fluid bound. The
timers of a machine with idle time are late by 50 to 300 µs.
"""
_TOLERANCE: Final = 2e-3
QUEUE_HANDLE: Final = "10:"
"""Handle of the queueing discipline that holds an interface's queue."""
_QUEUE_FRAMES: Final = 100_000
"""Room of an unlimited queue in frames of up to 64 KB, more than the buffers of all sockets."""
_QUANTUM_BYTES: Final = 65_536
_RATE: Final = re.compile(r"class htb 1:1 .*?rate (\d+)([KMGT]?)bit")
_PREFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def rate_refusal(rate_bps: float) -> str | None:
    """Return why a link can't be shaped to a rate, with the remedy; None if it can."""
    if not rate_bps >= LEAST_BPS:
        return (
            f"{rate_bps:.0f} b/s is too slow to shape (100 kb/s at least); "
            "scale the bytes down by less"
        )
    if rate_bps > MOST_BPS:
        return (
            f"{rate_bps / 1e9:g} Gb/s is more than this machine can shape (10 Gb/s a link); "
            "scale the bytes down by more"
        )
    return None


def burst_bytes(rate_bps: float) -> int:
    """Return HTB's burst: the bytes that fall due while its timer is late.

    HTB sends a frame whenever its tokens aren't negative, and then subtracts the whole frame. So a
    burst far below 64 kB suffices for 64 kB frames. A larger burst would let each idle link send
    that many bytes too early.
    """
    return max(1, int(rate_bps / 8 * _TIMER_LATENESS_S))


@dataclass(frozen=True)
class Shape:
    """Rate and queue of one interface; `place` names the link that the interface is an end of."""

    place: str
    interface: str
    rate_bps: float
    queue: QueueLimit | None = None

    @property
    def commands(self) -> tuple[BatchLine, ...]:
        """The `tc` commands that set the rate."""
        rate, burst = f"{round(self.rate_bps)}bit", burst_bytes(self.rate_bps)
        device = f"dev {self.interface}"
        htb = f"rate {rate} ceil {rate} burst {burst} cburst {burst} quantum {_QUANTUM_BYTES}"
        return (
            (self.place, f"qdisc replace {device} root handle 1: htb default 1"),
            (self.place, f"class replace {device} parent 1: classid 1:1 htb {htb}"),
            (self.place, f"qdisc replace {device} parent 1:1 handle {QUEUE_HANDLE} {self._queue}"),
        )

    @property
    def _queue(self) -> str:
        """The queueing discipline of the queue; both kinds drop packets at their tail."""
        if self.queue is None:
            return f"pfifo limit {_QUEUE_FRAMES}"
        return f"{'bfifo' if self.queue.in_bytes else 'pfifo'} limit {self.queue.size}"


def apply_shapes(shapes: Sequence[Shape]) -> None:
    """Shape interfaces of the calling thread's namespace.

    Raises:
        FabricError: names the link that failed.
    """
    run_batch("tc", [command for shape in shapes for command in shape.commands])


def verify_shapes(shapes: Sequence[Shape]) -> None:
    """Check that interfaces of the calling thread's namespace have their rates.

    Raises:
        FabricError: names each link with another rate.
    """
    if not shapes:
        return
    roots = {qdisc["dev"]: qdisc["kind"] for qdisc in read_qdiscs() if qdisc.get("root")}
    if faults := [
        f"{shape.place}: {shape.interface} has qdisc {kind} where htb was set"
        for shape in shapes
        if (kind := roots.get(shape.interface, "none")) != "htb"
    ]:
        raise FabricError("; ".join(faults))
    # tc has no JSON for HTB's classes; it prints one line for each command.
    show = "class show dev {} classid 1:1".format
    output = run_batch("tc", [(shape.place, show(shape.interface)) for shape in shapes])
    rates_bps = parse_rates_bps(output)
    if len(rates_bps) != len(shapes):
        raise FabricError(
            f"shaping: {len(shapes)} interfaces were shaped and {len(rates_bps)} are, "
            f"of {shapes[0].place} and others"
        )
    if faults := [
        f"{shape.place}: {shape.interface} is shaped to {rate_bps:.0f} b/s, "
        f"not {shape.rate_bps:.0f}"
        for shape, rate_bps in zip(shapes, rates_bps, strict=True)
        if abs(rate_bps / shape.rate_bps - 1) > _TOLERANCE
    ]:
        raise FabricError("; ".join(faults))


def read_qdiscs(*options: str) -> list[dict[str, Any]]:
    """Return the queueing disciplines of the calling thread's namespace, as `tc` shows them."""
    return list(json.loads(run(["tc", *options, "-j", "qdisc", "show"])))


def parse_rates_bps(text: str) -> list[float]:
    """Return the rate of each HTB class in the output of `tc class show`, rounded to 1/1000."""
    return [int(number) * _PREFIXES[prefix] for number, prefix in _RATE.findall(text)]
