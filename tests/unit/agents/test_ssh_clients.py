"""Which SSH client reaches a host, and what Paramiko takes from the SSH configuration."""

from pathlib import Path

import pytest

from moefabric.agents.remote.ssh import SshHost
from moefabric.agents.remote.ssh_config import Hop, route
from moefabric.core.errors import AgentError
from moefabric.core.server_host import HostLogin, SshClient

CONFIG = """
Include more/*.conf
Host gpu1
  HostName 192.0.2.1
  ProxyJump inner
  UserKnownHostsFile /keys/known "/keys/well known"
  GlobalKnownHostsFile none
Host inner
  ProxyJump lab@gate:2200
Host round
  ProxyJump round
Host command
  ProxyCommand nc %h %p
Host *
  User everybody
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.conf").write_text("Port 2222\nHost gate\n  HostName 192.0.2.9\n")
    (tmp_path / "config").write_text(CONFIG)
    return str(tmp_path / "config")


@pytest.mark.parametrize(
    ("client", "installed", "program"),
    [
        ("auto", True, "ssh"),
        ("auto", False, "moefabric.agents.remote.paramiko_client"),
        ("paramiko", True, "moefabric.agents.remote.paramiko_client"),
        ("openssh", True, "ssh"),
    ],
)
def test_client_is_paramiko_if_asked_for_or_without_openssh(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: SshClient,
    installed: bool,
    program: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if installed:
        (tmp_path / "ssh").touch(0o755)
    argv = SshHost("gpu1", client=client).argv("true")
    assert program in argv[:3]
    assert argv[-2:] == ["--", "true"]


def test_missing_openssh_is_reported_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentError, match="host gpu1: there is no ssh here: apt install openssh-"):
        SshHost("gpu1", client="openssh").argv("true")


def test_plugged_host_needs_openssh() -> None:
    with pytest.raises(AgentError, match="host gpu1: to plug it into a fabric takes OpenSSH"):
        SshHost("gpu1", client="paramiko").start([], b"", forward=("/run/a", "/run/b"))


def places(hops: list[Hop]) -> list[tuple[str, int, str]]:
    return [(hop.hostname, hop.port, hop.user) for hop in hops]


def test_jump_hosts_of_jump_hosts_and_included_files_count(config: str) -> None:
    hops = route(HostLogin("root@gpu1", ssh_config=config))
    assert places(hops) == [
        ("192.0.2.9", 2200, "lab"),
        ("inner", 2222, "everybody"),
        ("192.0.2.1", 2222, "root"),
    ]
    assert hops[-1].known_hosts == (Path("/keys/known"), Path("/keys/well known"))
    assert not hops[-1].only_identities


def test_login_goes_before_the_configuration(config: str) -> None:
    login = HostLogin("gpu1", 22, "me", "/keys/lab", ("a@[2001:db8::1]:23",), config)
    hops = route(login)
    assert places(hops) == [("2001:db8::1", 23, "a"), ("192.0.2.1", 22, "me")]
    assert [hop.identities for hop in hops] == [(Path("/keys/lab"),)] * 2
    assert hops[-1].only_identities


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("round", "SSH configuration of round: the jump hosts to round lead back to it"),
        ("command", "ProxyCommand needs OpenSSH's client: apt install openssh-client"),
    ],
)
def test_configuration_that_leads_nowhere_is_refused(config: str, host: str, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        route(HostLogin(host, ssh_config=config))
