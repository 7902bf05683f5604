"""Sessions of TL1 and RESTCONF: log-ins, idle timeouts, and what closed sessions leave."""

import json

import pytest

from moefabric.core.ocs import DeviceProfile, SettleTime
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.tl1.front_end import Tl1FrontEnd
from tests.support.ocs_fuzz import TL1_LOG_IN, request
from tests.support.ocs_lab import BenchClient, OcsBench

SECOND_NS = 1_000_000_000
PUT = request(
    b"PUT", b"/api/data/cross-connects/pair=1", b"", b'{"pair":[{"ingress":1,"egress":13}]}'
)
GET = request(b"GET", b"/api/data/cross-connects")


def bench(profile: DeviceProfile | None = None) -> OcsBench:
    return OcsBench(12, DeviceSpec(profile or DeviceProfile()), ["tl1", "restconf"])


def is_closed(client: BenchClient) -> bool:
    return client.connection.closed


@pytest.mark.parametrize(
    ("front_end", "sent"),
    [
        pytest.param("tl1", TL1_LOG_IN + b"ENT-PATCH::1,13:2:;ENT-PA", id="tl1"),
        pytest.param("restconf", GET + PUT + b"GET /", id="restconf"),
    ],
)
def test_closed_session_leaves_no_state(front_end: str, sent: bytes) -> None:
    switch = bench()
    client = switch.client(front_end)
    client.send(sent)
    assert len(switch.device.users.log_ins) == 1
    client.session.end()
    switch.timers.advance_ns(1000 * SECOND_NS)
    assert not switch.device.users.log_ins
    assert client.connection.take() == b""
    tl1 = switch.front_ends["tl1"]
    assert isinstance(tl1, Tl1FrontEnd)
    assert not tl1.sessions
    assert list(switch.device.connects) == [(1, 13)]


def test_idle_http_connection_is_closed_but_not_while_light_settles() -> None:
    switch = bench(
        DeviceProfile(
            settle=SettleTime(fixed_ns=100 * SECOND_NS), dialects={"restconf": {"idle_s": 60}}
        )
    )
    idle, busy = switch.client("restconf"), switch.client("restconf")
    busy.send(PUT)
    switch.timers.advance_ns(59 * SECOND_NS)
    assert not is_closed(idle)
    switch.timers.advance_ns(SECOND_NS)
    assert is_closed(idle)
    switch.timers.advance_ns(41 * SECOND_NS)
    assert busy.connection.take().startswith(b"HTTP/1.1 201 ")
    assert not is_closed(busy)
    switch.timers.advance_ns(60 * SECOND_NS)
    assert is_closed(busy)


def test_slow_request_is_closed_after_idle_timeout() -> None:
    switch = bench()
    client = switch.client("restconf")
    for byte in b"GET /api/data/cross-connects HTTP/1.1\r\nHost: a\r\n" * 2:
        client.send(bytes([byte]))
        switch.timers.advance_ns(SECOND_NS)
    assert is_closed(client)


def test_idle_tl1_session_is_disconnected_if_dialect_says_so() -> None:
    switch = bench(DeviceProfile(dialects={"tl1": {"timed_out": "hang up"}}))
    client = switch.client("tl1")
    client.send(TL1_LOG_IN + b"ED-EQPT::TIMEOUT:2:::ADMIN=1;")
    switch.timers.advance_ns(59 * SECOND_NS)
    client.send(b"RTRV-HDR:::3:;")
    switch.timers.advance_ns(59 * SECOND_NS)
    assert not is_closed(client)
    switch.timers.advance_ns(SECOND_NS)
    assert is_closed(client)
    assert b"A  1 CANC" in client.connection.take()


def test_shorter_timeout_applies_to_idle_sessions() -> None:
    switch = bench()
    old, other = switch.client("tl1"), switch.client("tl1")
    old.send(TL1_LOG_IN)
    switch.timers.advance_ns(3600 * SECOND_NS)
    other.send(TL1_LOG_IN + b"ED-EQPT::TIMEOUT:2:::ADMIN=1;")
    switch.timers.advance_ns(1)
    assert b"CANC" in old.connection.take()
    assert b"PLNA" in old.send(b"RTRV-HDR:::3:;")
    assert b"COMPLD" in other.send(b"RTRV-HDR:::3:;")


def test_autonomous_messages_are_renumbered_after_reboot() -> None:
    switch = bench()
    client = switch.client("tl1")
    client.send(TL1_LOG_IN)
    assert b"A  1 REPT EVT" in client.send(b"OPR-PORT-SHUTTER::1:2:;")
    assert b"A  2 REPT EVT" in client.send(b"RLS-PORT-SHUTTER::1:3:;")
    switch.front_ends["tl1"].restart()
    assert b"A  1 REPT EVT" in client.send(b"OPR-PORT-SHUTTER::1:4:;")


def test_accounts_are_shared_by_tl1_and_restconf() -> None:
    switch = bench()
    client = switch.client("tl1")
    client.send(TL1_LOG_IN + b"ENT-USER-SECU::guest:2::guest,,view;")
    by_http = GET.replace(b"YWRtaW46cm9vdA==", b"Z3Vlc3Q6Z3Vlc3Q=")
    assert switch.client("restconf").send(by_http).startswith(b"HTTP/1.1 200 ")
    client.send(b"DLT-USER-SECU::guest:3:;")
    assert switch.client("restconf").send(by_http).startswith(b"HTTP/1.1 401 ")


def test_accounts_survive_restart_of_process() -> None:
    before = bench()
    before.client("tl1").send(
        TL1_LOG_IN + b"ENT-USER-SECU::guest:2::guest,,view;DLT-USER-SECU::admin:3:;"
    )
    memory = json.loads(json.dumps(before.device.memory()))
    after = OcsBench(12, DeviceSpec(memory=memory), ["tl1"])
    assert [account.name for account in after.device.users] == ["guest", "root"]
    assert b"COMPLD" in after.client("tl1").send(b"ACT-USER::guest:1::guest;")
