"""Sessions of TL1 and RESTCONF: what they leave behind, and when they are ended."""

import json

import pytest

from emulator.ocs.build import Build
from emulator.ocs.restconf.front_end import Restconf
from emulator.ocs.tl1.front_end import Tl1
from moefabric.ocs_manners import RestconfManners, Tl1Manners
from moefabric.ocs_profile import Profile, Settle
from tests.ocs_lab import Bench, Client
from tests.ocs_wrong_words import TL1_LOG_IN, request

SECOND_NS = 1_000_000_000
PUT = request(b"PUT", b"/api/data/cross-connects/pair=1", b"", b'{"pair":[{"ingress":1,"egress":13}]}')
GET = request(b"GET", b"/api/data/cross-connects")


def bench(profile: Profile | None = None) -> Bench:
    return Bench(12, Build(profile or Profile()), {"tl1": Tl1, "restconf": Restconf})


def hung_up_on(client: Client) -> bool:
    return client.wire.closed


@pytest.mark.parametrize(
    ("language", "said"),
    [
        pytest.param("tl1", TL1_LOG_IN + b"ENT-PATCH::1,13:2:;ENT-PA", id="tl1"),
        pytest.param("restconf", GET + PUT + b"GET /", id="restconf"),
    ],
)
def test_who_has_gone_leaves_nothing_behind(language: str, said: bytes) -> None:
    switch = bench()
    client = switch.client(language)
    client.told(said)
    assert len(switch.store.users.log_ins) == 1
    client.session.gone()
    switch.timers.pass_ns(1000 * SECOND_NS)
    assert not switch.store.users.log_ins
    assert client.wire.taken() == b""
    tl1 = switch.front_ends["tl1"]
    assert isinstance(tl1, Tl1)
    assert not tl1.sessions
    assert list(switch.store.connects) == [(1, 13)]


def test_who_says_nothing_by_http_is_hung_up_on_but_not_while_light_settles() -> None:
    switch = bench(Profile(settle=Settle(fixed_ns=100 * SECOND_NS), restconf=RestconfManners(idle_s=60)))
    silent, busy = switch.client("restconf"), switch.client("restconf")
    busy.told(PUT)
    switch.timers.pass_ns(59 * SECOND_NS)
    assert not hung_up_on(silent)
    switch.timers.pass_ns(SECOND_NS)
    assert hung_up_on(silent)
    switch.timers.pass_ns(41 * SECOND_NS)
    assert busy.wire.taken().startswith(b"HTTP/1.1 201 ")
    assert not hung_up_on(busy)
    switch.timers.pass_ns(60 * SECOND_NS)
    assert hung_up_on(busy)


def test_a_request_in_dribbles_is_not_waited_for_for_ever() -> None:
    switch = bench()
    client = switch.client("restconf")
    for byte in b"GET /api/data/cross-connects HTTP/1.1\r\nHost: a\r\n" * 2:
        client.told(bytes([byte]))
        switch.timers.pass_ns(SECOND_NS)
    assert hung_up_on(client)


def test_a_session_that_is_silent_too_long_is_hung_up_on_where_that_is_the_manner() -> None:
    switch = bench(Profile(tl1=Tl1Manners(timed_out="hang up")))
    client = switch.client("tl1")
    client.told(TL1_LOG_IN + b"ED-EQPT::TIMEOUT:2:::ADMIN=1;")
    switch.timers.pass_ns(59 * SECOND_NS)
    client.told(b"RTRV-HDR:::3:;")
    switch.timers.pass_ns(59 * SECOND_NS)
    assert not hung_up_on(client)
    switch.timers.pass_ns(SECOND_NS)
    assert hung_up_on(client)
    assert b"A  1 CANC" in client.wire.taken()


def test_a_shorter_time_out_counts_for_those_who_are_silent_already() -> None:
    switch = bench()
    old, other = switch.client("tl1"), switch.client("tl1")
    old.told(TL1_LOG_IN)
    switch.timers.pass_ns(3600 * SECOND_NS)
    other.told(TL1_LOG_IN + b"ED-EQPT::TIMEOUT:2:::ADMIN=1;")
    switch.timers.pass_ns(1)
    assert b"CANC" in old.wire.taken()
    assert b"PLNA" in old.told(b"RTRV-HDR:::3:;")
    assert b"COMPLD" in other.told(b"RTRV-HDR:::3:;")


def test_messages_are_numbered_anew_after_a_reboot() -> None:
    switch = bench()
    client = switch.client("tl1")
    client.told(TL1_LOG_IN)
    assert b"A  1 REPT EVT" in client.told(b"OPR-PORT-SHUTTER::1:2:;")
    assert b"A  2 REPT EVT" in client.told(b"RLS-PORT-SHUTTER::1:3:;")
    switch.front_ends["tl1"].restarted()
    assert b"A  1 REPT EVT" in client.told(b"OPR-PORT-SHUTTER::1:4:;")


def test_a_user_who_is_let_in_by_one_language_gets_in_by_the_other() -> None:
    switch = bench()
    client = switch.client("tl1")
    client.told(TL1_LOG_IN + b"ENT-USER-SECU::guest:2::guest,,view;")
    by_http = GET.replace(b"YWRtaW46cm9vdA==", b"Z3Vlc3Q6Z3Vlc3Q=")
    assert switch.client("restconf").told(by_http).startswith(b"HTTP/1.1 200 ")
    client.told(b"DLT-USER-SECU::guest:3:;")
    assert switch.client("restconf").told(by_http).startswith(b"HTTP/1.1 401 ")


def test_who_was_let_in_is_known_to_the_next_process() -> None:
    before = bench()
    before.client("tl1").told(TL1_LOG_IN + b"ENT-USER-SECU::guest:2::guest,,view;DLT-USER-SECU::admin:3:;")
    memory = json.loads(json.dumps(before.store.memory()))
    after = Bench(12, Build(memory=memory), {"tl1": Tl1})
    assert [account.name for account in after.store.users] == ["guest", "root"]
    assert b"COMPLD" in after.client("tl1").told(b"ACT-USER::guest:1::guest;")
