"""Readings of port counters at the start and the end of transfers.

A window is the time during which transfers use a server's optical or electrical NICs, or a leaf's
uplinks. It opens with the reading before the first of them and closes with the reading after the
last. A window of optical NICs holds one collective, because a circuit joins servers of one region,
which runs one collective at a time. Electrical NICs and uplinks may carry several transfers at
once: what their counters show belongs to all transfers of the window together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from moefabric.core.flows import FlowRecord
from moefabric.core.port_counts import PortReading
from moefabric.core.protocols import PortCounters
from moefabric.planner.sending.task_flows import TaskFlows

PortGroup = tuple[str, bool]
"""A server's NICs of one kind, or a leaf's uplinks; True stands for optical NICs."""


@dataclass(eq=False)
class PortWindow:
    """A window of one group of ports.

    Attributes:
        before: The reading that opened the window.
        transfers: The transfers that used the ports.
        after: The reading that closed the window; None while a transfer is under way.
    """

    group: PortGroup
    before: PortReading
    transfers: list["TransferCount"] = field(default_factory=list)
    after: PortReading | None = None

    @property
    def is_complete(self) -> bool:
        """True if all flows of the window arrived, rather than being cut off by a loss."""
        return self.after is not None and all(transfer.complete for transfer in self.transfers)


@dataclass(eq=False)
class TransferCount:
    """Counters and records of a transfer.

    Attributes:
        orders: The flows that agents were ordered to send, with the circuits for which they were
            planned.
        records: The measurements of these flows.
        windows: The window of each group of ports.
        complete: Whether all flows arrived.
    """

    orders: list[TaskFlows] = field(default_factory=list)
    records: Sequence[FlowRecord] = ()
    windows: list[PortWindow] = field(default_factory=list)
    complete: bool = False


class PortWindows:
    """Opens and closes the windows of the transfers of one run."""

    def __init__(self, counters: PortCounters) -> None:
        self._counters = counters
        self._open: dict[PortGroup, tuple[PortWindow, set[TransferCount]]] = {}
        """Open windows, each with the transfers under way."""

    def begin(self, groups: Iterable[PortGroup]) -> TransferCount:
        """Read the counters before a transfer's first byte.

        Args:
            groups: All ports that the transfer may use.
        """
        count, reading = TransferCount(), self._counters.read()
        for group in groups:
            window, under_way = self._open.setdefault(group, (PortWindow(group, reading), set()))
            window.transfers.append(count)
            under_way.add(count)
            count.windows.append(window)
        return count

    def end(
        self, count: TransferCount, records: Sequence[FlowRecord], *, complete: bool = True
    ) -> None:
        """Read the counters after a transfer's last byte."""
        reading = self._counters.read()
        count.records, count.complete = records, complete
        for window in count.windows:
            under_way = self._open[window.group][1]
            under_way.remove(count)
            if not under_way:
                window.after = reading
                del self._open[window.group]
