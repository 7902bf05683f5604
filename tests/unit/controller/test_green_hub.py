"""Green threads of a controller: descriptors that nobody waits for stay registered, and timers."""

import socket
from collections.abc import Iterator

import pytest

from moefabric.controller.southbound.openflow.green import GreenEvent, _Hub, after


def _ignore(*_: object) -> None:
    """Do nothing."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_descriptor_without_a_listener_is_reported_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    hub, (near, far) = _Hub(), pair
    hub.remove(hub.add(hub.READ, near.fileno(), _ignore, _ignore, _ignore))
    far.send(b"x")
    assert [number for number, _ in hub.do_poll(0)] == [near.fileno()]
    assert hub.do_poll(0) == [], "or a hub with nothing to do would not sleep"
    hub.add(hub.READ, near.fileno(), _ignore, _ignore, _ignore)
    assert [number for number, _ in hub.do_poll(0)] == [near.fileno()]


def test_idle_descriptor_can_be_waited_for_again_and_in_the_other_direction(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    hub, (near, far) = _Hub(), pair
    hub.remove(hub.add(hub.READ, near.fileno(), _ignore, _ignore, _ignore))
    hub.remove(hub.add(hub.READ, near.fileno(), _ignore, _ignore, _ignore))
    writing = hub.add(hub.WRITE, near.fileno(), _ignore, _ignore, _ignore)
    assert [number for number, _ in hub.do_poll(0)] == [near.fileno()]
    hub.remove(writing)
    assert hub.do_poll(0) == []
    far.send(b"x")
    hub.add(hub.READ, near.fileno(), _ignore, _ignore, _ignore)
    assert [number for number, _ in hub.do_poll(0)] == [near.fileno()]


def test_descriptor_whose_number_is_used_again_is_registered_anew() -> None:
    hub = _Hub()
    near, far = socket.socketpair()
    number = near.fileno()
    hub.remove(hub.add(hub.READ, number, _ignore, _ignore, _ignore))
    near.close()
    far.close()
    near, far = socket.socketpair()
    with near, far:
        assert number in (near.fileno(), far.fileno()), "the system gives the lowest free number"
        hub.mark_as_reopened(number)
        other = far if number == near.fileno() else near
        other.send(b"x")
        hub.add(hub.READ, number, _ignore, _ignore, _ignore)
        assert [ready for ready, _ in hub.do_poll(0)] == [number]


def test_timer_ends_with_its_block() -> None:
    early, late = GreenEvent(), GreenEvent()
    with after(0.0, early.set):
        pass
    with after(0.0, late.set):
        assert late.wait(10)
    assert not early.wait(0.0)
