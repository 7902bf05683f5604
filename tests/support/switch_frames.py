"""Frames for switches under test, and Hypothesis strategies of frames, matches and flows.

The strategies draw from few values, so that flows and frames often match.
"""

import struct
from typing import Any

from hypothesis import strategies as st

from moefabric.core.openflow.actions import ALL, CONTROLLER, IN_PORT, Output, SetField, ToGroup
from moefabric.core.openflow.constants import GroupType
from moefabric.core.openflow.match import Match
from moefabric.core.openflow.messages import Bucket
from moefabric.emulator.openflow_switch.datapath.interface import Flow, Group
from moefabric.emulator.openflow_switch.flows.packet import internet_checksum

MACS = (0x0A0000000001, 0x0A0000000002, 0x0A00000000F2)
ADDRESSES = (0x0A090001, 0x0A090002, 0x0A0A0001, 0xC0A80001)


def mac(number: int) -> bytes:
    return number.to_bytes(6)


def ipv4(
    *,
    src: int = ADDRESSES[0],
    dst: int = ADDRESSES[1],
    dscp: int = 0,
    ecn: int = 0,
    proto: int = 17,
    ports: tuple[int, int] = (1000, 9),
    options: bytes = b"",
    fragment: int = 0,
    payload: bytes = b"x" * 20,
    eth: tuple[int, int] = (MACS[1], MACS[0]),
) -> bytes:
    """A frame with an IPv4 packet; `eth` are the destination and source MACs."""
    inner = struct.pack(">HHHH", *ports, 8 + len(payload), 0) + payload
    size = 20 + len(options)
    header = struct.pack(
        ">BBHHHBBH4s4s",
        *(0x40 | size // 4, dscp << 2 | ecn, size + len(inner), 1, fragment, 64, proto, 0),
        *(src.to_bytes(4), dst.to_bytes(4)),
    )
    header += options
    header = header[:10] + internet_checksum(header).to_bytes(2) + header[12:]
    return mac(eth[0]) + mac(eth[1]) + b"\x08\x00" + header + inner


def udp_frame(length: int, *, traffic_class: int = 0, ecn: int = 0, port: int = 1000) -> bytes:
    """A frame of so many bytes, for tests of links."""
    return ipv4(dscp=traffic_class << 3, ecn=ecn, ports=(port, 9), payload=bytes(length - 42))


def arp(*, op: int = 1, spa: int = ADDRESSES[0], tpa: int = ADDRESSES[1]) -> bytes:
    addresses = mac(MACS[0]) + spa.to_bytes(4) + bytes(6) + tpa.to_bytes(4)
    body = struct.pack(">HHBBH", 1, 0x0800, 6, 4, op) + addresses
    return b"\xff" * 6 + mac(MACS[0]) + b"\x08\x06" + body


def ipv6(*, src: int = 1, dst: int = 2) -> bytes:
    inner = struct.pack(">HHHH", 1000, 9, 28, 0) + b"x" * 20
    header = struct.pack(">IHBB", 6 << 28, len(inner), 17, 64) + src.to_bytes(16) + dst.to_bytes(16)
    return mac(MACS[1]) + mac(MACS[0]) + b"\x86\xdd" + header + inner


def lldp() -> bytes:
    return bytes.fromhex("0180c200000e") + mac(MACS[0]) + b"\x88\xcc" + bytes(range(30))


def tagged(frame: bytes, tag: int = 5, protocol: int = 0x8100) -> bytes:
    """The frame with an 802.1Q tag."""
    return frame[:12] + struct.pack(">HH", protocol, tag) + frame[12:]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    frame: bytes = draw(untagged())
    tags = draw(st.sampled_from([(), (), (), ((5, 0x8100),), ((7, 0x8100), (0xE005, 0x88A8))]))
    if len(frame) < 16:
        return frame  # Linux receives no frame that ends right behind its tag
    for tag, protocol in tags:
        frame = tagged(frame, tag, protocol)
    return frame


@st.composite
def untagged(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["ipv4", "ipv4", "ipv4", "arp", "ipv6", "lldp", "short"]))
    pair = st.tuples(st.sampled_from(ADDRESSES), st.sampled_from(ADDRESSES))
    src, dst = draw(pair)
    match kind:
        case "ipv4":
            return ipv4(
                src=src,
                dst=dst,
                dscp=draw(st.sampled_from([0, 1, 2, 63])),
                ecn=draw(st.sampled_from([0, 0, 1, 3])),
                proto=draw(st.sampled_from([1, 6, 17, 132])),
                ports=draw(
                    st.tuples(st.sampled_from([9, 80, 65535]), st.sampled_from([9, 80, 65535]))
                ),
                options=draw(st.sampled_from([b"", b"\x01" * 4, b"\x01" * 40])),
                fragment=draw(st.sampled_from([0, 0, 0x2000, 0x0010])),
                eth=draw(st.tuples(st.sampled_from(MACS), st.sampled_from(MACS))),
            )
        case "arp":
            return arp(op=draw(st.sampled_from([1, 2])), spa=src, tpa=dst)
        case "ipv6":
            return ipv6(src=src, dst=dst)
        case "lldp":
            return lldp()
        case _:
            return ipv4()[: draw(st.integers(14, 40))]


@st.composite
def matches(draw: st.DrawFn) -> Match:
    """Matches of any header with few masks."""

    def some(**choices: st.SearchStrategy[Any]) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from(sorted(choices)), max_size=2, unique=True))
        return {name: draw(choices[name]) for name in names}

    fields = some(
        in_port=st.sampled_from([1, 2]),
        eth_dst=st.sampled_from(
            [*MACS, (MACS[0], 0xFFFFFFFFFF00), (0x010000000000, 0x010000000000)]
        ),
        eth_src=st.sampled_from(MACS),
    )
    prefix = st.builds(
        lambda address, bits: (address, 0xFFFFFFFF << 32 - bits & 0xFFFFFFFF),
        st.sampled_from(ADDRESSES),
        st.sampled_from([8, 16, 31, 32]),
    )
    match draw(st.sampled_from(["any", "type", "ipv4", "ports", "arp"])):
        case "type":
            fields["eth_type"] = draw(st.sampled_from([0x0800, 0x0806, 0x88CC]))
        case "ipv4" | "ports" as kind:
            fields["eth_type"] = 0x0800
            dscp = st.sampled_from([0, 1, (2, 2)])
            fields |= some(ipv4_src=prefix, ipv4_dst=prefix, ip_dscp=dscp)
            if kind == "ports":
                fields["ip_proto"] = draw(st.sampled_from([6, 17, 132]))
                fields |= some(
                    tp_src=st.sampled_from([9, 80]), tp_dst=st.sampled_from([0, 9, (80, 0xFFF0)])
                )
        case "arp":
            fields["eth_type"] = 0x0806
            fields |= some(arp_op=st.sampled_from([1, 2]), arp_spa=prefix, arp_tpa=prefix)
    return Match.of(**fields)


def actions(ports: int) -> st.SearchStrategy[Any]:
    outputs = [*(Output(port) for port in range(1, ports + 2)), Output(IN_PORT), Output(ALL)]
    return st.one_of(
        st.sampled_from([*outputs, Output(CONTROLLER), Output(CONTROLLER, 40)]),
        st.builds(SetField, st.sampled_from(["eth_dst", "eth_src"]), st.sampled_from(MACS)),
        st.builds(SetField, st.just("ip_dscp"), st.sampled_from([0, 7, 63])),
    )


def groups(ports: int) -> st.SearchStrategy[tuple[Group, ...]]:
    """Groups 1 to 4 of all types; groups 3 and 4 may send packets to 1 and 2."""
    some = st.lists(actions(ports), max_size=2).map(tuple)
    onward = st.one_of(some, st.sampled_from([(ToGroup(1),), (SetField("ip_dscp", 7), ToGroup(2))]))
    port = st.integers(1, ports)

    def buckets(
        done: st.SearchStrategy[Any], least: int = 0, most: int = 3
    ) -> st.SearchStrategy[Any]:
        one = st.builds(Bucket, done, st.integers(0, 3), port)
        return st.lists(one, min_size=least, max_size=most).map(tuple)

    return st.tuples(
        st.builds(Group, st.just(1), st.just(GroupType.SELECT), buckets(some)),
        st.builds(Group, st.just(2), st.just(GroupType.FAST_FAILOVER), buckets(some)),
        st.builds(Group, st.just(3), st.just(GroupType.ALL), buckets(onward)),
        st.builds(Group, st.just(4), st.just(GroupType.INDIRECT), buckets(onward, 1, 1)),
    )


def flows(ports: int, groups: int = 0) -> st.SearchStrategy[Flow]:
    """Flows with few actions, which may use groups 1 to `groups`."""
    through = [st.builds(ToGroup, st.integers(1, groups))] if groups else []
    return st.builds(
        Flow,
        matches(),
        st.integers(0, 3),
        st.lists(st.one_of(actions(ports), *through), max_size=4).map(tuple),
    )
