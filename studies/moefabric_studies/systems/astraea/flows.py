"""Long flows that start one after another over one programmable link, with real TCP."""

import selectors
import socket
import struct
from dataclasses import dataclass
from time import monotonic
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.api import links
from moefabric_studies.arrays import Array
from moefabric_studies.systems.link.incast import Flow, open_flows

BIN_S: Final = 0.1
"""Time over which throughput and round-trip times are sampled."""
BLOCK: Final = bytes(1 << 17)
_TCP_RTT: Final = 68
"""Offset of `tcpi_rtt` in `struct tcp_info`."""


@dataclass(frozen=True)
class Bottleneck:
    """A link that flows share, with a queue of one bandwidth-delay product.

    Attributes:
        rate_bps: Its rate in bits a second.
        rtt_s: Round-trip time of an empty queue in s.
        is_fair: Whether each flow has a queue of its own.
        has_ecn: Whether packets are marked from a sixth of the queue on.
    """

    rate_bps: float
    rtt_s: float
    is_fair: bool = False
    has_ecn: bool = False

    @property
    def queue_bytes(self) -> int:
        """Size of the queue."""
        return round(self.rate_bps * self.rtt_s / 8)

    def link(self) -> tuple[links.LinkBehaviour, links.LinkBehaviour]:
        """Return the behaviour of the way there and of the way back."""
        half_ns = round(self.rtt_s / 2 * 1e9)
        there = links.LinkBehaviour(
            self.rate_bps,
            half_ns,
            queue_bytes=self.queue_bytes,
            scheduling=links.Scheduling.FAIR if self.is_fair else links.Scheduling.FIFO,
            ecn_bytes=self.queue_bytes // 6 if self.has_ecn else None,
        )
        return there, links.LinkBehaviour(delay_ns=half_ns)


@dataclass(frozen=True)
class Trace:
    """Rates and delays of flows over time.

    Attributes:
        bottleneck: The link.
        starts_s: When each flow started, in s.
        rates: [flows, bins]: goodput in bits a second, as the receivers counted it.
        rtt_s: [flows, bins]: smoothed round-trip time in s; NaN before the start.
        counters: The link's own counters.
    """

    bottleneck: Bottleneck
    starts_s: tuple[float, ...]
    rates: Array[np.float64]
    rtt_s: Array[np.float64]
    counters: links.RelayCounters


def trace_of(
    bottleneck: Bottleneck, congestion_control: str, flows: int, stagger_s: float
) -> Trace:
    """Let flows start at equal distances, and all end together one distance after the last start.

    Raises:
        FabricError: Without root, or if the machine refuses.
    """
    starts_s = tuple(stagger_s * flow for flow in range(flows))
    there, back = bottleneck.link()
    with (
        links.link_between(there, back) as net,
        open_flows([net.hosts[0]] * flows, net.hosts[1], congestion_control) as pairs,
    ):
        net.reset()
        counted, rtt_s = _transfer(pairs, starts_s, stagger_s * flows)
        return Trace(bottleneck, starts_s, counted * 8 / BIN_S, rtt_s, net.counters())


def _transfer(
    pairs: list[Flow], starts_s: tuple[float, ...], end_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Send as much as possible; return received bytes and round-trip times by flow and bin."""
    bins = round(end_s / BIN_S)
    received, rtt_s = np.zeros((len(pairs), bins)), np.full((len(pairs), bins), np.nan)
    waiting = list(range(len(pairs)))
    with selectors.DefaultSelector() as selector:
        for flow, (_, far) in enumerate(pairs):
            selector.register(far, selectors.EVENT_READ, flow)
        began_s, sampled = monotonic(), 0
        while (now_s := monotonic() - began_s) < end_s:
            while waiting and now_s >= starts_s[waiting[0]]:
                flow = waiting.pop(0)
                selector.register(pairs[flow][0], selectors.EVENT_WRITE, flow)
            if (bin_ := int(now_s / BIN_S)) > sampled:
                _sample(pairs, starts_s, rtt_s, bin_)
                sampled = bin_
            for key, events in selector.select(BIN_S / 10):
                if events & selectors.EVENT_WRITE:
                    pairs[key.data][0].send(BLOCK)
                else:
                    received[key.data, min(bin_, bins - 1)] += len(pairs[key.data][1].recv(1 << 20))
    return received, rtt_s


def _sample(
    pairs: list[Flow], starts_s: tuple[float, ...], rtt_s: NDArray[np.float64], bin_: int
) -> None:
    for flow, (near, _) in enumerate(pairs):
        if starts_s[flow] < (bin_ - 1) * BIN_S and bin_ < rtt_s.shape[1]:
            info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_RTT + 4)
            rtt_s[flow, bin_] = struct.unpack_from("=I", info, _TCP_RTT)[0] / 1e6
