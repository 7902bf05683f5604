"""Addresses that an agent reports about its host."""

import pytest

from moefabric.agents.engine.agent import interface_addresses, ssh_address


def test_interfaces_have_their_addresses() -> None:
    assert interface_addresses()["lo"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("variable", "address"),
    [("192.0.2.1 50000 192.0.2.7 22", "192.0.2.7"), ("", ""), ("broken", "")],
)
def test_address_that_ssh_reached_is_known(
    monkeypatch: pytest.MonkeyPatch, variable: str, address: str
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", variable)
    assert ssh_address() == address
