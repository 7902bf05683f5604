"""One switch in three languages: whatever one of them changes, all show, at once; and no client of any holds up another."""

import base64
import contextlib
import http.client
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.light import MemoryCrossbar, Ports
from emulator.ocs.build import Build
from emulator.ocs.languages import LANGUAGES
from emulator.ocs.server import Server
from moefabric.ocs_profile import Profile, Settle

Pairs = list[tuple[int, int]]
SETTLE_NS = 5_000_000
ADMIN = {"Authorization": "Basic " + base64.b64encode(b"admin:root").decode()}


class Speaker(Protocol):
    """A controller, as far as these tests go."""

    def add(self, pairs: Pairs) -> None: ...
    def remove(self, pairs: Pairs) -> None: ...
    def clear(self) -> None: ...
    def shut(self, port: int) -> None: ...
    def open(self, port: int) -> None: ...
    def joined(self) -> Pairs: ...
    def closed(self) -> list[int]: ...
    def size(self) -> int: ...


class Line:
    """A connection, read until something has come."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._heard = b""

    def until(self, pattern: bytes) -> bytes:
        while (found := re.search(pattern, self._heard, re.DOTALL)) is None:
            part = self.sock.recv(1 << 16)
            assert part, f"hung up after {self._heard!r}"
            self._heard += part
        said, self._heard = self._heard[: found.end()], self._heard[found.end() :]
        return said


def _list(numbers: Iterable[int]) -> str:
    return f"(@{','.join(map(str, numbers))})"


def _numbers(said: str) -> list[int]:
    return [int(number) for number in said.split(",") if number]


class ScpiSpeaker:
    def __init__(self, connect: Callable[[str], socket.socket]) -> None:
        self._line = Line(connect("scpi"))

    def _ask(self, query: str) -> str:
        self._line.sock.sendall(query.encode() + b"\n")
        return self._line.until(b"\n").decode().strip()

    def _do(self, command: str) -> None:
        assert self._ask(f"{command};*opc?") == "1"
        assert self._ask(":syst:err?") == '0,"No error"'

    def add(self, pairs: Pairs) -> None:
        self._do(f":oxc:swit:conn:add {_list(p for p, _ in pairs)},{_list(q for _, q in pairs)}")

    def remove(self, pairs: Pairs) -> None:
        self._do(f":oxc:swit:conn:sub {_list(p for p, _ in pairs)},{_list(q for _, q in pairs)}")

    def clear(self) -> None:
        self._do(":oxc:swit:disc:all")

    def shut(self, port: int) -> None:
        self._do(f":oxc:swit:port:dis (@{port})")

    def open(self, port: int) -> None:
        self._do(f":oxc:swit:port:enab (@{port})")

    def joined(self) -> Pairs:
        ins, outs = re.findall(r"\(@([0-9,]*)\)", self._ask(":oxc:swit:conn:stat?"))
        return list(zip(_numbers(ins), _numbers(outs), strict=True))

    def closed(self) -> list[int]:
        states = self._ask(f":oxc:swit:port:stat? {_list(range(1, 2 * self.size() + 1))}")
        return [port for port, state in enumerate(states.strip("()").split(","), 1) if state == "D"]

    def size(self) -> int:
        return int(self._ask(":oxc:swit:size?").split(",")[0])


class Tl1Speaker:
    def __init__(self, connect: Callable[[str], socket.socket]) -> None:
        self._line = Line(connect("tl1"))
        self._tags = itertools.count(1)
        self._ask("ACT-USER::root:{}::root;")

    def _ask(self, command: str) -> list[str]:
        tag = next(self._tags)
        self._line.sock.sendall(command.format(tag).encode())
        said = self._line.until(
            rb"\r\nM  %d ([A-Z]+)\r\n[^;]*\r\n;|\r\nM  %d COMPLD\r\n;" % (tag, tag)
        ).decode()
        assert f"M  {tag} COMPLD" in said, said
        return re.findall(r'"(.*)"', said.partition(f"M  {tag} ")[2])

    def add(self, pairs: Pairs) -> None:
        ins, outs = ("&".join(map(str, side)) for side in zip(*pairs, strict=True))
        self._ask(f"ENT-PATCH::{ins},{outs}:{{}}:;")

    def remove(self, pairs: Pairs) -> None:
        self._ask(f"DLT-PATCH::{'&'.join(str(p) for p, _ in pairs)}:{{}}:;")

    def clear(self) -> None:
        self._ask("DLT-PATCH::ALL:{}:;")

    def shut(self, port: int) -> None:
        self._ask(f"OPR-PORT-SHUTTER::{port}:{{}}:;")

    def open(self, port: int) -> None:
        self._ask(f"RLS-PORT-SHUTTER::{port}:{{}}:;")

    def joined(self) -> Pairs:
        found = [line.split(",") for line in self._ask("RTRV-PATCH:::{}:;")]
        return [(int(p), int(q)) for p, q in found]

    def closed(self) -> list[int]:
        found = [line.split(":") for line in self._ask("RTRV-PORT-SHUTTER:::{}:;")]
        return [int(port) for port, state in found if state == "CLOSED"]

    def size(self) -> int:
        (line,) = self._ask("RTRV-EQPT::SYSTEM:{}:::PARAMETER=SIZE;")
        return int(line.partition("=")[2].partition("x")[0])


class RestconfSpeaker:
    def __init__(self, connect: Callable[[str], socket.socket]) -> None:
        self._http = http.client.HTTPConnection("ocs0")
        self._http.sock = connect("restconf")

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        sent = None if body is None else json.dumps(body).encode()
        headers = ADMIN | ({"Content-Type": "application/yang-data+json"} if sent else {})
        self._http.request(method, f"/api/{path}", sent, headers)
        answer = self._http.getresponse()
        said = answer.read()
        assert answer.status in (200, 201, 204), said
        told: dict[str, object] = json.loads(said) if said else {}
        return told

    def add(self, pairs: Pairs) -> None:
        self._ask(
            "PATCH", "data/cross-connects/pair", {"pair": [{"ingress": p, "egress": q} for p, q in pairs]}
        )

    def remove(self, pairs: Pairs) -> None:
        for p, _ in pairs:
            self._ask("DELETE", f"data/cross-connects/pair={p}")

    def clear(self) -> None:
        self._ask("DELETE", "data/optical-switch:cross-connects")

    def shut(self, port: int) -> None:
        self._ask("POST", "operations/port-set-state", {"input": {"port-disab": [port]}})

    def open(self, port: int) -> None:
        self._ask("POST", "operations/port-set-state", {"input": {"port-enab": [port]}})

    def joined(self) -> Pairs:
        told = self._ask("GET", "data/cross-connects/pair")["optical-switch:pair"]
        assert isinstance(told, list)
        return [(pair["ingress"], pair["egress"]) for pair in told]

    def closed(self) -> list[int]:
        told = self._ask("GET", "data/port-config/port")["optical-switch:port"]
        assert isinstance(told, list)
        return [port["port-id"] for port in told if port["status"] == "DISABLED"]

    def size(self) -> int:
        told = self._ask("GET", "data/port-config/port")["optical-switch:port"]
        assert isinstance(told, list)
        return len(told) // 2


SPEAKERS: dict[str, Callable[[Callable[[str], socket.socket]], Speaker]] = {
    "scpi": ScpiSpeaker,
    "tl1": Tl1Speaker,
    "restconf": RestconfSpeaker,
}


class Served:
    """A switch that is served on the loopback in all its languages, by a thread of its own."""

    def __init__(self, held: contextlib.ExitStack) -> None:
        self.crossbar = MemoryCrossbar(Ports(12, 12))
        server = Server(self.crossbar, Build(Profile(settle=Settle(fixed_ns=SETTLE_NS))))
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in LANGUAGES}
        self._where = {name: listener.getsockname() for name, listener in listeners.items()}
        server.open_all(listeners, LANGUAGES)
        stop, stopped = socket.socketpair()
        held.enter_context(stopped)
        thread = threading.Thread(target=server.serve, args=(stopped,))
        thread.start()
        held.callback(thread.join, 10)
        held.callback(stop.close)
        self._held = held
        self.speakers = {name: speaker(self.connect) for name, speaker in SPEAKERS.items()}

    def connect(self, language: str) -> socket.socket:
        sock = socket.create_connection(self._where[language], timeout=10)
        return self._held.enter_context(contextlib.closing(sock))

    def seen(self) -> dict[str, Pairs]:
        """What is joined, as each language has it, and the mirrors."""
        told = {name: speaker.joined() for name, speaker in self.speakers.items()}
        return told | {"mirrors": sorted((p, light.out_port) for p, light in self.crossbar.show().items())}


@pytest.fixture
def served() -> Iterator[Served]:
    with contextlib.ExitStack() as held:
        yield Served(held)


def alike(served: Served, wanted: Pairs) -> None:
    assert served.seen() == dict.fromkeys((*SPEAKERS, "mirrors"), wanted)


@pytest.mark.parametrize("language", SPEAKERS)
def test_what_one_language_joins_and_parts_all_show(served: Served, language: str) -> None:
    speaker = served.speakers[language]
    speaker.add([(1, 13), (5, 20), (3, 14)])
    alike(served, [(1, 13), (3, 14), (5, 20)])
    speaker.remove([(3, 14)])
    alike(served, [(1, 13), (5, 20)])
    speaker.add([(2, 13)])
    alike(served, [(2, 13), (5, 20)])
    speaker.clear()
    alike(served, [])


@pytest.mark.parametrize("language", SPEAKERS)
def test_what_one_language_shuts_and_opens_all_show(served: Served, language: str) -> None:
    speaker = served.speakers[language]
    speaker.add([(1, 13)])
    speaker.shut(1)
    assert {name: one.closed() for name, one in served.speakers.items()} == {name: [1] for name in SPEAKERS}
    assert served.crossbar.show() == {}
    speaker.open(1)
    assert {name: one.closed() for name, one in served.speakers.items()} == {name: [] for name in SPEAKERS}
    alike(served, [(1, 13)])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(SPEAKERS)),
            st.dictionaries(st.integers(1, 12), st.integers(13, 24), min_size=1),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_they_agree_after_any_commands_of_all_of_them(
    served: Served, said: list[tuple[str, dict[int, int]]]
) -> None:
    served.speakers["scpi"].clear()
    wanted: dict[int, int] = {}
    for language, told in said:
        pairs = {q: p for p, q in told.items()}
        added = [(p, q) for q, p in pairs.items()]
        served.speakers[language].add(added)
        kept = {p: q for p, q in wanted.items() if q not in pairs and p not in pairs.values()}
        wanted = kept | dict(added)
        alike(served, sorted(wanted.items()))


HALVES = {
    "scpi": b":oxc:swit:disc:all",
    "tl1": b"ACT-USER::root:1::root;DLT-PATCH::ALL:2:",
    "restconf": b"DELETE /api/data/cross-connects HTTP/1.1\r\nHost: a\r\n"
    + f"Authorization: {ADMIN['Authorization']}\r\n".encode(),
}


@pytest.mark.parametrize("language", SPEAKERS)
def test_a_command_half_sent_is_not_half_done(served: Served, language: str) -> None:
    served.speakers["scpi"].add([(1, 13)])
    other = served.connect(language)
    other.sendall(HALVES[language])
    alike(served, [(1, 13)])
    other.close()
    alike(served, [(1, 13)])


@pytest.mark.parametrize("language", SPEAKERS)
def test_a_client_that_reads_nothing_or_says_nothing_holds_up_nobody(served: Served, language: str) -> None:
    served.speakers["scpi"].add([(1, 13)])
    silent, slow = served.connect(language), served.connect(language)
    flood = {
        "scpi": b":oxc:swit:conn:stat?\n",
        "tl1": b"RTRV-HDR:::1:;",
        "restconf": b"GET /api/data/port-config HTTP/1.1\r\nHost: a\r\n\r\n",
    }[language]
    slow.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        for _ in range(20_000):
            slow.send(flood)
    before = time.monotonic()
    for _ in range(5):
        alike(served, [(1, 13)])
    assert time.monotonic() - before < 5
    silent.close()


def test_one_clients_wait_for_light_holds_up_no_other(served: Served) -> None:
    tl1 = served.connect("tl1")
    tl1.sendall(b"ACT-USER::root:1::root;")
    Line(tl1).until(b";")
    tl1.sendall(b"ENT-PATCH::1&2&3,13&14&15:2:;")
    # Joined at once, for everybody; complete when it has settled.
    deadline = time.monotonic() + 5
    while served.speakers["restconf"].joined() != [(1, 13), (2, 14), (3, 15)]:
        assert time.monotonic() < deadline
    Line(tl1).until(rb"M  2 COMPLD\r\n;")


def test_an_alarm_reaches_who_is_logged_in_by_tl1_whoever_caused_it(served: Served) -> None:
    tl1 = Line(served.connect("tl1"))
    tl1.sock.sendall(b"ACT-USER::root:1::root;")
    tl1.until(rb"COMPLD\r\n;")
    served.speakers["restconf"].shut(4)
    served.speakers["scpi"].open(4)
    assert b"Port 4 disabled" in tl1.until(b"Port 4 [^;]*;")
    assert b"Port 4 enabled" in tl1.until(b"Port 4 [^;]*;")
