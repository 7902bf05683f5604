"""OpenFlow and requests over TLS: both ends need a certificate of the fabric's CA."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from moefabric.controller.client import ControllerClient, tls_dial
from moefabric.controller.http_client import Dial
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.rules import direct_rules, eps_rules, server_rules
from moefabric.runtime.control_tls import ControlTls
from tests.support.certificates import make_certificates
from tests.support.controller_bench import FABRIC, REGION, Bench, controllers_with_switches
from tests.support.controller_lab import entry_set
from tests.support.openflow_frames import HELLO, frame

CIRCUITS = ["s0/o0~s3/o2", "s1/o0~s2/o1"]
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> ControlTls:
    return make_certificates(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def bench(certificates: ControlTls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("run")
    with controllers_with_switches(folder, tls=certificates) as started:
        yield started


def client(bench: Bench, dial: Dial) -> ControllerClient:
    return ControllerClient(bench.client.address, bench.run.read_token(), TIMEOUT_S, dial)


def hello(bench: Bench, context: ssl.SSLContext | None) -> bytes:
    """Return what the controller answers to a hello."""
    with (
        socket.create_connection(bench.openflow, TIMEOUT_S) as plain,
        context.wrap_socket(plain) if context else plain as sock,
    ):
        sock.sendall(frame(HELLO))
        return sock.recv(1 << 16)


def test_switches_follow_their_controller(bench: Bench) -> None:
    for wanted in (CIRCUITS, [], CIRCUITS, []):
        bench.client.light(wanted)
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC)
        rules |= direct_rules(CircuitSet.of(wanted))
        for switch in FABRIC.switches:
            assert bench.entries(switch) == entry_set(FABRIC, switch, rules)


def test_peer_with_a_certificate_gets_an_answer(bench: Bench, certificates: ControlTls) -> None:
    assert hello(bench, certificates.context(server_side=False))[:2] == b"\4\0"


def test_peer_without_tls_gets_none(bench: Bench) -> None:
    with suppress(ConnectionError):  # closed, with bytes unread
        assert hello(bench, None)[:2] != b"\4\0"
    assert bench.client.health()["ready"]


def test_peer_without_a_certificate_of_the_ca_gets_none(
    bench: Bench, certificates: ControlTls, tmp_path: Path
) -> None:
    stranger = make_certificates(tmp_path / "other")
    signed = ControlTls(stranger.certificate, stranger.key, certificates.ca)
    anonymous = ssl.create_default_context(cafile=certificates.ca)
    anonymous.check_hostname = False
    for context in (signed.context(server_side=False), anonymous):
        with suppress(OSError):  # the alert arrives before or after the controller hangs up
            assert hello(bench, context) == b""
    assert bench.client.health()["ready"]


def test_client_of_requests_needs_tls_and_a_certificate(
    bench: Bench, certificates: ControlTls, tmp_path: Path
) -> None:
    stranger = make_certificates(tmp_path / "other")
    signed = ControlTls(stranger.certificate, stranger.key, certificates.ca)
    for dial in (socket.create_connection, tls_dial(signed)):
        with client(bench, dial) as other, pytest.raises(ControlError):
            other.health()
    assert bench.client.health()["ready"]


def test_client_of_requests_checks_the_certificate_of_the_controller(
    bench: Bench, certificates: ControlTls, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path / "other")
    dial = tls_dial(ControlTls(certificates.certificate, certificates.key, other.ca))
    with (
        client(bench, dial) as doubtful,
        pytest.raises(ControlError, match="certificate verify failed"),
    ):
        doubtful.health()
