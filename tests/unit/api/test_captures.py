"""Captures: the light at an instant, comments, summaries, and when a capture ends."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether

from moefabric.api.capture import light_history
from moefabric.api.capture_summary import control_messages, summarize
from moefabric.controller.southbound.openflow.light_probe import encode_frame
from moefabric.core.eps import Eps
from moefabric.core.errors import FabricError
from moefabric.core.nic import Nic
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.node_commands import capture_points
from moefabric.emulator.linux import pcapng
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork
from moefabric.ui.cli.capture import Until, parse_until

REGION = Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", 6, 0))
FABRIC = Fabric("f", (REGION,), 2, 2, 1, 1e9, Eps(4))
WIRING = FabricWiring(FABRIC, ManagementNetwork("198.18.7.0/24"))


def port(number: int, state: str, partner: int | None) -> dict[str, Any]:
    return {"port": number, "state": state, "partner": partner}


def test_light_follows_the_events_of_the_ocs() -> None:
    ports = [port(1, "tuned", 9), port(3, "tuned", 7), port(2, "tuning", 11), port(9, "tuned", 1)]
    events = [
        {"ocs": "ocs1", "kind": "changed", "at_ns": 90, "parted": [[1, 9], [3, 7]]},
        {"ocs": "ocs0", "kind": "changed", "at_ns": 100, "parted": [[1, 9]], "made": [[1, 11]]},
        {"ocs": "ocs0", "kind": "refused", "at_ns": 110},
        {"ocs": "ocs0", "kind": "settled", "at_ns": 150, "made": [[1, 11]]},
    ]
    circuit_at = light_history(FABRIC, REGION, ports, events)
    s0 = Nic.parse("s0/o0")
    shown = [circuit_at(s0, at_ns) for at_ns in (99, 100, 149, 150, 10**9)]
    assert shown == ["s0/o0~s1/o0", None, None, "s0/o0~s2/o0", "s0/o0~s2/o0"]
    assert circuit_at(Nic.parse("s1/o0"), 10**9) == "s0/o0~s1/o0"  # one way may stay
    assert circuit_at(Nic.parse("s0/o1"), 99) is None


@pytest.mark.parametrize(
    ("place", "points"),
    [
        ("s0/o1", [("", "s0/o1")]),
        ("s0/o0~s2/o1", [("", "s0/o0"), ("", "s2/o1")]),
        ("s1", [("s1", "s1")]),
        ("ocs0", [("ocs0", "ocs0")]),
        ("management", [("", "management")]),
        ("leaf0", [("", "leaf0-p1"), ("", "leaf0-p2"), ("", "leaf0-p3")]),
    ],
)
def test_places_are_interfaces_of_one_namespace(place: str, points: list[tuple[str, str]]) -> None:
    assert [(point.node, point.name) for point in capture_points(WIRING, place)] == points


@pytest.mark.parametrize("place", ["s9", "s0/o0~s9/o0", "s0/o0~s1/o0~s2/o0", "", "leaf9"])
def test_unknown_place_is_refused_with_the_places(place: str) -> None:
    with pytest.raises(FabricError, match="has no such place; it has the NICs s0/o0") as refused:
        capture_points(WIRING, place)
    others = "; the servers s0, s1, s2; the OCSes ocs0; the switches leaf0; management"
    assert str(refused.value).endswith(others)


def frame(layer: Any, second: int, comment: str = "") -> bytes:
    data = bytes(Ether() / layer)
    return pcapng.Packet(0, 10**18 + second * 10**9, data, len(data)).block(comment)


def test_summary_counts_pairs_light_and_commands(tmp_path: Path) -> None:
    openflow = bytes([4, 14, 0, 8]) + bytes(4) + bytes([4, 20, 0, 8]) + bytes(4)
    names = {server: FABRIC.addressing.addresses(server)[0] for server in FABRIC.servers}
    data = UDP(sport=1, dport=2) / bytes(958)
    management = WIRING.management
    to_ocs = IP(src=management.host_address, dst=management.ocs_address(REGION))
    to_switch = IP(src=management.host_address, dst=management.switches_address)
    file = tmp_path / "all.pcap"
    frames = [
        frame(IP(src=names["s0"], dst=names["s1"]) / data, 0, "s0/o0~s1/o0"),
        frame(IP(src=names["s0"], dst=names["s1"]) / data, 1, "no light"),
        frame(IP(src=names["s0"], dst="192.0.2.1") / data, 2, "no light"),
        frame(to_ocs / TCP(sport=4000, dport=5025) / b":OXC:SWIT:CONN:ONLY (@1),(@9)\n*OPC?\n", 3),
        frame(to_switch / TCP(sport=6654, dport=4000) / openflow, 4),
        frame(ARP(), 4),
    ]
    head = pcapng.section("m") + pcapng.interface("s0/o0", "", 2000)
    file.write_bytes(head + b"".join(frames))
    summary = summarize(file, WIRING)
    assert (summary.frames, summary.seconds) == (6, 4.0)
    assert summary.pairs["s0", "s1"] == 2000
    assert summary.flows["s0", "192.0.2.1", 1, 2] == 1000
    assert summary.circuits == {"no light": 2, "s0/o0~s1/o0": 1}
    assert summary.commands == {
        "SCPI :OXC:SWIT:CONN:ONLY": 1,
        "SCPI *OPC?": 1,
        "OpenFlow FLOW_MOD": 1,
        "OpenFlow BARRIER_REQUEST": 1,
    }
    assert "  s0 -> s1  2,000 bytes  4kb/s  1 flow" in list(summary.lines())


def test_summary_takes_no_data_of_programs_for_control_messages(tmp_path: Path) -> None:
    s0, s1 = (FABRIC.addressing.addresses(server)[0] for server in ("s0", "s1"))
    openflow = bytes([4, 14, 0, 8]) + bytes(4)
    host, switches = WIRING.management.host_address, WIRING.management.switches_address
    frames = [
        frame(IP(src=s0, dst=s1) / TCP(sport=52870, dport=5201) / openflow, 0),
        frame(IP(src=s0, dst=s1) / TCP(sport=52870, dport=6653) / openflow, 1),
        frame(IP(src=s0, dst=s1) / TCP(sport=52870, dport=5025) / b"*opc?\n", 2),
        frame(IP(src=host, dst=switches) / TCP(sport=8081, dport=4000) / openflow, 3),
    ]
    file = tmp_path / "data.pcap"
    file.write_bytes(pcapng.section("m") + pcapng.interface("s0/o0", "", 2000) + b"".join(frames))
    summary = summarize(file, WIRING)
    assert summary.commands == {}
    assert summary.flows[("s0", "s1", 52870, 5201)] > 0


def test_summary_counts_a_frame_of_both_ends_once_and_proofs_of_light_apart(tmp_path: Path) -> None:
    names = [FABRIC.addressing.addresses(server)[0] for server in ("s0", "s1")]
    ping = bytes(Ether() / IP(src=names[0], dst=names[1]) / ICMP(seq=1) / bytes(56))
    frames = [(0, ping), (1, ping), (0, encode_frame(7, 0)), (1, encode_frame(7, 0))]
    blocks = [
        pcapng.Packet(end, second, data, len(data)).block("s0/o0~s1/o0")
        for second, (end, data) in enumerate(frames)
    ]
    ends = b"".join(pcapng.interface(name, "", 2000) for name in ("s0/o0", "s1/o0"))
    file = tmp_path / "circuit.pcap"
    file.write_bytes(pcapng.section("m") + ends + b"".join(blocks))
    first, *others = summarize(file, WIRING).lines()
    assert first.startswith("4 frames, 316 bytes")
    assert [line.split("  ")[1:] for line in others] == [
        ["2 of them were seen at both ends, and count once below"],
        ["1 frames by which controllers prove light"],
        ["s0 -> s1", "98 bytes", "261.3Gb/s", "1 flow"],
        ["light", "s0/o0~s1/o0", "1"],
    ]


def test_first_frame_is_counted_by_a_process_that_reads_no_other_file(tmp_path: Path) -> None:
    """A frame is read down to IP from the first one on."""
    names = [FABRIC.addressing.addresses(server)[0] for server in ("s0", "s1")]
    ping = IP(src=names[0], dst=names[1]) / ICMP() / bytes(56)
    head = pcapng.section("m") + pcapng.interface("s0/o0", "", 2000)
    file = tmp_path / "pings.pcap"
    file.write_bytes(head + b"".join(frame(ping, second) for second in range(3)))
    program = (
        "import sys; from pathlib import Path; from moefabric.api.capture_summary import summarize;"
        "summary = summarize(Path(sys.argv[1])); print(summary.bytes, *summary.pairs.values())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, file], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["294", "294"]


@pytest.mark.parametrize(
    ("port", "line", "names"),
    [
        (
            5025,
            b":conn:sub (@1),(@16);:conn:add (@2),(@17);*opc?\n*wai\n",
            ["SCPI :conn:sub", "SCPI :conn:add", "SCPI *opc?", "SCPI *wai"],
        ),
        (3082, b"ACT-USER::admin:1::root;RTRV-TOD:::2:;", ["TL1 ACT-USER", "TL1 RTRV-TOD"]),
        (8008, b"Accept: text/html;q=0.9\r\n\r\n", ["RESTCONF Accept:"]),
    ],
)
def test_each_command_of_a_line_is_counted(port: int, line: bytes, names: list[str]) -> None:
    assert list(control_messages(4000, port, line)) == names


def test_malformed_control_messages_end_the_search() -> None:
    zero_length = bytes([4, 0, 0, 0]) * 4
    assert len(list(control_messages(6653, 1, zero_length))) == 2
    assert list(control_messages(1, 2, b"anything")) == []


def test_summary_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no capture at all")
    with pytest.raises(FabricError, match="text: not a pcapng file"):
        summarize(tmp_path / "text")
    with pytest.raises(FabricError, match="absent: No such file"):
        summarize(tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "until"),
    [
        (None, Until()),
        ("100frames", Until(frames=100)),
        ("3 MB", Until(bytes=3_000_000)),
        ("250ms", Until(seconds=0.25)),
        ("5s", Until(seconds=5.0)),
        ("reconfiguration", Until(reconfiguration=True)),
    ],
)
def test_end_of_a_capture(text: str | None, until: Until) -> None:
    assert parse_until(text) == until


@pytest.mark.parametrize("text", ["", "soon", "-3MB", "x frames", "1e3frames"])
def test_wrong_end_of_a_capture_names_the_right_ones(text: str) -> None:
    with pytest.raises(ValueError, match="100frames, 10MB, 5s or reconfiguration"):
        parse_until(text)
