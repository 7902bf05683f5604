"""Addresses of clusters: one at which nothing answers is refused before Ray tries for minutes."""

import re
import socket
import sys

import pytest

from moefabric.core.errors import UnsupportedError
from moefabric.testbed.cluster import ray_client
from moefabric.testbed.cluster.ray_client import connected


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail at once where Ray would be asked."""
    monkeypatch.setitem(sys.modules, "ray", None)


def refusal(address: str) -> str:
    with pytest.raises(UnsupportedError) as caught, connected(address):
        pass
    return str(caught.value)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nowhere.invalid:1", "Name or service not known|Temporary failure in name resolution"),
        ("10.0.0.1", "is not HOST:PORT"),
        ("10.0.0.1:ray", "is not HOST:PORT"),
        ("a" * 64 + ":1", "is not HOST:PORT"),
    ],
)
def test_address_without_a_cluster_is_named_with_the_remedy(address: str, reason: str) -> None:
    expected = rf"{re.escape(address)} has no Ray cluster \(({reason})\): start one .*`ray start"
    assert re.match(expected, refusal(address))


def test_refused_and_silent_ports_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    for given in (address, "auto"):
        assert refusal(given).startswith(f"{address} has no Ray cluster (Connection refused): ")
    monkeypatch.setattr(ray_client, "_CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = f"127.0.0.1:{full.getsockname()[1]}"
        with socket.create_connection(full.getsockname()):  # its queue has no more room
            assert f"{address} has no Ray cluster (no answer within" in refusal(address)


def test_address_at_which_something_answers_is_for_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        assert "needs ray" in refusal(f"127.0.0.1:{head.getsockname()[1]}")
