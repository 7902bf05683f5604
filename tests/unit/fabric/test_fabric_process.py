"""Answers of a fabric's process, without its hardware."""

import selectors
import socket
from typing import cast

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric.daemon import Owner, answer_client
from moefabric.emulator.fabric.running_hardware import RunningHardware
from moefabric.emulator.ocs.fd_handoff import receive_handoff


class _TooLarge:
    """Hardware whose counters can't be handed over."""

    def hand_counters(self, _client: socket.socket) -> None:
        raise FabricError("too much to hand over")


def test_request_for_counters_that_fails_costs_its_client_only() -> None:
    near, far = socket.socketpair()
    with selectors.DefaultSelector() as selector, far:
        far.sendall(b'{"do": "counters"}\n')
        owner = Owner(selector, None)
        answer_client(lambda: near, cast("RunningHardware", _TooLarge()), owner)
        with pytest.raises(FabricError, match="too much to hand over"):
            receive_handoff(far)
