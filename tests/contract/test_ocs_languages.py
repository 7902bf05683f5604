"""One switch, three protocols: all show what one changes, and no client delays another."""

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

from moefabric.config.plugins import ocs_dialects
from moefabric.core.ocs import DeviceProfile, SettleTime
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.server import OcsServer
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.ocs_serving import serve_until

Pairs = list[tuple[int, int]]
SETTLE_NS = 5_000_000
ADMIN = {"Authorization": "Basic " + base64.b64encode(b"admin:root").decode()}


class SwitchClient(Protocol):
    """Client of one protocol."""

    def add(self, pairs: Pairs) -> None: ...
    def remove(self, pairs: Pairs) -> None: ...
    def clear(self) -> None: ...
    def disable(self, port: int) -> None: ...
    def enable(self, port: int) -> None: ...
    def pairs(self) -> Pairs: ...
    def disabled(self) -> list[int]: ...
    def size(self) -> int: ...


class Connection:
    """Connection that is read until a pattern matches."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._received = b""

    def until(self, pattern: bytes) -> bytes:
        while (match := re.search(pattern, self._received, re.DOTALL)) is None:
            data = self.sock.recv(1 << 16)
            assert data, f"closed after {self._received!r}"
            self._received += data
        reply, self._received = self._received[: match.end()], self._received[match.end() :]
        return reply


def _list(numbers: Iterable[int]) -> str:
    return f"(@{','.join(map(str, numbers))})"


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


class ScpiClient:
    def __init__(self, connect: Callable[[str], socket.socket]) -> None:
        self._connection = Connection(connect("scpi"))

    def _query(self, query: str) -> str:
        self._connection.sock.sendall(query.encode() + b"\n")
        return self._connection.until(b"\n").decode().strip()

    def _command(self, command: str) -> None:
        assert self._query(f"{command};*opc?") == "1"
        assert self._query(":syst:err?") == '0,"No error"'

    def add(self, pairs: Pairs) -> None:
        self._command(
            f":oxc:swit:conn:add {_list(p for p, _ in pairs)},{_list(q for _, q in pairs)}"
        )

    def remove(self, pairs: Pairs) -> None:
        self._command(
            f":oxc:swit:conn:sub {_list(p for p, _ in pairs)},{_list(q for _, q in pairs)}"
        )

    def clear(self) -> None:
        self._command(":oxc:swit:disc:all")

    def disable(self, port: int) -> None:
        self._command(f":oxc:swit:port:dis (@{port})")

    def enable(self, port: int) -> None:
        self._command(f":oxc:swit:port:enab (@{port})")

    def pairs(self) -> Pairs:
        ins, outs = re.findall(r"\(@([0-9,]*)\)", self._query(":oxc:swit:conn:stat?"))
        return list(zip(_numbers(ins), _numbers(outs), strict=True))

    def disabled(self) -> list[int]:
        states = self._query(f":oxc:swit:port:stat? {_list(range(1, 2 * self.size() + 1))}")
        return [port for port, state in enumerate(states.strip("()").split(","), 1) if state == "D"]

    def size(self) -> int:
        return int(self._query(":oxc:swit:size?").split(",")[0])


class Tl1Client:
    def __init__(self, connect: Callable[[str], socket.socket]) -> None:
        self._connection = Connection(connect("tl1"))
        self._tags = itertools.count(1)
        self._query("ACT-USER::root:{}::root;")

    def _query(self, command: str) -> list[str]:
        tag = next(self._tags)
        self._connection.sock.sendall(command.format(tag).encode())
        reply = self._connection.until(
            rb"\r\nM  %d ([A-Z]+)\r\n[^;]*\r\n;|\r\nM  %d COMPLD\r\n;" % (tag, tag)
        ).decode()
        assert f"M  {tag} COMPLD" in reply, reply
        return re.findall(r'"(.*)"', reply.partition(f"M  {tag} ")[2])

    def add(self, pairs: Pairs) -> None:
        ins, outs = ("&".join(map(str, side)) for side in zip(*pairs, strict=True))
        self._query(f"ENT-PATCH::{ins},{outs}:{{}}:;")

    def remove(self, pairs: Pairs) -> None:
        self._query(f"DLT-PATCH::{'&'.join(str(p) for p, _ in pairs)}:{{}}:;")

    def clear(self) -> None:
        self._query("DLT-PATCH::ALL:{}:;")

    def disable(self, port: int) -> None:
        self._query(f"OPR-PORT-SHUTTER::{port}:{{}}:;")

    def enable(self, port: int) -> None:
        self._query(f"RLS-PORT-SHUTTER::{port}:{{}}:;")

    def pairs(self) -> Pairs:
        fields = [line.split(",") for line in self._query("RTRV-PATCH:::{}:;")]
        return [(int(p), int(q)) for p, q in fields]

    def disabled(self) -> list[int]:
        fields = [line.split(":") for line in self._query("RTRV-PORT-SHUTTER:::{}:;")]
        return [int(port) for port, state in fields if state == "CLOSED"]

    def size(self) -> int:
        (line,) = self._query("RTRV-EQPT::SYSTEM:{}:::PARAMETER=SIZE;")
        return int(line.partition("=")[2].partition("x")[0])


class RestconfClient:
    def __init__(self, connect: Callable[[str], socket.socket]) -> None:
        self._http = http.client.HTTPConnection("ocs0")
        self._http.sock = connect("restconf")

    def _query(self, method: str, path: str, body: object = None) -> dict[str, object]:
        data = None if body is None else json.dumps(body).encode()
        headers = ADMIN | ({"Content-Type": "application/yang-data+json"} if data else {})
        self._http.request(method, f"/api/{path}", data, headers)
        response = self._http.getresponse()
        content = response.read()
        assert response.status in (200, 201, 204), content
        document: dict[str, object] = json.loads(content) if content else {}
        return document

    def add(self, pairs: Pairs) -> None:
        self._query(
            "PATCH",
            "data/cross-connects/pair",
            {"pair": [{"ingress": p, "egress": q} for p, q in pairs]},
        )

    def remove(self, pairs: Pairs) -> None:
        for p, _ in pairs:
            self._query("DELETE", f"data/cross-connects/pair={p}")

    def clear(self) -> None:
        self._query("DELETE", "data/optical-switch:cross-connects")

    def disable(self, port: int) -> None:
        self._query("POST", "operations/port-set-state", {"input": {"port-disab": [port]}})

    def enable(self, port: int) -> None:
        self._query("POST", "operations/port-set-state", {"input": {"port-enab": [port]}})

    def pairs(self) -> Pairs:
        entries = self._query("GET", "data/cross-connects/pair")["optical-switch:pair"]
        assert isinstance(entries, list)
        return [(pair["ingress"], pair["egress"]) for pair in entries]

    def disabled(self) -> list[int]:
        entries = self._query("GET", "data/port-config/port")["optical-switch:port"]
        assert isinstance(entries, list)
        return [port["port-id"] for port in entries if port["status"] == "DISABLED"]

    def size(self) -> int:
        entries = self._query("GET", "data/port-config/port")["optical-switch:port"]
        assert isinstance(entries, list)
        return len(entries) // 2


CLIENTS: dict[str, Callable[[Callable[[str], socket.socket]], SwitchClient]] = {
    "scpi": ScpiClient,
    "tl1": Tl1Client,
    "restconf": RestconfClient,
}


class ServedSwitch:
    """A switch that a thread serves on the loopback interface by all protocols."""

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self.crossbar = MemoryCrossbar(Ports(12))
        server = OcsServer(
            self.crossbar, DeviceSpec(DeviceProfile(settle=SettleTime(fixed_ns=SETTLE_NS)))
        )
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in ocs_dialects()}
        for listener in listeners.values():  # so that replies to the deaf soon have no room
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        self._addresses = {name: listener.getsockname() for name, listener in listeners.items()}
        for name, listener in listeners.items():
            server.open(listener, name)
        stop, stopped = socket.socketpair()
        resources.enter_context(stopped)
        thread = threading.Thread(target=serve_until, args=(server, stopped))
        thread.start()
        resources.callback(thread.join, 10)
        resources.callback(stop.close)
        self._resources = resources
        self.clients = {name: client(self.connect) for name, client in CLIENTS.items()}

    def connect(self, protocol: str) -> socket.socket:
        sock = socket.create_connection(self._addresses[protocol], timeout=10)
        return self._resources.enter_context(contextlib.closing(sock))

    def cross_connects(self) -> dict[str, Pairs]:
        """Return the cross-connects by protocol, and those of the crossbar."""
        pairs = {name: client.pairs() for name, client in self.clients.items()}
        return pairs | {"crossbar": sorted(self.crossbar.cross_connects())}


@pytest.fixture
def served() -> Iterator[ServedSwitch]:
    with contextlib.ExitStack() as resources:
        yield ServedSwitch(resources)


def check_alike(served: ServedSwitch, expected: Pairs) -> None:
    """Assert that all protocols and the crossbar have these cross-connects."""
    assert served.cross_connects() == dict.fromkeys((*CLIENTS, "crossbar"), expected)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_cross_connects_of_one_protocol_show_in_all(served: ServedSwitch, protocol: str) -> None:
    client = served.clients[protocol]
    client.add([(1, 13), (5, 20), (3, 14)])
    check_alike(served, [(1, 13), (3, 14), (5, 20)])
    client.remove([(3, 14)])
    check_alike(served, [(1, 13), (5, 20)])
    client.add([(2, 13)])
    check_alike(served, [(2, 13), (5, 20)])
    client.clear()
    check_alike(served, [])


@pytest.mark.parametrize("protocol", CLIENTS)
def test_shutters_of_one_protocol_show_in_all(served: ServedSwitch, protocol: str) -> None:
    client = served.clients[protocol]
    client.add([(1, 13)])
    client.disable(1)
    assert {name: client.disabled() for name, client in served.clients.items()} == {
        name: [1] for name in CLIENTS
    }
    assert served.crossbar.cross_connects() == {}
    client.enable(1)
    assert {name: client.disabled() for name, client in served.clients.items()} == {
        name: [] for name in CLIENTS
    }
    check_alike(served, [(1, 13)])


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(CLIENTS)),
            st.dictionaries(st.integers(1, 12), st.integers(13, 24), min_size=1),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_protocols_agree_after_any_commands(
    served: ServedSwitch, commands: list[tuple[str, dict[int, int]]]
) -> None:
    served.clients["scpi"].clear()
    expected: dict[int, int] = {}
    for protocol, command in commands:
        pairs = {q: p for p, q in command.items()}
        added = [(p, q) for q, p in pairs.items()]
        served.clients[protocol].add(added)
        others = {p: q for p, q in expected.items() if q not in pairs and p not in pairs.values()}
        expected = others | dict(added)
        check_alike(served, sorted(expected.items()))


INCOMPLETE = {
    "scpi": b":oxc:swit:disc:all",
    "tl1": b"ACT-USER::root:1::root;DLT-PATCH::ALL:2:",
    "restconf": b"DELETE /api/data/cross-connects HTTP/1.1\r\nHost: a\r\n"
    + f"Authorization: {ADMIN['Authorization']}\r\n".encode(),
}


@pytest.mark.parametrize("protocol", CLIENTS)
def test_incomplete_command_is_not_executed(served: ServedSwitch, protocol: str) -> None:
    served.clients["scpi"].add([(1, 13)])
    other = served.connect(protocol)
    other.sendall(INCOMPLETE[protocol])
    check_alike(served, [(1, 13)])
    other.close()
    check_alike(served, [(1, 13)])


def filled(sock: socket.socket, requests: bytes) -> Iterator[None]:
    """Send requests until the switch reads no more; yield whenever it has to read first."""
    sock.setblocking(False)
    rest, refusals = requests, 0
    while refusals < 5:
        try:
            rest = rest[sock.send(rest) :] or requests
            refusals = 0
        except BlockingIOError:
            refusals += 1
            yield


@pytest.mark.parametrize("protocol", CLIENTS)
def test_silent_or_deaf_client_delays_no_other(served: ServedSwitch, protocol: str) -> None:
    served.clients["scpi"].add([(1, 13)])
    silent, slow = served.connect(protocol), served.connect(protocol)
    flood = {
        "scpi": b":oxc:swit:conn:stat?\n",
        "tl1": b"RTRV-HDR:::1:;",
        "restconf": b"GET /api/data/port-config HTTP/1.1\r\nHost: a\r\n\r\n",
    }[protocol]
    before = time.monotonic()
    for _ in filled(slow, 100 * flood):
        check_alike(served, [(1, 13)])
    for _ in range(5):
        check_alike(served, [(1, 13)])
    assert time.monotonic() - before < 5
    silent.close()


def test_client_waiting_for_light_delays_no_other(served: ServedSwitch) -> None:
    tl1 = served.connect("tl1")
    tl1.sendall(b"ACT-USER::root:1::root;")
    Connection(tl1).until(b";")
    tl1.sendall(b"ENT-PATCH::1&2&3,13&14&15:2:;")
    # All clients see the change at once; the command completes when the light has settled.
    deadline = time.monotonic() + 30
    while served.clients["restconf"].pairs() != [(1, 13), (2, 14), (3, 15)]:
        assert time.monotonic() < deadline
    Connection(tl1).until(rb"M  2 COMPLD\r\n;")


def test_alarm_reaches_tl1_sessions_whichever_protocol_caused_it(served: ServedSwitch) -> None:
    tl1 = Connection(served.connect("tl1"))
    tl1.sock.sendall(b"ACT-USER::root:1::root;")
    tl1.until(rb"COMPLD\r\n;")
    served.clients["restconf"].disable(4)
    served.clients["scpi"].enable(4)
    assert b"Port 4 disabled" in tl1.until(b"Port 4 [^;]*;")
    assert b"Port 4 enabled" in tl1.until(b"Port 4 [^;]*;")
