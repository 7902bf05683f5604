"""SCPI over TCP on the loopback, with mirrors in memory."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from emulator.light import Light, MemoryCrossbar, Ports
from emulator.loop import VirtualTimers
from emulator.ocs.build import Build
from emulator.ocs.scpi import LINE_BYTES, Scpi
from emulator.ocs.server import CLIENTS, Server
from emulator.ocs.store import Store
from moefabric.errors import FabricError
from moefabric.ocs_profile import Profile, Settle
from tests.ocs_lab import Client

SETTLE_NS = 40_000_000
STATE = b":oxc:swit:conn:stat?\n"


@dataclass
class Served:
    crossbar: MemoryCrossbar
    connect: Callable[[], socket.socket]


@contextlib.contextmanager
def serving(crossbar: MemoryCrossbar) -> Iterator[Served]:
    """A server of these mirrors on the loopback, in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    at = listener.getsockname()
    server = Server(crossbar, Build(Profile(settle=Settle(fixed_ns=SETTLE_NS))))
    server.open(listener, Scpi)
    with contextlib.ExitStack() as held:
        stop, stopped = socket.socketpair()
        held.enter_context(stopped)
        thread = threading.Thread(target=server.serve, args=(stopped,))
        thread.start()
        held.callback(thread.join, 5)
        held.callback(stop.close)

        def connect() -> socket.socket:
            return held.enter_context(socket.create_connection(at, timeout=5))

        yield Served(crossbar, connect)
    assert not thread.is_alive()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(MemoryCrossbar(Ports(12, 12))) as made:
        yield made


def read_line(sock: socket.socket) -> str:
    said = b""
    while not said.endswith(b"\n"):
        part = sock.recv(1)
        assert part, f"closed after {said!r}"
        said += part
    return said.decode().rstrip("\n")


def asked(sock: socket.socket, line: bytes) -> str:
    sock.sendall(line)
    return read_line(sock)


def test_a_line_moves_the_mirrors_and_is_answered_when_they_have_light(served: Served) -> None:
    client = served.connect()
    before = time.monotonic_ns()
    assert asked(client, b":oxc:swit:conn:add (@1,4),(@16,13);*opc?\r\n") == "1"
    assert SETTLE_NS <= time.monotonic_ns() - before < SETTLE_NS + 500_000_000
    lights = served.crossbar.show()
    assert {p: light.out_port for p, light in lights.items()} == {1: 16, 4: 13}
    assert all(before + SETTLE_NS <= light.lit_at_ns <= time.monotonic_ns() for light in lights.values())


def test_one_who_waits_for_light_holds_up_nobody(served: Served) -> None:
    waiting, other = served.connect(), served.connect()
    waiting.sendall(b":oxc:swit:conn:add (@1),(@16);*opc?\n")
    while asked(other, STATE) == "(@),(@)":  # until the first client's line has come
        pass
    before = time.monotonic_ns()
    assert asked(other, b":oxc:swit:size?\n") == "12,12"
    assert before < max(light.lit_at_ns for light in served.crossbar.show().values())
    assert read_line(waiting) == "1"


def test_replies_keep_the_order_of_their_lines(served: Served) -> None:
    client = served.connect()
    client.sendall(b":oxc:swit:conn:add (@1),(@16);*opc?\n:oxc:swit:size?\n")
    assert [read_line(client), read_line(client)] == ["1", "12,12"]


def test_a_half_sent_command_is_not_half_done(served: Served) -> None:
    client, other = served.connect(), served.connect()
    client.sendall(b":oxc:swit:conn:add (@1,2),(@13,1")
    assert asked(other, STATE) == "(@),(@)"
    client.sendall(b"4)\n")
    assert asked(client, STATE) == "(@1,2),(@13,14)"


def test_a_command_whose_sender_goes_away_before_its_end_is_not_done(served: Served) -> None:
    client = served.connect()
    client.sendall(b":oxc:swit:conn:add (@1),(@13)")
    client.close()
    assert asked(served.connect(), STATE) == "(@),(@)"


def test_one_who_stops_sending_still_hears_what_is_due(served: Served) -> None:
    client = served.connect()
    client.sendall(b":oxc:swit:conn:add (@1),(@16);*opc?\n")
    client.shutdown(socket.SHUT_WR)
    assert read_line(client) == "1"
    assert client.recv(1) == b""


def sent_all(sock: socket.socket, what: bytes) -> bool:
    try:
        sock.sendall(what)
    except TimeoutError:
        return False
    return True


def test_a_client_that_never_reads_is_soon_not_read_and_holds_up_nobody(served: Served) -> None:
    deaf, other = served.connect(), served.connect()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.settimeout(0.5)
    questions = b"*idn?\n" * 4096
    deadline = time.monotonic() + 20
    while sent_all(deaf, questions):
        assert asked(other, b"*opc?\n") == "1"
        assert time.monotonic() < deadline
    assert asked(other, b":oxc:swit:size?\n") == "12,12"


def test_a_line_without_end_is_refused_and_not_kept(served: Served) -> None:
    client = served.connect()
    client.sendall(b":oxc:swit:disc:all;" * (3 * LINE_BYTES // 19))
    client.sendall(b"\n")
    assert asked(client, b":syst:err:all?\n") == '-363,"Input buffer overrun; a line has at most 65536 bytes"'
    assert asked(client, b"*idn?\n").startswith("Polatis,")


def test_bytes_that_are_no_text_are_a_command_error(served: Served) -> None:
    client = served.connect()
    client.sendall(b"\xff\x00\xfe\n")
    assert asked(client, b":syst:err?\n").startswith('-113,"Undefined header')


def test_one_client_more_than_there_is_room_for_is_turned_away(served: Served) -> None:
    clients = [served.connect() for _ in range(CLIENTS)]
    assert asked(clients[-1], b"*stb?\n") == "0"
    assert served.connect().recv(1) == b""
    clients[0].close()
    assert asked(clients[1], b"*stb?\n") == "0"


def test_a_switch_takes_over_mirrors_as_they_are_lit() -> None:
    crossbar = MemoryCrossbar(Ports(12, 12))
    lit = {1: Light(16, 7), 4: Light(13, 7)}
    crossbar.load(lit)
    with serving(crossbar) as served:
        client = served.connect()
        assert asked(client, STATE) == "(@1,4),(@16,13)"
        assert asked(client, b":oxc:swit:conn:add (@2),(@17);*opc?\n") == "1"
        assert {p: crossbar.show()[p] for p in lit} == lit


class StuckCrossbar(MemoryCrossbar):
    """Mirrors that don't move."""

    def load(self, lights: Mapping[int, Light]) -> None:
        raise FabricError("stuck")


def test_mirrors_that_do_not_move_are_an_error_and_not_shown_as_moved() -> None:
    client = Client(Scpi(Store(StuckCrossbar(Ports(2, 2)), VirtualTimers())))
    assert client.told(b":oxc:swit:conn:add (@1),(@3)\n") == b""
    assert client.told(b":oxc:swit:conn:stat?;:syst:err?\n") == b'(@),(@);-240,"Hardware error; stuck"\n'
