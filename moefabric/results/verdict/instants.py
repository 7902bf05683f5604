"""Instants of a collective that run, senders and receivers know independently of each other.

All are shares of the collective. The run knows when an order should have started and when its
report came, and a sender knows when the receiver's agent had all bytes. Times that one of them
hides contradict the others.
"""

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from moefabric.core.flows import Flow, FlowRecord
from moefabric.core.routes import route
from moefabric.core.topology import Fabric
from moefabric.results.records.records import CollectiveRun


def lateness(run: CollectiveRun) -> tuple[str, float]:
    """Return the last of the senders with a common start, and how late its bytes arrived.

    What a sender reports doesn't tell it: its kernel may have held the first bytes.
    """
    late_ns, server = max(
        (start_ns - min(starts.values()), server)
        for starts in _starts_ns(run).values()
        for server, start_ns in starts.items()
    )
    return server, late_ns / _duration_ns(run)


def start_shares(fabric: Fabric, run: CollectiveRun) -> Iterator[tuple[str, float]]:
    """Yield the server that sent first, and how late after the start that its order named.

    The propagation delay of programmed links is not counted. Of several orders, that of the latest
    start counts.
    """
    firsts = [
        (start_ns - run.ordered_ns[number], server)
        for number, starts in _starts_ns(run, fabric).items()
        for server, start_ns in [min(starts.items(), key=lambda start: start[1])]
        if number in run.ordered_ns
    ]
    if firsts:
        late_ns, server = max(firsts)
        yield server, late_ns / _duration_ns(run)


def report_share(run: CollectiveRun) -> float:
    """Return the time from the last byte to the agents' report, as a share of the collective."""
    return run.report_ns / _duration_ns(run)


def arrival_shares(run: CollectiveRun) -> Iterator[tuple[str, float]]:
    """Yield each receiver, and how long after its arrivals their senders knew of them: the median.

    It is negative if a receiver names later arrivals than its acknowledgements.
    """
    after_ns = defaultdict[str, list[int]](list)
    for record in run.records:
        if record.acknowledged_ns:
            after_ns[record.dst].append(record.acknowledged_ns - record.last_received_ns)
    for server, late_ns in sorted(after_ns.items()):
        yield server, median(late_ns) / _duration_ns(run)


def _starts_ns(run: CollectiveRun, fabric: Fabric | None = None) -> dict[int, dict[str, int]]:
    """Return by order when the first bytes of each sender arrived; without delays of a fabric."""
    starts_ns: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for record in run.records:
        first_ns = record.first_received_ns
        if fabric is not None:
            first_ns -= _propagation_ns(fabric, run, record)
        starts = starts_ns[record.collective]
        starts[record.src] = min(first_ns, starts.get(record.src, first_ns))
    return starts_ns


def _propagation_ns(fabric: Fabric, run: CollectiveRun, record: FlowRecord) -> int:
    """Return the time that a frame takes over programmed links."""
    if fabric.eps_link is None:
        return 0
    flow = Flow(record.src, record.dst, record.path, record.bytes)
    links = [link for link in route(fabric, run.circuits, flow) if "ocs" not in link]
    return len(links) * fabric.scale.wall_ns(fabric.eps_link.behaviour.delay_ns)


def _duration_ns(run: CollectiveRun) -> int:
    return max(1, run.end_ns - run.start_ns)
