"""Speed of a machine that emulates a fabric: cores that carry frames, and starts of transfers.

Emulated traffic costs CPU time by the frame: a frame of 44 packets costs about three times as much
as one packet. A frame has as many packets as pass its link in the scale's `frame_s`, 64 KB at most.
Where queues may drop packets, a frame is one packet.
"""

from dataclasses import dataclass
from typing import Final

from moefabric.core.topology import Fabric, drops_packets

LEAST_SEGMENTS, MOST_SEGMENTS = 8, 44
"""Packets of a frame; the kernel's limit is 64 KB."""
_PACKET_BYTES, _ETHERNET_BYTES = 1500, 14
DATAPATH_COSTS: Final = {"bpf": 1.0, "ovs-netdev": 4.0, "ovs-kernel": 1.0}
"""Cost of a frame relative to the BPF datapath, by datapath of the packet switches."""
IDLE_SHARE: Final = 1 / 3
"""Part of a machine that should be idle: processes of the control plane need it."""


def frame_segments(rate_bps: float, mtu: int, frame_s: float) -> int:
    """Return the number of packets in a frame that a host sends into a link.

    Args:
        rate_bps: Rate of the link on the wire.
        mtu: Largest IP packet in bytes.
        frame_s: Longest wall time of a frame with more than `LEAST_SEGMENTS` packets.
    """
    segments = int(rate_bps * frame_s / frame_bits(1, mtu))
    return max(LEAST_SEGMENTS, min(segments, MOST_SEGMENTS * _PACKET_BYTES // mtu))


def fabric_frame_segments(fabric: Fabric) -> int:
    """Return the number of packets in a frame of a fabric's slowest NICs at its scale."""
    if drops_packets(fabric):
        return 1
    scale = fabric.scale
    return frame_segments(scale.rate_bps(min(fabric.rates_bps)), fabric.mtu, scale.frame_s)


def frame_bits(segments: int, mtu: int) -> float:
    """Return the bits of a frame on the wire, without preamble and gap."""
    return 8.0 * segments * (mtu + _ETHERNET_BYTES)


@dataclass(frozen=True)
class MachineSpeed:
    """Costs of frames and of starts on a machine.

    `moefabric calibrate machine` measures them. The defaults are of a machine of two cores
    (docs/benchmarks.md).

    Attributes:
        frame_s: Core-seconds of a frame of 64 KB on a link and of its acknowledgement, in a fabric
            of few NICs.
        packet_s: The same of a frame of one packet; the cost grows linearly in between.
        crowded_nics: Number of NICs with which a frame costs twice as much.
        start_s: Wall seconds from the start of few transfers until the last server's first bytes
            have arrived.
        start_flow_s: Core-seconds that each transfer adds.
    """

    frame_s: float = 16e-6
    packet_s: float = 7e-6
    crowded_nics: float = 250.0
    start_s: float = 0.55e-3
    start_flow_s: float = 5e-6

    def cores(self, fabric: Fabric, link_bps: float, datapath: str) -> float:
        """Return the cores that carry the traffic of a fabric at its scale.

        Args:
            fabric: The fabric, with its scale.
            link_bps: Sum of the rates of all links in the model.
            datapath: Datapath of the packet switches.
        """
        segments = fabric_frame_segments(fabric)
        frames = fabric.scale.rate_bps(link_bps) / frame_bits(segments, fabric.mtu)
        return frames * self.link_frame_s(fabric, segments, datapath)

    def link_frame_s(self, fabric: Fabric, segments: int, datapath: str) -> float:
        """Return the core-seconds that a frame on a link of a fabric costs."""
        nics = len(fabric.servers) * (fabric.optical + fabric.electrical)
        alone_s = self.packet_s + (self.frame_s - self.packet_s) * segments / MOST_SEGMENTS
        return alone_s * DATAPATH_COSTS[datapath] * (1 + nics / self.crowded_nics)

    def full_nic_bps(self, nics: int, cores: int) -> float:
        """Return the rate on the wire at which NICs that are all full leave `IDLE_SHARE` idle.

        Frames have 64 KB, and each passes two links.

        Args:
            nics: Number of NICs.
            cores: Number of cores.
        """
        frames = (1 - IDLE_SHARE) * cores / (2 * self.frame_s * (1 + nics / self.crowded_nics))
        return frames / nics * frame_bits(MOST_SEGMENTS, _PACKET_BYTES)

    def start_spread_s(self, flows: int, cores: int) -> float:
        """Return the wall seconds by which transfers that start together are late."""
        return self.start_s + self.start_flow_s * flows / cores
