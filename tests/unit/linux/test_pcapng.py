"""pcapng files: read by Scapy as they are written, and refused if they are something else."""

import io
from pathlib import Path

import pytest

from moefabric.emulator.linux import pcapng
from moefabric.emulator.linux.pcapng import Packet, PcapngError

TIME_NS = 1_767_225_600_123_456_789


def capture_file(*packets: Packet, comment: str = "") -> bytes:
    interfaces = [pcapng.interface(name, f"{name} of lab", 256) for name in ("s0/o0", "s1/o0")]
    blocks = [packet.block(comment) for packet in packets]
    return b"".join([pcapng.section("moefabric"), *interfaces, *blocks])


def test_scapy_reads_time_interface_and_comment(tmp_path: Path) -> None:
    from scapy.utils import PcapNgReader

    data, file = bytes(range(61)), tmp_path / "one.pcap"
    outbound = pcapng.direction(pcapng.OUTBOUND)
    packet = Packet(1, TIME_NS, data, 1500, outbound)
    end = pcapng.statistics(1, TIME_NS, 3, 2)
    file.write_bytes(capture_file(packet, comment="s0/o0~s1/o0") + end)
    with PcapNgReader(str(file)) as reader:
        read = reader.read_packet()
        assert (bytes(read), read.wirelen) == (data, 1500)
        assert round(read.time * 10**9) == TIME_NS
        assert read.sniffed_on == "s1/o0"
        assert read.comment == b"s0/o0~s1/o0"
        assert read.direction == 2
        with pytest.raises(EOFError):
            reader.read_packet()


def test_packet_is_read_as_it_was_written() -> None:
    packet = Packet(0, TIME_NS, b"abcde", 60, pcapng.direction(pcapng.INBOUND))
    *_, (kind, body) = pcapng.read_blocks(io.BytesIO(capture_file(packet)))
    assert (kind, pcapng.parse_packet(body)) == (pcapng.PACKET, packet)
    commented = pcapng.parse_packet(pcapng.block(pcapng.PACKET, body)[8:-4])
    assert commented.comment == ""
    *_, (_, body) = pcapng.read_blocks(io.BytesIO(capture_file(packet, comment="no light")))
    assert pcapng.parse_packet(body).comment == "no light"


def test_block_that_was_cut_short_is_left_out() -> None:
    whole = capture_file(Packet(0, TIME_NS, b"a", 1), Packet(0, TIME_NS, b"b", 1))
    kinds = [kind for kind, _ in pcapng.read_blocks(io.BytesIO(whole[:-5]))]
    assert kinds == [pcapng.SECTION, pcapng.INTERFACE, pcapng.INTERFACE, pcapng.PACKET]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\xd4\xc3\xb2\xa1" + bytes(20), "not a pcapng file"),
        (pcapng.block(pcapng.SECTION, b"\x1a\x2b\x3c\x4d" + bytes(12)), "little-endian"),
        (pcapng.section("") + b"\x06\0\0\0\xff\xff\xff\xff", "a block of 4294967295 bytes"),
        (pcapng.section("") + b"\x06\0\0\0\x0b\0\0\0", "a block of 11 bytes"),
    ],
)
def test_other_files_are_refused(data: bytes, fault: str) -> None:
    with pytest.raises(PcapngError, match=fault):
        list(pcapng.read_blocks(io.BytesIO(data)))


@pytest.mark.parametrize("body", [b"", bytes(19), bytes(12) + b"\xff\0\0\0" + bytes(8)])
def test_impossible_packets_are_refused(body: bytes) -> None:
    with pytest.raises(PcapngError):
        pcapng.parse_packet(body)
