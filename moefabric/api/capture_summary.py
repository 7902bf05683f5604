"""Summary of a captured file: bytes by sender, receiver and circuit, and control messages."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from moefabric.config.plugins import ocs_dialects
from moefabric.controller.southbound.openflow.light_probe import parse_frame
from moefabric.core.errors import FabricError
from moefabric.core.openflow.constants import VERSION, MessageType
from moefabric.core.units import NS_PER_S, rate_text
from moefabric.emulator.linux import pcapng
from moefabric.emulator.ocs.scpi.syntax import units
from moefabric.runtime.run_directory import FabricWiring

_OPENFLOW_HEADER: Final = 8
_OPENFLOW_PORTS: Final = range(6653, 6910)
"""Ports of the EPS's controller and of those of at most 256 regions."""
_SHOWN: Final = 20
_SEPARATED: Final = ("SCPI", "TL1")
"""Protocols whose lines have several commands, with `;` between them."""
Pair = tuple[str, str]


@dataclass
class CaptureSummary:
    """Counts of the frames in a captured file.

    Attributes:
        frames: Number of frames in the file.
        bytes: Their bytes on the wire.
        seen_again: Frames that another interface, such as the other end of a circuit, has seen
            before. All counts below leave them out.
        proofs: Frames by which controllers prove light.
        seconds: Time from the first frame to the last.
        pairs: Bytes by sender and receiver: servers, or addresses.
        flows: Bytes by sender, receiver and their ports, which are 0 without TCP and UDP.
        circuits: Frames by comment, such as `s0/o0~s1/o0` or `no light`.
        commands: Number of messages of control protocols. Programs on servers may send such bytes,
            too: only what crosses the management network counts, if the fabric is known.
    """

    frames: int = 0
    bytes: int = 0
    seconds: float = 0.0
    seen_again: int = 0
    proofs: int = 0
    pairs: Counter[Pair] = field(default_factory=Counter)
    flows: Counter[tuple[str, str, int, int]] = field(default_factory=Counter)
    circuits: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)

    def lines(self) -> Iterator[str]:
        """Yield lines for people."""
        yield f"{self.frames:,} frames, {self.bytes:,} bytes in {self.seconds:.3f} s"
        if self.seen_again:
            yield f"  {self.seen_again:,} of them were seen at both ends, and count once below"
        if self.proofs:
            yield f"  {self.proofs:,} frames by which controllers prove light"
        for (sender, receiver), octets in self.pairs.most_common(_SHOWN):
            flows = sum((sender, receiver) == flow[:2] for flow in self.flows)
            rate = rate_text(8 * octets / self.seconds) if self.seconds else "-"
            noun = "flow" if flows == 1 else "flows"
            yield f"  {sender} -> {receiver}  {octets:,} bytes  {rate}  {flows} {noun}"
        for title, counts in (("light", self.circuits), ("control", self.commands)):
            for name, count in counts.most_common(_SHOWN):
                yield f"  {title}  {name}  {count:,}"


def summarize(path: Path, wiring: FabricWiring | None = None) -> CaptureSummary:
    """Summarize a pcapng file.

    Args:
        wiring: The fabric, whose servers take the place of addresses.

    Raises:
        FabricError: If the file can't be read, or isn't pcapng.
    """
    # Frames are read down to IP only after `inet` has bound it to Ethernet; takes half a second.
    from scapy.layers.inet import IP
    from scapy.layers.l2 import Ether

    names = server_names(wiring) if wiring else {}
    summary, first_ns, sightings = CaptureSummary(), None, _Sightings()
    try:
        with path.open("rb") as file:
            for kind, body in pcapng.read_blocks(file):
                sightings.interfaces += kind == pcapng.INTERFACE
                if kind != pcapng.PACKET:
                    continue
                packet = pcapng.parse_packet(body)
                first_ns = packet.time_ns if first_ns is None else first_ns
                summary.seconds = max(summary.seconds, (packet.time_ns - first_ns) / NS_PER_S)
                summary.frames += 1
                summary.bytes += packet.length
                if sightings.are_again(packet):
                    summary.seen_again += 1
                    continue
                if parse_frame(packet.data):
                    summary.proofs += 1
                    continue
                if comment := packet.comment:
                    summary.circuits[comment] += 1
                frame = Ether(packet.data)
                if IP in frame:
                    _count_packet(summary, frame[IP], packet.length, wiring, names)
    except OSError as error:
        raise FabricError(f"{path}: {error.strerror}") from error
    except pcapng.PcapngError as error:
        raise FabricError(f"{path}: {error}") from error
    return summary


class _Sightings:
    """Frames that have been seen at one interface of several so far."""

    def __init__(self) -> None:
        self.interfaces = 0
        self._at: dict[int, int] = {}

    def are_again(self, packet: pcapng.Packet) -> bool:
        """Return whether another interface has seen this frame, which is forgotten then."""
        if self.interfaces < 2:
            return False
        digest = hash((packet.data, packet.length))
        first = self._at.pop(digest, packet.interface)
        if first != packet.interface:
            return True
        self._at[digest] = packet.interface
        return False


def server_names(wiring: FabricWiring) -> dict[str, str]:
    """Return servers, OCSes and the control plane by their addresses."""
    fabric, management = wiring.fabric, wiring.management
    names = {
        address: server
        for server in fabric.servers
        for address in fabric.addressing.addresses(server)
    }
    names |= {management.server_address(fabric, server): server for server in fabric.servers}
    names |= {management.ocs_address(region): ocs.name for region, ocs in fabric.ocses.items()}
    return names | {management.host_address: "controllers", management.switches_address: "switches"}


def _count_packet(
    summary: CaptureSummary,
    header: Any,
    length: int,
    wiring: FabricWiring | None,
    names: Mapping[str, str],
) -> None:
    from scapy.layers.inet import TCP, UDP

    sender, receiver = (names.get(address, address) for address in (header.src, header.dst))
    summary.pairs[sender, receiver] += length
    transport = next((header[layer] for layer in (TCP, UDP) if layer in header), None)
    ports = (int(transport.sport), int(transport.dport)) if transport is not None else (0, 0)
    summary.flows[sender, receiver, *ports] += length
    ends = map(IPv4Address, (header.src, header.dst))
    if TCP in header and (not wiring or all(end in wiring.management.network for end in ends)):
        summary.commands.update(control_messages(*ports, bytes(header[TCP].payload)))


def control_messages(source: int, target: int, payload: bytes) -> Iterator[str]:
    """Yield the names of the control messages in the payload of a TCP segment.

    Messages that begin in an earlier segment are left out.
    """
    protocols = {dialect.port: name.upper() for name, dialect in ocs_dialects().items()}
    if payload[:1] == bytes([VERSION]) and (source in _OPENFLOW_PORTS or target in _OPENFLOW_PORTS):
        yield from (f"OpenFlow {name}" for name in _openflow_messages(payload))
    elif target in protocols:
        name, text = protocols[target], payload.decode("ascii", "replace")
        for line in text.splitlines():
            parts = (
                [unit.header for unit in units(line)] if name in _SEPARATED else line.split()[:1]
            )
            if name == "TL1":  # behind the verb are parameters, among them a password
                parts = [part.partition(":")[0] for part in parts]
            yield from (f"{name} {part[:40]}" for part in parts)
    elif source in protocols and payload:
        yield f"{protocols[source]} reply"


def _openflow_messages(payload: bytes) -> Iterator[str]:
    known = {kind.value: kind.name for kind in MessageType}
    while len(payload) >= _OPENFLOW_HEADER and payload[0] == VERSION:
        length = int.from_bytes(payload[2:4], "big")
        yield known.get(payload[1], f"type {payload[1]}")
        payload = payload[max(length, _OPENFLOW_HEADER) :]
