"""Real servers: an agent started over SSH on a host that has Python, and nothing of ours before or after."""

import shlex
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Never

import paramiko

from agents.bundle import bundle
from agents.channel import Channel
from moefabric.errors import AgentError

GLOBAL_KNOWN_HOSTS: Final = "/etc/ssh/ssh_known_hosts"

# The agent comes through the very session that it will talk over, and lives in memory only: so nothing has to be removed
# afterwards, whatever happens, and the host needs neither SFTP nor a folder that can be written. No line breaks outside
# quotes and no "!", since the host's login shell may be any.
_RECEIVE: Final = """
import os, sys
if sys.version_info < (3, 8):
    sys.exit('it needs Python 3.8, this is ' + sys.version.split()[0])
left, file = int(sys.argv.pop(1)), os.memfd_create('agent')
while left:
    left -= os.write(file, os.read(0, left) or sys.exit('the agent came cut short'))
sys.path[0] = '/proc/self/fd/%d' % file
from agents.engine.start import main
sys.exit(main())
"""
_BOOT: Final = f"exec({_RECEIVE!r})"


def dialled(hostname: str, port: int, deadline_s: float) -> socket.socket:
    """A TCP connection from here. OSError if there is none by then."""
    return socket.create_connection((hostname, port), deadline_s)


@dataclass(frozen=True)
class SshHost:
    """A host, named as one would name it to `ssh`: an alias of `~/.ssh/config`, or `user@name`."""

    host: str
    config: Path = Path("~/.ssh/config")
    python: str = "python3"
    dial: Callable[[str, int, float], socket.socket] = dialled

    def agent(self, name: str, deadline_s: float = 20.0) -> Channel:
        """Start server `name`'s agent there; its control channel, whose end is the agent's end.

        AgentError, in one line with its remedy: unreachable, host key unknown or changed, no key accepted, no Python.
        """
        client = self._client(deadline_s)
        try:
            transport = client.get_transport()
            assert transport is not None
            transport.set_keepalive(15)
            session = transport.open_session(timeout=deadline_s)
            source = bundle()
            argv = [self.python, "-c", _BOOT, str(len(source)), "--name", name, "--stdio"]
            session.exec_command(shlex.join(argv))
            session.settimeout(deadline_s)
            with suppress(
                OSError
            ):  # a host without Python hangs up in mid-source; the farewell says so better
                session.sendall(source)
        except (paramiko.SSHException, OSError, EOFError) as error:
            client.close()
            raise AgentError(f"host {self.host}: the SSH session ended: {error}") from error
        return Channel(name, _Session(client, session), lambda: self._farewell(session))

    def _client(self, deadline_s: float) -> paramiko.SSHClient:
        asked = self._configured()
        hostname, port = str(asked["hostname"]), int(asked.get("port", 22))
        where = f"host {self.host} ({hostname} port {port})"
        if asked.get("proxyjump", "none") != "none" or asked.get("proxycommand", "none") != "none":
            raise AgentError(
                f"{where}: its SSH configuration names a jump host, which is not supported; give a direct address"
            )
        client = paramiko.SSHClient()
        user = str(asked["user"]) if "user" in asked else None
        try:
            for file in _known_hosts(asked):
                client.load_system_host_keys(str(file))
            client.set_missing_host_key_policy(_Refuse(where, hostname, port, self.host))
            client.connect(
                hostname, port, user, sock=self.dial(hostname, port, deadline_s), timeout=deadline_s,
                banner_timeout=deadline_s, auth_timeout=deadline_s,
                key_filename=_identities(asked),  # type: ignore[arg-type] # a list is well, says paramiko's manual
                allow_agent=asked.get("identitiesonly", "no") != "yes", look_for_keys="identityfile" not in asked,
            )  # fmt: skip
        except AgentError:
            client.close()
            raise
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            client.close()
            raise AgentError(f"{where}: {_said(error, hostname, port, user)}") from error
        return client

    def _configured(self) -> dict[str, Any]:
        """What the SSH configuration says of this host."""
        user, _, alias = self.host.rpartition("@")
        path = self.config.expanduser()
        try:
            config = paramiko.SSHConfig.from_path(str(path)) if path.exists() else paramiko.SSHConfig()
            asked: dict[str, Any] = dict(config.lookup(alias))
        except (paramiko.SSHException, OSError) as error:
            raise AgentError(f"host {self.host}: {path}: {error}") from error
        return asked | ({"user": user} if user else {})

    def _farewell(self, session: paramiko.Channel) -> str:
        """Why the session ended, as the host tells it."""
        session.settimeout(2.0)
        said = ""
        with suppress(OSError):
            while came := session.recv_stderr(1 << 16):
                said += came.decode(errors="replace")
        status = session.recv_exit_status() if session.exit_status_ready() else -1
        last = said.strip().rpartition("\n")[2]
        if status == 127:
            return f"there is no {self.python} on {self.host} ({last}); install it there: apt install python3"
        return f"the agent on {self.host} ended with status {status}: {last or 'it said nothing'}"


class _Session:
    """A paramiko session as a stream whose end is also its client's."""

    def __init__(self, client: paramiko.SSHClient, session: paramiko.Channel) -> None:
        self.client, self.session = client, session
        self.fileno, self.recv = session.fileno, session.recv
        self.sendall, self.settimeout = session.sendall, session.settimeout

    def close(self) -> None:
        self.session.close()
        self.client.close()


class _Refuse(paramiko.MissingHostKeyPolicy):
    """Nobody is there to compare a fingerprint, so an unknown host is not talked to."""

    def __init__(self, where: str, hostname: str, port: int, host: str) -> None:
        self.where, self.hostname, self.port, self.host = where, hostname, port, host

    def missing_host_key(self, _client: paramiko.SSHClient, _hostname: str, key: paramiko.PKey) -> Never:
        raise AgentError(
            f"{self.where}: its host key is unknown ({key.get_name()} {key.fingerprint}); if it is the right one, log in "
            f"once with `ssh {self.host}`, or `ssh-keyscan -p {self.port} {self.hostname} >> ~/.ssh/known_hosts`"
        )


def _known_hosts(asked: dict[str, Any]) -> list[Path]:
    user = asked.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    everyone = asked.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS)
    named = (Path(file).expanduser() for file in f"{user} {everyone}".split())
    return [file for file in named if file.exists()]


def _identities(asked: dict[str, Any]) -> list[str] | None:
    """The key files that are there; None where none was named, so that the usual ones are tried."""
    named = [Path(file).expanduser() for file in asked.get("identityfile", [])]
    return [str(file) for file in named if file.exists()] or None


def _said(error: Exception, hostname: str, port: int, user: str | None) -> str:
    """A failed connection in one line, with its remedy."""
    name = hostname if port == 22 else f"[{hostname}]:{port}"
    match error:
        case paramiko.BadHostKeyException():
            return (
                f"its host key has changed: {error.key.get_name()} {error.key.fingerprint} is not the known one; somebody "
                f"may stand in between. If the change is right, `ssh-keygen -R '{name}'` and log in once with ssh"
            )
        case paramiko.PasswordRequiredException():
            return "the private key has a passphrase; give it to an agent with `ssh-add` first"
        case paramiko.AuthenticationException():
            return (
                f"no key of ours is accepted for user {user or 'of this name'}; send one with `ssh-copy-id`"
            )
        case paramiko.ssh_exception.NoValidConnectionsError() | OSError():
            return f"no connection: {error.strerror or error}; is its SSH server up?"
    return str(error)
