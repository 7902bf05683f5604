"""Invalid input by RESTCONF: the switch goes on, and its cross-connects are as they were."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from moefabric.emulator.ocs.restconf.front_end import BODY_BYTES, HEAD_BYTES
from tests.support.ocs_fuzz import AUTHORIZATION, REQUESTS, mangle, request, restconf_inputs
from tests.support.ocs_lab import OcsBench, check_unharmed, connected_bench

VALID = st.sampled_from(REQUESTS).map(lambda parts: request(*parts))
INVALID = st.one_of(
    st.binary(max_size=100),
    VALID,
    st.builds(mangle, st.randoms(use_true_random=False), VALID),
    st.builds(
        lambda byte, length: byte * length,
        st.binary(min_size=1, max_size=1),
        st.integers(0, 40_000),
    ),
)
BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["pair", "port", "ingress", "egress", "x"]), inner)
    ),
    max_leaves=10,
)


def check_alive(bench: OcsBench) -> None:
    """Assert that the switch is unharmed and serves a new client."""
    check_unharmed(bench)
    reply = bench.client("restconf").send(request(b"GET", b"/api/data/cross-connects"))
    assert b'{"pair":[{"ingress":1,"egress":13},{"ingress":2,"egress":14}]}' in reply


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(INVALID, max_size=6))
def test_invalid_input_changes_nothing_and_breaks_nothing(inputs: list[bytes]) -> None:
    bench = connected_bench("restconf")
    client = bench.client("restconf")
    for data in inputs:
        if client.connection.closed:
            client = bench.client("restconf")
        client.send(data)
        bench.timers.advance_ns(30_000_000)
    client.session.end()
    check_alive(bench)


@settings(max_examples=2 * settings().max_examples)
@given(
    BODIES,
    st.sampled_from(["PUT", "PATCH", "POST"]),
    st.sampled_from(["port-config/port=5", "ports", "opm-config"]),
)
def test_any_body_is_answered(body: object, method: str, path: str) -> None:
    bench = connected_bench("restconf")
    sent = request(method.encode(), b"/api/data/" + path.encode(), b"", json.dumps(body).encode())
    reply = bench.client("restconf").send(sent)
    assert reply.startswith(b"HTTP/1.1 ")
    assert b" 500 " not in reply.partition(b"\r\n")[0]
    check_alive(bench)


def test_thousands_of_invalid_inputs_change_nothing() -> None:
    bench = connected_bench("restconf")
    client = bench.client("restconf")
    for data in restconf_inputs(seed=1, number=3000):
        if client.connection.closed:
            client.session.end()
            client = bench.client("restconf")
        assert b"HTTP/1.1 500" not in client.send(data)
        bench.timers.advance_ns(30_000_000)
    check_alive(bench)


def test_oversized_head_and_body_are_refused() -> None:
    bench = connected_bench("restconf")
    head = bench.client("restconf")
    reply = head.send(b"GET /api HTTP/1.1\r\nX: " + b"y" * (HEAD_BYTES + 1))
    assert reply.startswith(b"HTTP/1.1 431 ")
    body = bench.client("restconf")
    reply = body.send(
        b"PUT /api/data HTTP/1.1\r\nHost: a\r\n"
        + AUTHORIZATION
        + b"\r\nContent-Length: 99999999\r\n\r\n"
        + b"z" * (BODY_BYTES + 1)
    )
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert head.connection.closed
    assert body.connection.closed
    check_alive(bench)


def test_body_of_the_most_bytes_is_executed() -> None:
    bench = connected_bench("restconf")
    client = bench.client("restconf")
    body = b'{"pair":[{"ingress":3,"egress":15}]}'.ljust(BODY_BYTES)
    client.send(request(b"PUT", b"/api/data/cross-connects/pair=3", b"", body))
    bench.timers.advance_ns(30_000_000)
    assert client.connection.take().startswith(b"HTTP/1.1 201 ")


def test_excessive_pipelining_is_disconnected() -> None:
    bench = connected_bench("restconf")
    client = bench.client("restconf")
    put = request(
        b"PUT", b"/api/data/cross-connects/pair=3", b"", b'{"pair":[{"ingress":3,"egress":15}]}'
    )
    client.send(put)
    for _ in range(300):
        client.send(b"GET /api HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 1000 + b"\r\n\r\n")
    assert client.connection.closed
