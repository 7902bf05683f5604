"""Agents on real servers, started over SSH on hosts that need no more than Python."""

import shlex
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Never

import paramiko

from moefabric.agents.fleet.channel import Channel
from moefabric.agents.remote.bundle import bundle
from moefabric.core.errors import AgentError

GLOBAL_KNOWN_HOSTS: Final = "/etc/ssh/ssh_known_hosts"

# The agent is sent over the SSH session that becomes its control channel, and stays in memory. So
# nothing has to be removed afterwards, and the host needs neither SFTP nor a writable folder. The
# command has no line breaks outside quotes and no "!", because the login shell is unknown.
_RECEIVE: Final = """
import os, sys
if sys.version_info < (3, 8):
    sys.exit('it needs Python 3.8, this is ' + sys.version.split()[0])
left, file = int(sys.argv.pop(1)), os.memfd_create('agent')
while left:
    left -= os.write(file, os.read(0, left) or sys.exit('the agent came cut short'))
sys.path[0] = '/proc/self/fd/%d' % file
from moefabric.agents.engine.main import main
sys.exit(main())
"""
_BOOT: Final = f"exec({_RECEIVE!r})"


def dial_tcp(hostname: str, port: int, deadline_s: float) -> socket.socket:
    """Open a TCP connection from this process; raise OSError if that fails or takes too long."""
    return socket.create_connection((hostname, port), deadline_s)


@dataclass(frozen=True)
class SshHost:
    """A host to start agents on.

    Attributes:
        host: Argument of `ssh`: an alias in the SSH configuration, or `user@name`.
        config: The SSH configuration file.
        python: Name or path of Python on the host.
        dial: Opens the TCP connection.
    """

    host: str
    config: Path = Path("~/.ssh/config")
    python: str = "python3"
    dial: Callable[[str, int, float], socket.socket] = dial_tcp

    def agent(self, name: str, deadline_s: float = 20.0) -> Channel:
        """Start a server's agent on the host.

        Args:
            name: The server.
            deadline_s: How long each step may take.

        Returns:
            The agent's control channel; the agent ends with it.

        Raises:
            AgentError: if the host is unreachable, its key is unknown or has changed, it accepts
                none of our keys, or Python is missing; one line with the remedy.
        """
        client = self._connect(deadline_s)
        try:
            transport = client.get_transport()
            assert transport is not None
            transport.set_keepalive(15)
            session = transport.open_session(timeout=deadline_s)
            source = bundle()
            argv = [self.python, "-c", _BOOT, str(len(source)), "--name", name, "--stdio"]
            session.exec_command(shlex.join(argv))
            session.settimeout(deadline_s)
            with suppress(OSError):  # without Python the session ends, and its status says why
                session.sendall(source)
        except (paramiko.SSHException, OSError, EOFError) as error:
            client.close()
            raise AgentError(f"host {self.host}: the SSH session ended: {error}") from error
        return Channel(name, _SessionStream(client, session), lambda: self._end_reason(session))

    def _connect(self, deadline_s: float) -> paramiko.SSHClient:
        options = self._options()
        hostname, port = str(options["hostname"]), int(options.get("port", 22))
        where = f"host {self.host} ({hostname} port {port})"
        if {options.get("proxyjump", "none"), options.get("proxycommand", "none")} != {"none"}:
            raise AgentError(
                f"{where}: its SSH configuration names a jump host, which is not supported; "
                "give a direct address"
            )
        client = paramiko.SSHClient()
        user = str(options["user"]) if "user" in options else None
        try:
            for file in _known_hosts(options):
                client.load_system_host_keys(str(file))
            client.set_missing_host_key_policy(_RefuseUnknown(where, hostname, port, self.host))
            client.connect(
                hostname,
                port,
                user,
                sock=self.dial(hostname, port, deadline_s),
                timeout=deadline_s,
                banner_timeout=deadline_s,
                auth_timeout=deadline_s,
                key_filename=_identities(options),  # type: ignore[arg-type] # paramiko takes lists
                allow_agent=options.get("identitiesonly", "no") != "yes",
                look_for_keys="identityfile" not in options,
            )
        except AgentError:
            client.close()
            raise
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            client.close()
            raise AgentError(f"{where}: {_explain(error, hostname, port, user)}") from error
        return client

    def _options(self) -> dict[str, Any]:
        """Return the options of the SSH configuration for this host."""
        user, _, alias = self.host.rpartition("@")
        path = self.config.expanduser()
        try:
            config = paramiko.SSHConfig()
            if path.exists():
                config = paramiko.SSHConfig.from_path(str(path))
            options: dict[str, Any] = dict(config.lookup(alias))
        except (paramiko.SSHException, OSError) as error:
            raise AgentError(f"host {self.host}: {path}: {error}") from error
        return options | ({"user": user} if user else {})

    def _end_reason(self, session: paramiko.Channel) -> str:
        """Return why a session ended, by its error output and exit status."""
        session.settimeout(2.0)
        output = ""
        with suppress(OSError):
            while data := session.recv_stderr(1 << 16):
                output += data.decode(errors="replace")
        session.status_event.wait(2.0)  # the status may follow the end of the output
        status = session.exit_status
        last_line = output.strip().rpartition("\n")[2]
        if status == 127:
            problem = f"there is no {self.python} on {self.host} ({last_line})"
            return f"{problem}; install it there: apt install python3"
        reason = last_line or "no output"
        return f"the agent on {self.host} ended with status {status}: {reason}"


class _SessionStream:
    """A paramiko session as a `Stream`; closing it also closes the SSH client."""

    def __init__(self, client: paramiko.SSHClient, session: paramiko.Channel) -> None:
        self.client, self.session = client, session
        self.fileno, self.recv = session.fileno, session.recv
        self.sendall, self.settimeout = session.sendall, session.settimeout

    def close(self) -> None:
        self.session.close()
        self.client.close()


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):
    """Refuses unknown host keys, because no user is present to compare the fingerprint."""

    def __init__(self, where: str, hostname: str, port: int, host: str) -> None:
        self.where, self.hostname, self.port, self.host = where, hostname, port, host

    def missing_host_key(
        self, _client: paramiko.SSHClient, _hostname: str, key: paramiko.PKey
    ) -> Never:
        scan = f"ssh-keyscan -p {self.port} {self.hostname} >> ~/.ssh/known_hosts"
        raise AgentError(
            f"{self.where}: its host key is unknown ({key.get_name()} {key.fingerprint}); "
            f"if it is the right one, log in once with `ssh {self.host}`, or `{scan}`"
        )


def _known_hosts(options: dict[str, Any]) -> list[Path]:
    user_files = options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    global_files = options.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS)
    files = (Path(file).expanduser() for file in f"{user_files} {global_files}".split())
    return [file for file in files if file.exists()]


def _identities(options: dict[str, Any]) -> list[str] | None:
    """Return the configured key files that exist; None, for the default ones, if none exists."""
    files = [Path(file).expanduser() for file in options.get("identityfile", [])]
    return [str(file) for file in files if file.exists()] or None


def _explain(error: Exception, hostname: str, port: int, user: str | None) -> str:
    """Return why a connection failed, with the remedy."""
    name = hostname if port == 22 else f"[{hostname}]:{port}"
    match error:
        case paramiko.BadHostKeyException():
            return (
                f"its host key has changed: {error.key.get_name()} {error.key.fingerprint} is not "
                "the known one; the connection may be intercepted. If the change is right, "
                f"`ssh-keygen -R '{name}'` and log in once with ssh"
            )
        case paramiko.PasswordRequiredException():
            return "the private key has a passphrase; give it to an agent with `ssh-add` first"
        case paramiko.AuthenticationException():
            whom = user or "of this name"
            return f"no key of ours is accepted for user {whom}; send one with `ssh-copy-id`"
        case paramiko.ssh_exception.NoValidConnectionsError() | OSError():
            return f"no connection: {error.strerror or error}; is its SSH server up?"
    return str(error)
