"""The data port of an agent on loopback: strangers are refused and counted, and cost nothing."""

import json
import resource
import select
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from moefabric.agents.engine import connections, relays, wire
from moefabric.agents.engine.connections import Connections
from moefabric.agents.engine.resources import MOST_UNNAMED, Resources
from moefabric.agents.engine.wire import Greeting
from moefabric.agents.fleet.channel import Channel, connect_local, request_all
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.remote.bundle import AGENT
from moefabric.runtime.event_loop import IN, MAX_LOGGED, NOW, CallbackOwner, EventLoop
from moefabric.runtime.listener import raise_descriptor_limit
from tests.support.agents_lab import agent, paced_flow
from tests.support.attempts import measurements

PATH = DataPath("s0", "s1", "o0", "127.0.0.1")
FLOOD = 4000
FEW = 64
BURST = 50
COLLECTIVES = 2000
MOST_GROWTH = 512 * 1024
SILENT = b""


class DataPort:
    """The data port of an agent in this process, whose loop the test turns."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.resources = Resources("s1", self.loop)
        self.connections = Connections(self.resources)
        self.port = self.connections.listen(["127.0.0.1"])["127.0.0.1"]

    def turns_until(self, holds: Callable[[], object]) -> bool:
        """Let the agent work until something holds; return False if it never does."""
        loop, ends_ns = self.loop, NOW() + 20_000_000_000
        while not holds() and ends_ns > NOW():
            loop.call_at(NOW() + 5_000_000, loop.stop)
            loop.running = True
            loop.run()
        return bool(holds())

    def dial(self, opening: bytes = SILENT) -> socket.socket:
        """Open a connection and send its first bytes."""
        stranger = socket.create_connection(("127.0.0.1", self.port), 5)
        stranger.sendall(opening)
        return stranger

    def greeting(self, **changes: Any) -> bytes:
        """Return a greeting that is accepted unless fields are changed."""
        names = Greeting("s0", "s1", "o0", secret=self.resources.secret)
        return sealed({**names._asdict(), "version": wire.VERSION, **changes})


def sealed(body: Any) -> bytes:
    """Return a greeting of an object or of bytes, with length and crc32."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return wire.GREETING.pack(b"mfGr", len(raw), zlib.crc32(raw)) + raw


@pytest.fixture
def port() -> Iterator[DataPort]:
    data_port = DataPort()
    yield data_port
    data_port.connections.close()


def closed(stranger: socket.socket) -> bool:
    """Return whether the agent has closed a connection, after an answer at most."""
    stranger.setblocking(False)
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def accepts(port: DataPort) -> bool:
    """Return whether the agent takes a connection of a peer that knows its secret."""
    with port.dial(port.greeting()) as peer:
        port.turns_until(lambda: select.select([peer], [], [], 0)[0])
        answer = wire.ACKNOWLEDGEMENT.unpack(peer.recv(wire.ACKNOWLEDGEMENT.size))
    return answer is not None and bool(answer[2])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"sender": ["x"]}, id="sender-is-a-list"),
        pytest.param({"path": {}}, id="path-is-an-object"),
        pytest.param({"receiver": None}, id="receiver-is-null"),
        pytest.param({"receiver": "s2"}, id="other-receiver"),
        pytest.param({"dscp": 1 << 40}, id="dscp-is-too-large"),
        pytest.param({"version": wire.VERSION + 1}, id="other-version"),
        pytest.param({"secret": "0" * 32}, id="wrong-secret"),
        pytest.param({"secret": "\ud800"}, id="secret-is-no-text"),
        pytest.param({"secret": ""}, id="no-secret"),
        pytest.param({"relay": "s1"}, id="no-secret-for-the-relay"),
    ],
)
def test_greeting_that_does_not_fit_is_refused_and_counted(
    port: DataPort, changes: dict[str, Any]
) -> None:
    with port.dial(port.greeting(**changes)) as stranger:
        assert port.turns_until(lambda: closed(stranger))
    assert port.resources.counters["refused"] == 1
    assert port.loop.faults == 0
    assert accepts(port)


@pytest.mark.parametrize(
    "opening",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n" * 10, id="http"),
        pytest.param(sealed({}), id="no-names"),
        pytest.param(sealed([]), id="list"),
        pytest.param(sealed(b"what?"), id="no-json"),
        pytest.param(sealed(b"[" * 4096), id="deep"),
        pytest.param(sealed({})[:-1] + b"!", id="crc32"),
    ],
)
def test_stranger_is_refused_and_counted(port: DataPort, opening: bytes) -> None:
    with port.dial(opening) as stranger:
        assert port.turns_until(lambda: closed(stranger))
    assert port.resources.counters["refused"] == 1
    assert port.loop.faults == 0
    assert accepts(port)


def test_connection_without_a_greeting_is_closed_at_its_deadline(
    port: DataPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GREETING_NS", 150_000_000)
    with port.dial() as silent, port.dial(port.greeting()[:-1]) as half, ExitStack() as undo:
        peer = undo.enter_context(port.dial(port.greeting()))
        assert port.turns_until(lambda: closed(silent) and closed(half))
        assert not closed(peer)
        late = undo.enter_context(port.dial())
        assert port.turns_until(lambda: closed(late))
    assert port.resources.counters["refused"] == 3


def test_oldest_connections_without_a_greeting_make_room(port: DataPort) -> None:
    strangers, resources = list[socket.socket](), port.resources
    resources.unnamed.most_strangers = 3
    for number in range(1, 6):
        strangers.append(port.dial())
        assert port.turns_until(
            lambda seen=number: resources.counters["refused"] + len(resources.unnamed) == seen  # type: ignore[misc] # a default binds it
        )
    assert [closed(stranger) for stranger in strangers] == [True, True, False, False, False]
    assert accepts(port)
    for stranger in strangers:
        stranger.close()


def test_sender_that_stays_after_its_relay_ended_is_disconnected(
    port: DataPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "LINGER_NS", 50_000_000)
    secret = {"relay": "s1", "relay_secret": port.resources.secret, "receiver": "s9"}
    with port.dial(port.greeting(**secret)) as sender:
        port.turns_until(lambda: select.select([sender], [], [], 0)[0])
        assert b"no connection to s9" in sender.recv(4096)
        own = {listening_descriptor(port)}
        assert port.turns_until(lambda: port.loop.masks.keys() == own)


def listening_descriptor(port: DataPort) -> int:
    """Return the descriptor of the data port, which an idle agent watches."""
    (listener,) = port.connections.listeners.values()
    return listener.sock.fileno()


class Faulty(CallbackOwner):
    """An owner whose callback and whose handling of faults have faults."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop, self.calls = loop, 0

    def ready(self, _mask: int) -> None:
        self.calls += 1
        if self.calls == 30:
            self.loop.stop()
        raise LookupError("fault of a callback")

    def callback_failed(self, error: Exception) -> None:
        raise TypeError("fault of its handling") from error


def test_fault_in_the_handling_of_a_fault_does_not_end_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = EventLoop()
    near, far = socket.socketpair()
    with near, far:
        loop.watch(near.fileno(), IN, Faulty(loop).ready)
        far.send(b"!")
        loop.run()
    assert loop.faults == 2 * 30
    assert len(caplog.records) == MAX_LOGGED, "the log fills"


def test_cancelled_timers_are_not_kept() -> None:
    loop = EventLoop()
    for _ in range(10_000):
        loop.call_at(NOW() + 3_600_000_000_000, lambda: None).cancel()
    assert len(loop.timers) < 2_000


# --- agents in processes of their own ------------------------------------------------------------


@contextmanager
def two_agents(
    folder: Path, before: tuple[str, ...] = ()
) -> Iterator[tuple[Fleet, "subprocess.Popen[bytes]"]]:
    """Yield agents s0 and s1, connected, and the process of s1, which is started by `before`."""
    with ExitStack() as undo:
        one, _ = undo.enter_context(agent("s0", folder))
        two, process = undo.enter_context(agent("s1", folder, before))
        fleet = undo.enter_context(Fleet([one, two]))
        fleet.connect([PATH])
        yield fleet, process


def stats(channel: Channel) -> dict[str, Any]:
    """Return an agent's counters."""
    return request_all({channel: ("stats", {})}, 10)[channel.name]


def open_descriptors(process: "subprocess.Popen[bytes]") -> int:
    """Return how many descriptors a process has."""
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def sends(fleet: Fleet, number: int) -> bool:
    """Return whether s0 sends s1 a million bytes."""
    (record,) = fleet.run(number, [paced_flow("s0", "s1", 1_000_000)], deadline_s=20.0)
    return record.ok


def dial(fleet: Fleet, address: str = "127.0.0.1") -> socket.socket:
    """Return a stranger's connection to s1."""
    return socket.create_connection((address, fleet.connections.destination(PATH)["port"]), 5)


def test_data_port_is_at_the_addresses_of_paths_only(tmp_path: Path) -> None:
    with two_agents(tmp_path) as (fleet, _):
        dial(fleet).close()
        with pytest.raises(ConnectionRefusedError):
            dial(fleet, "127.0.0.2")


def test_flood_of_connections_leaves_the_agent_working(tmp_path: Path) -> None:
    raise_descriptor_limit()
    with two_agents(tmp_path) as (fleet, process):
        with ExitStack() as undo:
            for _ in range(FLOOD):
                undo.enter_context(dial(fleet))
            assert sends(fleet, 1)
            assert open_descriptors(process) < MOST_UNNAMED + 30
        assert sends(fleet, 2)
        assert stats(fleet.channels["s1"])["refused"] >= FLOOD - 2 * MOST_UNNAMED


def test_agent_without_descriptors_goes_on(tmp_path: Path) -> None:
    """A hard limit can't be raised; strangers make room, and nothing spins."""
    limit = ("prlimit", f"--nofile={FEW}:{FEW}")
    with two_agents(tmp_path, limit) as (fleet, process):
        with ExitStack() as undo:
            for _ in range(2 * FEW):
                undo.enter_context(dial(fleet))
            assert sends(fleet, 1)
            assert open_descriptors(process) <= FEW
            again = connect_local("s1", tmp_path / "s1.sock")
            undo.callback(again.close)
            assert stats(again)["faults"] == 0
        assert sends(fleet, 2)


def test_agent_raises_its_limit_of_descriptors(tmp_path: Path) -> None:
    with two_agents(tmp_path, ("prlimit", "--nofile=64:512")) as (_, process):
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (512, 512)


def test_silence_of_its_commander_ends_an_agent_with_its_data_port() -> None:
    argv = [sys.executable, str(AGENT), "--name", "s1", "--stdio", "--silence", "0.5"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"id": 1, "op": "listen", "addresses": ["127.0.0.1"]}\n')
        process.stdin.flush()
        port = json.loads(process.stdout.readline())["ports"]["127.0.0.1"]
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            assert process.wait(10) == 0
            assert closed(stranger)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def resident_bytes(process: "subprocess.Popen[bytes]") -> int:
    """Return the memory of a process, in bytes."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_memory_of_an_agent_is_flat_over_many_collectives(tmp_path: Path) -> None:
    """The deadlines of collectives that have ended are an hour away and hold no memory."""
    with two_agents(tmp_path) as (fleet, process):
        flow = paced_flow("s0", "s1", 1000)

        def run(collectives: int) -> int:
            for _ in range(collectives // BURST):
                for _ in range(BURST):
                    fleet.launch([flow], None, 3600.0)
                left = BURST
                while left:
                    left -= len(fleet.wait_ended(None))
            return resident_bytes(process)

        def growth() -> int:
            before = resident_bytes(process)
            return run(COLLECTIVES) - before

        run(1000)
        # More at once, as on a busy machine, takes memory once; what is left takes it each time.
        grown = measurements(growth, lambda size: size < MOST_GROWTH, attempts=3)
        assert grown[-1] < MOST_GROWTH, grown
