"""Bytes by light and by EPS as counted at ports, and flows that took another way than planned.

The plan of a transfer says which bytes pass each NIC, each port of the OCS and each uplink of a
leaf; the counters say which bytes did. All bytes here are those on connections: emulated bytes with
the agents' frames around them. An undisturbed transfer differs by answers of its receivers and by
the last frames of the transfer before it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.flows import Flow
from moefabric.core.nic import NicKind
from moefabric.core.port_counts import (
    INTO_OCS,
    OUT_OF_OCS,
    RECEIVED,
    SENT,
    Counts,
    counted_nics,
    counted_ports,
    framed_bytes,
)
from moefabric.core.routes import Link, route
from moefabric.core.topology import Fabric
from moefabric.core.units import size_text
from moefabric.planner.sending.task_flows import TaskFlows
from moefabric.results.records.port_windows import PortGroup, PortWindow, TransferCount
from moefabric.results.records.records import CollectiveRun, RunFailures
from moefabric.workload.iterations.iteration import Collective

FLOW_BYTES: Final = 192
"""Payload besides a flow's own, by either direction of its port: answers and frames that follow."""
PORT_BYTES: Final = 1024
"""Payload of a port besides that of flows, such as the frames that prove light."""
SHARE: Final = 1e-3
"""Share of a port's bytes by which counters may differ from the plan besides."""
RESENT_SHARE: Final = 0.20
"""Share of a port's bytes that senders may say to have sent again.

TCP sent again at most 4.9 % of a port's bytes in an incast of four servers into queues of 20
packets (`examples/incast.yaml`), and 0.13 % where no queue has a limit.
"""
ARRIVED_AGAIN_SHARE: Final = 0.10
"""Share of a receiver's bytes that may arrive again, whatever their senders say.

What a queue dropped doesn't arrive. In that incast, 0.6 % of a receiver's bytes arrived again. On a
machine without idle time, TCP takes late packets for lost: 6 % of a NIC's bytes arrived again in
one collective of `examples/spines.yaml`.
"""
IN_FLIGHT_BYTES: Final = 512 * 1024
"""Bytes of a flow that one time-out may send again, whatever its share: a socket's buffer.

A machine without idle time took 385 kB of an honest flow of 787 kB for lost.
"""
_OPPOSITE: Final = [RECEIVED, SENT, OUT_OF_OCS, INTO_OCS]
_LEAVING, _ARRIVING = [SENT, INTO_OCS], [RECEIVED, OUT_OF_OCS]
"""Counters at which bytes leave a server, and at which they arrive."""
_MOST_NAMES: Final = 2

Column = tuple[int, int]
"""Row and column of a reading."""


@dataclass(frozen=True)
class PlannedUse:
    """The planned use of ports by one transfer.

    Attributes:
        flows: The flows that pass each port.
        bytes: Their bytes.
        resent: Bytes that TCP sent again through each port, as senders say.
        owed: Bytes that each server receives.
    """

    flows: Mapping[Column, Sequence[Flow]]
    bytes: Mapping[Column, int]
    resent: Mapping[Column, int]
    owed: Mapping[str, int]


@dataclass(frozen=True)
class _Comparison:
    """Counted bytes, planned bytes and tolerance of each port between two readings."""

    counted: Counts
    planned: Counts
    tolerance: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Misrouting:
    """Bytes that did not pass the ports for which they were planned.

    Attributes:
        text: The flows or the port, with planned and counted bytes of the model.
        node: The server or the leaf whose port counted them.
        transfers: The transfers that used the port meanwhile.
        is_excess: Whether no planned byte is missing at any port.
    """

    text: str
    node: str
    transfers: tuple[TransferCount, ...]
    is_excess: bool = False


@dataclass(frozen=True)
class CountedBytes:
    """Bytes of the model that arrived by either network; None if nobody counted them."""

    by_light: float | None = None
    by_eps: float | None = None


class CountedTraffic:
    """The counted bytes of all transfers of a run, compared with their plans."""

    def __init__(self, fabric: Fabric, runs: Iterable[CollectiveRun]) -> None:
        self.fabric = fabric
        self._runs_of = defaultdict[TransferCount, list[CollectiveRun]](list)
        for run in runs:
            if run.count is not None:
                self._runs_of[run.count].append(run)
        nics = counted_nics(fabric)
        self._nics = len(nics)
        self._names = counted_ports(fabric)
        self._row = {name: row for row, name in enumerate(self._names)}
        self._rows = defaultdict[PortGroup, list[int]](list)
        for row, nic in enumerate(nics):
            self._rows[nic.server, nic.kind is NicKind.OPTICAL].append(row)
        self._uplinks: dict[Link, Column] = {}
        for row, (leaf, spine) in enumerate(fabric.eps_wiring.uplinks, len(nics)):
            self._rows[leaf, False].append(row)
            self._uplinks |= {(leaf, spine): (row, SENT), (spine, leaf): (row, RECEIVED)}
        self._use = cache(self._planned_use)
        self._counted: dict[PortWindow, Counts] = {}
        """Counted bytes of the ports of each complete window."""
        self._misroutings = defaultdict[TransferCount, list[Misrouting]](list)
        shared = (window for transfer in self._runs_of for window in transfer.windows)
        transfers = dict.fromkeys(transfer for w in shared for transfer in w.transfers)
        for windows in _alike(transfers).values():
            comparison = self._compare(windows[0])
            for window in windows:
                self._counted[window] = comparison.counted[self._rows[window.group]]
            for misrouting in self._misrouted_at(windows, comparison):
                for transfer in misrouting.transfers:
                    self._misroutings[transfer].append(misrouting)

    # --- plan and counters -----------------------------------------------------------------------

    def _planned_use(self, transfer: TransferCount) -> PlannedUse:
        """Return the use of ports that a transfer's plan says."""
        flows = defaultdict[Column, list[Flow]](list)
        size, resent = defaultdict[Column, int](int), defaultdict[Column, int](int)
        owed, again = defaultdict[str, int](int), defaultdict[tuple[str, str, str], int](int)
        for record in transfer.records:
            again[record.src, record.dst, record.path] += record.retransmits * self.fabric.mtu
        for order in transfer.orders:
            for flow in order.flows:
                payload = self._size(flow)
                repeated = again.get((flow.src, flow.dst, flow.path), 0)
                owed[flow.dst] += payload
                for port in self._ports(order, flow):
                    flows[port].append(flow)
                    size[port] += payload
                    resent[port] += repeated
        return PlannedUse(flows, size, resent, owed)

    def _size(self, flow: Flow) -> int:
        """Return the bytes of a flow on its connection."""
        return framed_bytes(self.fabric.scale.size_bytes(flow.bytes))

    def _ports(self, order: TaskFlows, flow: Flow) -> Iterator[Column]:
        """Yield the ports that a flow passes, each with its direction."""
        for near, far in route(self.fabric, order.circuits, flow):
            if near in self._row:
                yield self._row[near], SENT
            if far in self._row:
                yield self._row[far], RECEIVED
            if far == "ocs":
                yield self._row[near], INTO_OCS
            if near == "ocs":
                yield self._row[far], OUT_OF_OCS
            if uplink := self._uplinks.get((near, far)):
                yield uplink

    def _compare(self, window: PortWindow) -> _Comparison:
        """Compare the counters of a complete window with the plans of its transfers."""
        assert window.after is not None
        planned, flows, resent = (np.zeros((len(self._names), 4), np.int64) for _ in range(3))
        for transfer in window.transfers:
            use = self._use(transfer)
            for port, listed in use.flows.items():
                planned[port] += use.bytes[port]
                flows[port] += len(listed)
                resent[port] += use.resent[port]
        counted = window.after.payload_since(window.before)
        tolerance = (
            PORT_BYTES
            + FLOW_BYTES * self._with_answers(flows)
            + SHARE * (planned + planned[:, _OPPOSITE])
            + self._sent_again(planned, resent, flows)
        )
        return _Comparison(counted, planned, np.asarray(tolerance, np.float64))

    def _sent_again(self, planned: Counts, resent: Counts, flows: Counts) -> NDArray[np.float64]:
        """Return the bytes by which ports may exceed their plan because TCP sent some again.

        `resent` is what senders say, which is bounded by shares of the planned bytes, or by what
        one time-out of each flow sends again, but not more than half. At a server's
        port that ends the way of its bytes, only those count that weren't dropped before.
        """
        shares = np.full(planned.shape, RESENT_SHARE)
        if not (self.fabric.has_circuits_only or self.fabric.forwarding):
            shares[: self._nics, _ARRIVING] = ARRIVED_AGAIN_SHARE
        timed_out = np.minimum(IN_FLIGHT_BYTES * flows, planned / 2)
        again = np.minimum(resent, np.maximum(shares * planned, timed_out))
        # Selective acknowledgements have 36 bytes in some frames of the opposite direction.
        answers = np.minimum(resent, ARRIVED_AGAIN_SHARE * planned)[:, _OPPOSITE]
        return np.asarray(again + answers, np.float64)

    def _with_answers(self, flows: Counts) -> Counts:
        """Return the number of flows whose bytes or whose answers pass each port.

        An answer leaves by the NIC by which its flow arrived, but may cross another spine.
        """
        both = flows + flows[:, _OPPOSITE]
        for leaf in self.fabric.leaves:
            if rows := self._rows.get((leaf, False)):
                both[rows, :INTO_OCS] = flows[rows].sum()
        return np.asarray(both, np.int64)

    # --- bytes of a run --------------------------------------------------------------------------

    def bytes_of(self, run: CollectiveRun) -> CountedBytes:
        """Return the bytes of a run that arrived by either network.

        Transfers that share a window share its bytes: those by light as planned, those by EPS in
        proportion to what each was owed and did not receive by light.
        """
        if run.count is None or not run.planned:
            return CountedBytes()
        by_light, by_eps = (self._bytes_by(run, run.count, light=light) for light in (True, False))
        return CountedBytes(by_light, by_eps)

    def _bytes_by(self, run: CollectiveRun, count: TransferCount, *, light: bool) -> float | None:
        """Return the model's bytes of a run that arrived by one network; None if not counted."""
        windows = [
            window
            for window in count.windows
            if window.group[1] is light and self._is_server(window.group)
            if self._concerns(run, window.group[0])
        ]
        counted = _total(self._arrived(count, window) for window in windows)
        if counted is None:
            return None
        flows = [flow for flow in run.planned if flow.is_optical is light] or run.planned
        model_bytes = sum(flow.bytes for flow in flows) / sum(map(self._size, flows))
        return counted * (model_bytes * self._share_once(count, light=light))

    def _share_once(self, transfer: TransferCount, *, light: bool) -> float:
        """Return the share of a network's received bytes that isn't forwarded on.

        Bytes that servers forward are received several times: at each server on their way, and by
        the EPS if a relay has lost its circuit.
        """
        if not (self.fabric.has_circuits_only or self.fabric.forwarding):
            return 1.0
        use, counter = self._use(transfer), OUT_OF_OCS if light else RECEIVED
        by_network = (
            rows
            for group, rows in self._rows.items()
            if group[1] is light and self._is_server(group)
        )
        rows = set(chain.from_iterable(by_network))
        flows = [f for order in transfer.orders for f in order.flows if f.is_optical is light]
        once = sum(self._size(flow) for flow in flows)
        received = sum(
            size for (row, column), size in use.bytes.items() if column == counter and row in rows
        )
        return min(1.0, once / received) if received else 1.0

    def _arrived(self, transfer: TransferCount, window: PortWindow) -> float | None:
        """Return a transfer's bytes that a server received in a window; None if not counted."""
        if not window.is_complete:
            return None
        server, is_light = window.group
        ports = [(row, OUT_OF_OCS) for row in self._rows[window.group]]
        weights = {}
        for other in window.transfers:
            use = self._use(other)
            if is_light:
                weights[other] = float(sum(use.bytes.get(port, 0) for port in ports))
                continue
            optical = [w for w in other.windows if w.group == (server, True)]
            light = _total(self._arrived(other, w) for w in optical)
            if light is None:
                return None
            weights[other] = max(0.0, use.owed.get(server, 0) - light)
        counted = float(self._counted[window][:, OUT_OF_OCS if is_light else RECEIVED].sum())
        total = sum(weights.values())
        return counted * (weights[transfer] / total if total else 1 / len(weights))

    # --- misrouted bytes --------------------------------------------------------------------------

    def misrouted(
        self, run: CollectiveRun, failures: RunFailures, *, moved: bool = False
    ) -> list[Misrouting]:
        """Return the misroutings of a run that no failure explains.

        With `moved`, return those while a failure was present that the plan didn't know.
        """
        return [
            misrouting
            for misrouting in (self._misroutings.get(run.count, ()) if run.count else ())
            if self._concerns(run, misrouting.node) and self._moved(misrouting, failures) is moved
        ]

    def _is_server(self, group: PortGroup) -> bool:
        """Return whether ports are NICs of a server, rather than uplinks of a leaf."""
        return group[0] in self.fabric.server_index

    def _concerns(self, run: CollectiveRun, node: str) -> bool:
        """Return whether a node is a server of the run's region, or a leaf of such a server."""
        if not isinstance(run.operation, Collective) or run.count is None:
            return True
        region_of = run.count.orders[0].region_of
        if node in self.fabric.server_index:
            return region_of.get(node) == run.region
        servers = (server for server, region in region_of.items() if region == run.region)
        return node in self.fabric.eps_wiring.leaves_of(servers)

    def _moved(self, misrouting: Misrouting, failures: RunFailures) -> bool:
        """Return whether a failure explains a misrouting.

        After a loss, the kernel may still send what cut-off transfers had left in its queues.
        """
        runs = [run for count in misrouting.transfers for run in self._runs_of[count]]
        return any(
            failures.disturbing(run) or (misrouting.is_excess and failures.had_cut_off(run))
            for run in runs
        )

    def _misrouted_at(
        self, windows: Sequence[PortWindow], result: _Comparison
    ) -> Iterator[Misrouting]:
        """Yield the misroutings of windows between the same readings and of the same transfers."""
        rows = sorted(row for window in windows for row in self._rows[window.group])
        excess = (result.counted - result.planned)[rows]
        wrong = np.abs(excess) > result.tolerance[rows]
        if not wrong.any():
            return
        transfers = tuple(windows[0].transfers)
        named: set[Flow] = set()
        lacking, more = wrong & (excess < 0), wrong & (excess > 0)
        for columns in (_LEAVING, _ARRIVING):
            for row in compress(rows, lacking[:, columns].any(axis=1)):
                flows = self._flows_at(transfers, row, columns[0])
                if not named.issuperset(flows):
                    named.update(flows)
                    text = self._lack(result, row, columns, flows)
                    yield Misrouting(text, self._node(row), transfers)
        columns = _LEAVING if more[:, _LEAVING].any() else _ARRIVING
        left = excess[:, _LEAVING].max(axis=1)
        source = int(left.argmax())
        for place in np.flatnonzero(more[:, columns].any(axis=1)):
            size = size_text(float(excess[place, columns].max()) * self.fabric.scale.bytes)
            text = f"{self._port_did(rows[place], columns)} {size} more than planned"
            if columns is _ARRIVING and 2 * left[source] > excess[place, columns].max():
                text += f", most from {self._names[rows[source]]}"
            yield Misrouting(text, self._node(rows[place]), transfers, not lacking.any())

    def _flows_at(self, transfers: Iterable[TransferCount], row: int, column: int) -> list[Flow]:
        uses = [self._use(transfer) for transfer in transfers]
        return [flow for use in uses for flow in use.flows.get((row, column), ())]

    def _lack(
        self, result: _Comparison, row: int, columns: Sequence[int], flows: Sequence[Flow]
    ) -> str:
        """Describe flows that a port should have carried, with planned and counted bytes."""
        model_bytes = sum(flow.bytes for flow in flows)
        optical = bool(result.planned[row, columns[1]])
        counted = result.counted[row, columns].min() if optical else result.counted[row, columns[0]]
        share = max(0, int(counted)) / int(result.planned[row, columns[0]])
        port, network = self._port(row, columns), "light" if optical else "EPS"
        server, _, path = port.partition("/")
        ends = list(dict.fromkeys(f"{flow.src} to {flow.dst}" for flow in flows))
        more = f" and {len(ends) - _MOST_NAMES} more" if len(ends) > _MOST_NAMES else ""
        leaves = all((flow.src, flow.path) == (server, path) for flow in flows)
        return (
            f"{', '.join(ends[:_MOST_NAMES])}{more} {f'by {path}' if leaves else f'at {port}'}: "
            f"planned {size_text(model_bytes)} by {network}, counted "
            f"{size_text(share * model_bytes)}"
        )

    def _port(self, row: int, columns: Sequence[int]) -> str:
        """Return the name of a port: `s0/e1`, or of an uplink's direction: `leaf0 to spine1`."""
        ends = self._names[row].split("~")
        return " to ".join(ends if columns is _LEAVING else reversed(ends))

    def _port_did(self, row: int, columns: Sequence[int]) -> str:
        """Return a port with the verb for its bytes: `s0/e1 sent`, `leaf0 to spine1 carried`."""
        verb = "sent" if columns is _LEAVING else "received"
        return f"{self._port(row, columns)} {'carried' if '~' in self._names[row] else verb}"

    def _node(self, row: int) -> str:
        """Return the server or the leaf of a port."""
        return re.split("[/~]", self._names[row])[0]


def _alike(transfers: Iterable[TransferCount]) -> dict[tuple[int, ...], list[PortWindow]]:
    """Return the complete windows in groups of equal readings and equal transfers."""
    alike = defaultdict[tuple[int, ...], dict[PortWindow, None]](dict)
    for transfer in transfers:
        for window in transfer.windows:
            if window.is_complete:
                key = window.before, window.after, *window.transfers
                alike[tuple(map(id, key))][window] = None
    return {key: list(windows) for key, windows in alike.items()}


def _total(parts: Iterable[float | None]) -> float | None:
    listed = list(parts)
    known = [part for part in listed if part is not None]
    return sum(known) if len(known) == len(listed) else None
