"""ARP replies by the controller."""

import struct

import pytest

from moefabric.controller.southbound.openflow.messages import arp_reply
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region

FABRIC = Fabric(
    "f",
    (Region("r0", 0, ("s0", "s1"), Ocs("ocs0", 2)), Region("r1", 1, ("s2", "s3"), Ocs("ocs1", 2))),
    4,
    1,
    1,
    1e9,
    Eps(4),
)
BROADCAST, MAC_S0 = b"\xff" * 6, bytes.fromhex("02000a000001")


def address(dotted: str) -> bytes:
    return bytes(map(int, dotted.split(".")))


def request(
    target: str, sender: str = "10.0.0.1", to: bytes = BROADCAST, operation: int = 1
) -> bytes:
    return (
        to + MAC_S0 + bytes.fromhex("0806 0001 0800 06 04") + struct.pack("!H", operation)
        + MAC_S0 + address(sender) + bytes(6) + address(target)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "mac"),
    [
        pytest.param(request("10.0.1.1"), "02000a000101", id="another-server"),
        pytest.param(request("10.0.1.4"), "02000a000101", id="its-last-gpu"),
        pytest.param(request("10.1.1.2"), "02000a010101", id="a-server-of-another-region"),
        pytest.param(
            request("10.0.1.1", to=bytes.fromhex("02000a000101")),
            "02000a000101",
            id="unicast-request",
        ),
        pytest.param(
            request("10.0.1.1") + bytes(18), "02000a000101", id="padded-to-the-least-frame"
        ),
    ],
)
def test_reply_to_names_the_owner_of_an_address(frame: bytes, mac: str) -> None:
    owner, target = bytes.fromhex(mac), frame[38:42]
    assert arp_reply(FABRIC, "s0", frame) == (
        MAC_S0
        + owner
        + bytes.fromhex("0806 0001 0800 06 04 0002")
        + owner
        + target
        + MAC_S0
        + address("10.0.0.1")
    )


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(request("10.0.1.5"), id="an-address-of-no-gpu"),
        pytest.param(request("10.9.0.1"), id="an-address-of-no-region"),
        pytest.param(request("192.0.2.1"), id="an-address-of-another-net"),
        pytest.param(request("10.0.0.2"), id="an-address-of-its-own"),
        pytest.param(request("10.0.0.1", sender="0.0.0.0"), id="a-probe-for-its-own"),
        pytest.param(request("10.0.1.1", operation=2), id="a-reply"),
        pytest.param(request("10.0.1.1")[:41], id="a-frame-cut-short"),
        pytest.param(
            request("10.0.1.1").replace(b"\x08\x06", b"\x08\x00", 1), id="another-protocol"
        ),
        pytest.param(b"", id="nothing"),
    ],
)
def test_reply_to_ignores_other_frames(frame: bytes) -> None:
    assert arp_reply(FABRIC, "s0", frame) is None
