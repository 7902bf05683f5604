"""Whatever comes in by RESTCONF: the switch goes on, and its cross-connects are as they were."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.ocs.restconf.front_end import BODY_BYTES, HEAD_BYTES, Restconf
from tests.ocs_lab import Bench
from tests.ocs_unharmed import joined, unharmed
from tests.ocs_wrong_words import AUTHORIZATION, REQUESTS, mangled, request, restconf_inputs

whole = st.sampled_from(REQUESTS).map(lambda parts: request(*parts))
wrong = st.one_of(
    st.binary(max_size=100),
    whole,
    st.builds(mangled, st.randoms(use_true_random=False), whole),
    st.builds(lambda byte, length: byte * length, st.binary(min_size=1, max_size=1), st.integers(0, 40_000)),
)
bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["pair", "port", "ingress", "egress", "x"]), inner)
    ),
    max_leaves=10,
)


def goes_on(bench: Bench) -> None:
    unharmed(bench)
    said = bench.client("restconf").told(request(b"GET", b"/api/data/cross-connects"))
    assert b'{"pair":[{"ingress":1,"egress":13},{"ingress":2,"egress":14}]}' in said


@settings(max_examples=200)
@given(st.lists(wrong, max_size=6))
def test_what_is_no_request_changes_nothing_and_breaks_nothing(said: list[bytes]) -> None:
    bench = joined("restconf", Restconf)
    client = bench.client("restconf")
    for data in said:
        if client.wire.closed:
            client = bench.client("restconf")
        client.told(data)
        bench.timers.pass_ns(30_000_000)
    client.session.gone()
    goes_on(bench)


@settings(max_examples=200)
@given(
    bodies,
    st.sampled_from(["PUT", "PATCH", "POST"]),
    st.sampled_from(["port-config/port=5", "voa/port=15", "groups", "opm-config"]),
)
def test_no_body_breaks_it(body: object, method: str, path: str) -> None:
    bench = joined("restconf", Restconf)
    sent = request(method.encode(), b"/api/data/" + path.encode(), b"", json.dumps(body).encode())
    said = bench.client("restconf").told(sent)
    assert said.startswith(b"HTTP/1.1 ")
    assert b" 500 " not in said.partition(b"\r\n")[0]
    goes_on(bench)


def test_neither_do_thousands_of_them_from_one_client_after_the_other() -> None:
    bench = joined("restconf", Restconf)
    client = bench.client("restconf")
    for data in restconf_inputs(seed=1, number=3000):
        if client.wire.closed:
            client.session.gone()
            client = bench.client("restconf")
        assert b"HTTP/1.1 500" not in client.told(data)
        bench.timers.pass_ns(30_000_000)
    goes_on(bench)


def test_who_says_too_much_is_hung_up_on() -> None:
    bench = joined("restconf", Restconf)
    head = bench.client("restconf")
    said = head.told(b"GET /api HTTP/1.1\r\nX: " + b"y" * (HEAD_BYTES + 1))
    assert said.startswith(b"HTTP/1.1 431 ")
    body = bench.client("restconf")
    said = body.told(
        b"PUT /api/data HTTP/1.1\r\nHost: a\r\n"
        + AUTHORIZATION
        + b"\r\nContent-Length: 99999999\r\n\r\n"
        + b"z" * (BODY_BYTES + 1)
    )
    assert said.startswith(b"HTTP/1.1 413 ")
    assert head.wire.closed
    assert body.wire.closed
    goes_on(bench)


def test_who_asks_on_without_waiting_for_answers_is_hung_up_on() -> None:
    bench = joined("restconf", Restconf)
    client = bench.client("restconf")
    put = request(b"PUT", b"/api/data/cross-connects/pair=3", b"", b'{"pair":[{"ingress":3,"egress":15}]}')
    client.told(put)
    for _ in range(300):
        client.told(b"GET /api HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 1000 + b"\r\n\r\n")
    assert client.wire.closed
