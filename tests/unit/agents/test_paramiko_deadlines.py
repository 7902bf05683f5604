"""An SSH server that stops answering in mid-login does not hold up Paramiko's client."""

import socket
import threading
from collections.abc import Iterator

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from moefabric.agents.remote import paramiko_client
from moefabric.agents.remote.ssh_config import Hop

HOP = Hop("gpu1", "gpu1", 22, "root", (), only_identities=False, known_hosts=())


class SilentServer(paramiko.ServerInterface):
    """A server that lets anybody in and answers no request for a command, until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def check_auth_none(self, username: str) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.released.wait()
        return False


@pytest.fixture
def transport() -> Iterator[paramiko.Transport]:
    """A login to a server in this process that answers no further."""
    near, far = socket.socketpair()
    interface = SilentServer()
    server, client = paramiko.Transport(far), paramiko.Transport(near)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.start_server(server=interface, event=threading.Event())
    client.start_client(timeout=20)
    client.auth_none("root")
    yield client
    interface.released.set()
    client.close()
    server.close()


def test_command_that_the_server_does_not_answer_fails_at_the_deadline(
    transport: paramiko.Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paramiko_client, "DEPLOY_S", 0.3)
    monkeypatch.setattr(paramiko_client, "KEEPALIVE_S", 60)
    failures = list[Exception]()

    def run() -> None:
        try:
            paramiko_client._run(transport, "true", HOP)
        except Exception as error:  # noqa: BLE001 - the assertion below shows it
            failures.append(error)

    command = threading.Thread(target=run, daemon=True)
    command.start()
    command.join(20)
    assert [str(failure) for failure in failures] == ["Timeout, server gpu1 not responding."]
