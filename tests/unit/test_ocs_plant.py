"""The handing over of facts and descriptors, on unix sockets."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.plant import READY, Plant, connected, hand_over, listening_within, receive
from moefabric.errors import FabricError

FACTS = {"name": "ocs0", "ports": 12, "settle_ns": 25_000_000, "serial": "000001"}


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.settimeout(0.5)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_facts_and_descriptors_arrive_as_handed_over(
    ends: tuple[socket.socket, socket.socket], pipe: tuple[int, int]
) -> None:
    hand_over(ends[0], FACTS, pipe)
    facts, fds = receive(ends[1])
    assert facts == FACTS
    os.write(fds[1], b"through")
    assert os.read(pipe[0], 16) == b"through"
    assert not any(os.get_inheritable(fd) for fd in fds)
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        pytest.param(b"", "nothing received: timed out", id="silence"),
        pytest.param(b'{"name": ', "nothing received: timed out", id="half-a-line"),
        pytest.param(b"[]\n", "facts are a JSON object", id="no-object"),
        pytest.param(b"what\n", "nothing received", id="no-json"),
        pytest.param(b"x" * 1_100_000, "too much", id="a-flood"),
    ],
)
def test_what_is_no_handing_over_is_a_fault(
    ends: tuple[socket.socket, socket.socket], sent: bytes, said: str
) -> None:
    sending = threading.Thread(target=ends[0].sendall, args=(sent,))  # a flood is more than a socket holds
    sending.start()
    with pytest.raises(FabricError, match=said):
        receive(ends[1])
    sending.join(5)


def test_a_fabric_that_goes_away_is_a_fault(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    with pytest.raises(FabricError, match="closed"):
        receive(ends[1])


@pytest.fixture
def plant(tmp_path: Path, pipe: tuple[int, int]) -> Iterator[Plant]:
    made = Plant(tmp_path / "ocs0.plant", FACTS, pipe)
    yield made
    made.close()


def taken(plant: Plant) -> socket.socket:
    """A connection that has received what the plant hands over, and let go of it."""
    sock = connected(plant.path, deadline_s=2)
    sock.settimeout(2)
    facts, fds = receive(sock)
    assert facts == FACTS
    for fd in fds:
        os.close(fd)
    return sock


def test_a_plant_is_served_once_its_process_says_so(plant: Plant) -> None:
    with taken(plant) as process:
        assert not plant.served
        process.sendall(READY)
        plant.wait_ready(deadline_s=2)
        assert plant.served


def test_a_plant_that_nobody_serves_is_a_fault_after_a_while(plant: Plant) -> None:
    with pytest.raises(FabricError, match=r"ocs0\.plant: no process served this switch within 0\.05 s"):
        plant.wait_ready(deadline_s=0.05)


def test_the_next_process_is_served_when_the_one_before_it_is_gone(plant: Plant) -> None:
    first = taken(plant)
    with connected(plant.path, deadline_s=2) as second:
        second.settimeout(0.1)
        with pytest.raises(FabricError, match="timed out"):
            receive(second)
        first.close()
        second.settimeout(2)
        _, fds = receive(second)
        assert len(fds) == 2
        for fd in fds:
            os.close(fd)


def test_closing_a_plant_is_seen_at_its_other_end_and_leaves_no_socket(plant: Plant) -> None:
    with taken(plant) as process:
        plant.close()
        assert process.recv(1) == b""
    assert not plant.path.exists()
    plant.close()


def test_a_path_that_is_taken_is_named(plant: Plant) -> None:
    with pytest.raises(FabricError, match=r"can't listen on .*ocs0\.plant: Address already in use"):
        Plant(plant.path, FACTS, ())
    assert plant.path.exists()


def test_a_plant_that_never_appears_is_a_fault_after_a_while(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match=r"nobody listens on .*absent\.plant"):
        connected(tmp_path / "absent.plant", deadline_s=0.1)


def test_an_address_in_use_is_named() -> None:
    with listening_within(None, "127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            FabricError, match=rf"can't listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            listening_within(None, "127.0.0.1", port)
