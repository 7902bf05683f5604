"""Agents on real servers, started over SSH on hosts that need no more than Python."""

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moefabric.agents.fleet.channel import Channel, ask_all
from moefabric.agents.remote.bundle import bundle
from moefabric.agents.remote.session import Session
from moefabric.agents.remote.ssh_errors import Destination, failure
from moefabric.core.errors import AgentError
from moefabric.core.server_host import HostLogin

DEPLOY_S: Final = 20.0
"""Timeout for all hosts together to log in, receive the agent and start it."""
KEEPALIVE_S: Final = 2
KEEPALIVES: Final = 3
"""ssh gives a connection up when so many keepalives, one every `KEEPALIVE_S`, have no answer."""
SILENCE_S: Final = 45.0
"""Time without a sign of life from here after which programs on a host end themselves."""

# What runs on a host is sent over the SSH session that becomes its control channel, and stays in
# memory. So nothing has to be removed afterwards, and the host needs neither SFTP nor a writable
# folder. The command has no line breaks outside quotes and no "!", because the login shell is
# unknown.
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
# What the user's configuration may not change: nobody can answer questions, unknown host keys are
# refused, a lost connection is noticed, and the session is this process's alone.
_OPTIONS: Final = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    f"ServerAliveInterval={KEEPALIVE_S}",
    f"ServerAliveCountMax={KEEPALIVES}",
    f"ConnectTimeout={DEPLOY_S:.0f}",
    "ControlMaster=no",
    "ControlPath=none",
)
_SESSION_OPTIONS: Final = (
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "LogLevel=INFO",
)


@dataclass(frozen=True)
class SshHost(HostLogin):
    """A host reached over SSH.

    Attributes:
        through: Command that runs ssh, such as `ip netns exec NAME`.
        silence_s: Seconds without a sign of life after which what runs there ends itself.
    """

    through: tuple[str, ...] = ()
    silence_s: float = SILENCE_S

    def argv(self, command: str, forwarding: Sequence[str] = ()) -> list[str]:
        """Return the argv that runs a command of the login shell there.

        Raises:
            AgentError: If the client isn't installed, or can't forward sockets.
        """
        if self._uses_paramiko():
            return self._paramiko(command, forwarding)
        if shutil.which("ssh") is None:
            raise AgentError(
                f"host {self.host}: there is no ssh here: apt install openssh-client, or set "
                "`client: paramiko`"
            )
        clear = "ClearAllForwardings=" + ("no" if forwarding else "yes")
        words = [*_option_words([*_SESSION_OPTIONS, clear]), *forwarding, *self._destination()]
        return [*self.through, *self._ssh(self.jump), *words, "--", command]

    def start(
        self, words: list[str], source: bytes, forward: tuple[str, str] | None = None
    ) -> Session:
        """Send a program there and run it.

        Args:
            forward: A Unix socket here, and the one there that answers its connections.
        """
        command = shlex.join([self.python, "-c", _BOOT, str(len(source)), *words])
        argv = self.argv(command, ["-L", ":".join(forward)] if forward else [])
        return Session(argv, source, heartbeat_s=self.silence_s / 4)

    def failure(self, session: Session) -> str:
        """Return why a session ended, with the remedy, in one line."""
        status, output = session.outcome()
        return failure(self.target(), self.python, status, output)

    def target(self) -> Destination:
        """Return user, address and port as the SSH configuration completes them."""
        options: dict[str, str] = {}
        if self._uses_paramiko():
            from moefabric.agents.remote.ssh_config import route  # most runs do without Paramiko

            with suppress(AgentError):  # the client itself says what is wrong
                return route(self)[-1]
        else:
            completed = subprocess.run(
                [*self._ssh(()), "-G", *self._destination()],
                capture_output=True, text=True, check=False, timeout=DEPLOY_S,
            )  # fmt: skip
            pairs = (line.split(" ", 1) for line in completed.stdout.splitlines() if " " in line)
            options = {key: value for key, value in pairs if key in {"user", "hostname", "port"}}
        return Destination(
            self.host,
            options.get("hostname", self.host.rpartition("@")[2]),
            int(options.get("port", self.port or 22)),
            options.get("user", self.user or ""),
        )

    def _uses_paramiko(self) -> bool:
        return self.client == "paramiko" or (self.client == "auto" and shutil.which("ssh") is None)

    def _paramiko(self, command: str, forwarding: Sequence[str]) -> list[str]:
        if forwarding:
            raise AgentError(
                f"host {self.host}: to plug it into a fabric takes OpenSSH's client: apt install "
                "openssh-client, and no `client: paramiko`"
            )
        if importlib.util.find_spec("paramiko") is None:
            raise AgentError(
                f"host {self.host}: Paramiko is not installed here: pip install paramiko, or apt "
                "install openssh-client and no `client: paramiko`"
            )
        program = [sys.executable, "-m", "moefabric.agents.remote.paramiko_client"]
        return [*self.through, *program, "--login", self.to_json(), "--", command]

    def _destination(self) -> list[str]:
        port = ["-p", str(self.port)] if self.port else []
        return [*port, *(["-l", self.user] if self.user else []), self.host]

    def _ssh(self, jump: tuple[str, ...]) -> list[str]:
        """Return ssh with the options of every connection, the way through jump hosts included.

        `ssh -J` would give the jump hosts neither our options nor our key.
        """
        words = ["ssh", *(["-F", self.ssh_config] if self.ssh_config else [])]
        words += _option_words(_OPTIONS)
        if self.identity_file is not None:
            identity = str(Path(self.identity_file).expanduser())
            words += ["-i", identity, *_option_words(["IdentitiesOnly=yes"])]
        if jump:
            *before, last = jump
            hop = map(_quoted, [*self._ssh(tuple(before)), f"ssh://{last}"])
            words += _option_words([f"ProxyCommand={' '.join(hop)} -W '[%h]:%p'"])
        return words


def _option_words(options: list[str] | tuple[str, ...]) -> list[str]:
    return [word for option in options for word in ("-o", option)]


def _quoted(word: str) -> str:
    """Return a word for a ProxyCommand: quoted for the shell, without tokens of ssh."""
    return shlex.quote(word.replace("%", "%%"))


def agents_on(hosts: Mapping[str, SshHost]) -> list[Channel]:
    """Start the agents of servers on their hosts, all at the same time.

    Returns:
        The agents' control channels, in the order of `hosts`; an agent ends with its channel.

    Raises:
        AgentError: If hosts are unreachable, their keys are unknown or have changed, they accept
            none of our keys, or Python is missing; a line with the remedy for each of them.
    """
    source, channels = bundle(), list[Channel]()
    try:
        for server, host in hosts.items():
            words = ["--name", server, "--stdio", "--silence", f"{host.silence_s:g}"]
            session = host.start(words, source)
            channels.append(
                Channel(server, session, lambda host=host, s=session: host.failure(s))  # type: ignore[misc]
            )
        _await_agents(hosts, channels)
    except BaseException:
        for channel in channels:
            channel.close()
        raise
    return channels


def _await_agents(hosts: Mapping[str, SshHost], channels: list[Channel]) -> None:
    """Wait until all agents answer; raise AgentError with all hosts that failed."""
    replies = ask_all(dict.fromkeys(channels, ("clock", {})), DEPLOY_S)
    faults = list[str]()
    for channel in channels:
        if channel.gone:
            faults.append(channel.gone)
        elif channel not in replies:
            where = hosts[channel.name].target().place
            faults.append(f"{where}: no agent answers after {DEPLOY_S:g} s; is it overloaded?")
    if faults:
        raise AgentError("\n".join(faults))
