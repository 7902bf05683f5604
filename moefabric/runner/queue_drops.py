"""Counters of a fabric's queues before and after a run, and the packets that queues dropped."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from moefabric.emulator.fabric import lifecycle
from moefabric.runner.result_parts import DroppingPort, QueueDrops

Counts = Mapping[str, Mapping[str, int]]
"""The counters `packets`, `bytes` and `drops` of each port (`moefabric.emulator.fabric.queues`)."""


def queue_drops(room: str, before: Counts, after: Counts) -> QueueDrops:
    """Return the packets that left all queues and those that were dropped between two readings.

    Args:
        room: Room of the queues.
        before: Counters at the beginning.
        after: Counters at the end.
    """
    ports = [
        DroppingPort(
            port=port,
            packets=counts["packets"] - before[port]["packets"],
            drops=counts["drops"] - before[port]["drops"],
        )
        for port, counts in after.items()
    ]
    return QueueDrops(
        limit=room,
        packets=sum(port.packets for port in ports),
        drops=sum(port.drops for port in ports),
        ports=sorted((p for p in ports if p.drops), key=lambda p: (-p.drops, p.port)),
    )


@contextmanager
def queue_readings(fabric: str, *, enabled: bool) -> Iterator[list[Counts]]:
    """Read the queues of a running fabric before and after the `with`.

    Yields:
        A list that holds both readings afterwards; it stays empty if none is `enabled`.
    """
    readings: list[Counts] = []
    if not enabled:
        yield readings
        return
    before = lifecycle.queues(fabric)
    yield readings
    readings += [before, lifecycle.queues(fabric)]
