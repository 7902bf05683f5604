"""Server of a switch on the loopback interface, with a crossbar in memory."""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from moefabric.config import plugins
from moefabric.controller.southbound.ocs.connection import from_reserved_port
from moefabric.core.errors import FabricError
from moefabric.core.ocs import DeviceProfile, SettleTime
from moefabric.emulator.crossbar.crossbar import Lights, Ports
from moefabric.emulator.ocs import server as ocs_server
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.front_end import open_front_end
from moefabric.emulator.ocs.scpi.front_end import LINE_BYTES
from moefabric.emulator.ocs.server import MOST_OF_SOURCE, OcsServer
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.ocs_lab import BenchClient
from tests.support.ocs_serving import serve_until
from tests.support.virtual_timers import VirtualTimers

SETTLE_NS = 40_000_000
STATE = b":oxc:swit:conn:stat?\n"


@dataclass
class ServedSwitch:
    crossbar: MemoryCrossbar
    connect: Callable[[], socket.socket]


@contextlib.contextmanager
def serving(
    crossbar: MemoryCrossbar, as_listener: type[socket.socket] = socket.socket
) -> Iterator[ServedSwitch]:
    """Serve a crossbar by SCPI in a thread of its own."""
    listener = as_listener(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    at = listener.getsockname()
    server = OcsServer(crossbar, DeviceSpec(DeviceProfile(settle=SettleTime(fixed_ns=SETTLE_NS))))
    server.open(listener, "scpi")
    with contextlib.ExitStack() as resources:
        stop, stopped = socket.socketpair()
        resources.enter_context(stopped)
        thread = threading.Thread(target=serve_until, args=(server, stopped))
        thread.start()
        resources.callback(thread.join, 5)
        resources.callback(stop.close)

        def connect() -> socket.socket:
            return resources.enter_context(socket.create_connection(at, timeout=5))

        yield ServedSwitch(crossbar, connect)
    assert not thread.is_alive()


@pytest.fixture
def served() -> Iterator[ServedSwitch]:
    with serving(MemoryCrossbar(Ports(12))) as switch:
        yield switch


def read_line(sock: socket.socket) -> str:
    line = b""
    while not line.endswith(b"\n"):
        data = sock.recv(1)
        assert data, f"closed after {line!r}"
        line += data
    return line.decode().rstrip("\n")


def query(sock: socket.socket, line: bytes) -> str:
    sock.sendall(line)
    return read_line(sock)


def test_opc_query_is_answered_when_light_has_settled(served: ServedSwitch) -> None:
    client = served.connect()
    before = time.monotonic_ns()
    assert query(client, b":oxc:swit:conn:add (@1,4),(@16,13);*opc?\r\n") == "1"
    assert SETTLE_NS <= time.monotonic_ns() - before < SETTLE_NS + 500_000_000
    lights = served.crossbar.cross_connects()
    assert lights.keys() == {(1, 16), (4, 13)}
    assert all(before + SETTLE_NS <= at_ns <= time.monotonic_ns() for at_ns in lights.values())


def test_waiting_client_delays_no_other(served: ServedSwitch) -> None:
    waiting, other = served.connect(), served.connect()
    waiting.sendall(b":oxc:swit:conn:add (@1),(@16);*opc?\n")
    while query(other, STATE) == "(@),(@)":  # until the first client's line has come
        pass
    before = time.monotonic_ns()
    assert query(other, b":oxc:swit:size?\n") == "12,12"
    assert before < max(served.crossbar.cross_connects().values())
    assert read_line(waiting) == "1"


def test_replies_keep_order_of_lines(served: ServedSwitch) -> None:
    client = served.connect()
    client.sendall(b":oxc:swit:conn:add (@1),(@16);*opc?\n:oxc:swit:size?\n")
    assert [read_line(client), read_line(client)] == ["1", "12,12"]


def test_incomplete_line_is_not_executed(served: ServedSwitch) -> None:
    client, other = served.connect(), served.connect()
    client.sendall(b":oxc:swit:conn:add (@1,2),(@13,1")
    assert query(other, STATE) == "(@),(@)"
    client.sendall(b"4)\n")
    assert query(client, STATE) == "(@1,2),(@13,14)"


def test_incomplete_line_of_closed_client_is_not_executed(served: ServedSwitch) -> None:
    client = served.connect()
    client.sendall(b":oxc:swit:conn:add (@1),(@13)")
    client.close()
    assert query(served.connect(), STATE) == "(@),(@)"


@pytest.mark.parametrize(
    ("queries", "replies"), [("*opc?", "1"), ("stat?;*wai;stat?", "(@1),(@16);(@1),(@16)")]
)
def test_half_closed_client_gets_pending_replies(
    served: ServedSwitch, queries: str, replies: str
) -> None:
    client = served.connect()
    client.sendall(f":oxc:swit:conn:add (@1),(@16);{queries}\n".encode())
    client.shutdown(socket.SHUT_WR)
    assert read_line(client) == replies
    assert client.recv(1) == b""


def try_send_all(sock: socket.socket, data: bytes) -> bool:
    try:
        sock.sendall(data)
    except TimeoutError:
        return False
    return True


def test_client_that_never_reads_is_not_read_and_delays_no_other(served: ServedSwitch) -> None:
    deaf, other = served.connect(), served.connect()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.settimeout(0.5)
    questions = b"*idn?\n" * 4096
    deadline = time.monotonic() + 20
    while try_send_all(deaf, questions):
        assert query(other, b"*opc?\n") == "1"
        assert time.monotonic() < deadline
    assert query(other, b":oxc:swit:size?\n") == "12,12"


def test_overlong_line_is_refused(served: ServedSwitch) -> None:
    client = served.connect()
    client.sendall(b":oxc:swit:disc:all;" * (3 * LINE_BYTES // 19))
    client.sendall(b"\n")
    assert (
        query(client, b":syst:err:all?\n")
        == '-363,"Input buffer overrun; a line has at most 65536 bytes"'
    )
    assert query(client, b"*idn?\n").startswith("Polatis,")


def test_non_ascii_bytes_are_a_command_error(served: ServedSwitch) -> None:
    client = served.connect()
    client.sendall(b"\xff\x00\xfe\n")
    assert query(client, b":syst:err?\n").startswith('-113,"Undefined header')


def is_disconnected(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_clients_beyond_the_limit_are_refused_and_others_stay(served: ServedSwitch) -> None:
    first = served.connect()
    assert query(first, b"*stb?\n") == "0"
    others = [served.connect() for _ in range(2 * MOST_OF_SOURCE)]
    kept, refused = others[: MOST_OF_SOURCE - 1], others[MOST_OF_SOURCE - 1 :]
    assert all(map(is_disconnected, refused))
    assert {query(client, b"*stb?\n") for client in (first, *kept)} == {"0"}


@pytest.mark.skipif(os.geteuid() != 0, reason="reserved ports need root")
def test_clients_at_reserved_ports_have_places_of_their_own(served: ServedSwitch) -> None:
    flood = [served.connect() for _ in range(MOST_OF_SOURCE + 1)]
    assert is_disconnected(flood[-1])
    dial = from_reserved_port(socket.create_connection)
    with dial(flood[0].getpeername(), 10) as controller:
        assert query(controller, b"*stb?\n") == "0"


def test_client_without_a_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocs_server, "FIRST_REQUEST_S", 0.2)
    with serving(MemoryCrossbar(Ports(12))) as served:
        silent, busy = served.connect(), served.connect()
        assert query(busy, b"*stb?\n") == "0"
        assert is_disconnected(silent)
        assert query(busy, b"*stb?\n") == "0"


class ShortOfDescriptors(socket.socket):
    """A listener whose process has no descriptor left at first."""

    shortages = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.shortages:
            self.shortages -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_shortage_of_descriptors_is_no_fault_of_a_server_without_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(MemoryCrossbar(Ports(12)), ShortOfDescriptors) as served:
        assert query(served.connect(), STATE) == "(@),(@)"
    assert caplog.messages == []


def test_client_that_waits_for_light_stays_among_busy_ones(served: ServedSwitch) -> None:
    waiting = served.connect()
    waiting.sendall(b":oxc:swit:conn:add (@1),(@16);*opc?\n")
    others = [served.connect() for _ in range(2 * MOST_OF_SOURCE)]
    for other in others:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # some are refused
            other.sendall(b"*stb?\n")
    assert read_line(waiting) == "1"
    assert query(others[0], b"*stb?\n") == "0"


def test_switch_takes_over_lit_crossbar() -> None:
    crossbar = MemoryCrossbar(Ports(12))
    lit = {(1, 16): 7, (4, 13): 7}
    crossbar.load(lit)
    with serving(crossbar) as served:
        client = served.connect()
        assert query(client, STATE) == "(@1,4),(@16,13)"
        assert query(client, b":oxc:swit:conn:add (@2),(@17);*opc?\n") == "1"
        assert crossbar.cross_connects().items() >= lit.items()


@pytest.mark.parametrize("name", ["scpi", "tl1", "restconf"])
def test_front_end_of_a_known_reference_needs_no_registry(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    reference = plugins.plugin_reference(plugins.OCS_DIALECTS, name)

    def registered(group: str) -> None:
        raise AssertionError(f"{group} has been looked up")

    monkeypatch.setattr(plugins, "_registered", registered)
    device = OcsDevice(MemoryCrossbar(Ports(2)), VirtualTimers())
    open_front_end(name, device, reference)
    with pytest.raises(AssertionError, match="has been looked up"):
        plugins.ocs_dialect(f"another-{name}")


class StuckCrossbar(MemoryCrossbar):
    """Crossbar whose mirrors do not move."""

    def load(self, lights: Lights) -> None:
        raise FabricError("stuck")


def test_crossbar_failure_is_hardware_error_and_changes_nothing() -> None:
    client = BenchClient(
        open_front_end("scpi", OcsDevice(StuckCrossbar(Ports(2)), VirtualTimers()))
    )
    assert client.send(b":oxc:swit:conn:add (@1),(@3)\n") == b""
    assert (
        client.send(b":oxc:swit:conn:stat?;:syst:err?\n")
        == b'(@),(@);-240,"Hardware error; stuck"\n'
    )
