"""SSH configuration of the hosts on the way to a server, as Paramiko needs it."""

import getpass
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import paramiko

from moefabric.agents.remote.ssh_errors import Destination
from moefabric.core.errors import AgentError
from moefabric.core.server_host import HostLogin

_FILES: Final = (Path("~/.ssh/config"), Path("/etc/ssh/ssh_config"))
_KNOWN_HOSTS: Final = {
    "userknownhostsfile": "~/.ssh/known_hosts ~/.ssh/known_hosts2",
    "globalknownhostsfile": "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",
}
_MOST_JUMPS: Final = 16
_IDENTITIES: Final = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


@dataclass(frozen=True)
class Hop(Destination):
    """A host on the way, or the last one.

    Attributes:
        only_identities: Whether ssh-agent may use keys of these files only.
    """

    identities: tuple[Path, ...]
    only_identities: bool
    known_hosts: tuple[Path, ...]


def route(login: HostLogin) -> list[Hop]:
    """Return the jump hosts to a server, in order, and the server.

    Raises:
        AgentError: If the SSH configuration can't be read, or needs OpenSSH's client.
    """
    files = [Path(login.ssh_config)] if login.ssh_config else _FILES
    lines = (line for file in files for line in [*_lines(file.expanduser()), "Host *"])
    try:
        config = paramiko.SSHConfig.from_text("\n".join(lines))
        return _route(config, login, depth=0)
    except (paramiko.SSHException, OSError, ValueError) as error:
        raise AgentError(f"SSH configuration of {login.host}: {error}") from error


def _route(config: paramiko.SSHConfig, login: HostLogin, depth: int) -> list[Hop]:
    named, _, alias = login.host.rpartition("@")
    jump = login.jump
    options: dict[str, Any] = dict(config.lookup(alias))
    if not jump and (proxy := options.get("proxyjump", "none")) != "none":
        jump = tuple(re.split(r"\s*,\s*", proxy))
    if not jump and options.get("proxycommand", "none") != "none":
        raise ValueError("ProxyCommand needs OpenSSH's client: apt install openssh-client")
    if depth > _MOST_JUMPS:
        raise ValueError(f"the jump hosts to {alias} lead back to it; correct its ProxyJump")
    before: list[Hop] = []
    if jump:
        *earlier, last = (hop.removeprefix("ssh://") for hop in jump)
        match = re.fullmatch(r"(.*?)(?::([0-9]+))?", last)
        assert match is not None
        name, number = match[1].replace("[", "").replace("]", ""), match[2]
        at = int(number) if number else None
        hop_login = HostLogin(name, at, None, login.identity_file, tuple(earlier))
        before = _route(config, hop_login, depth + 1)
    configured = [login.identity_file] if login.identity_file else []
    known = (shlex.split(options.get(key, default)) for key, default in _KNOWN_HOSTS.items())
    identities = [*configured, *options.get("identityfile", [] if configured else _IDENTITIES)]
    hop = Hop(
        login.host,
        options["hostname"],
        login.port or int(options.get("port", 22)),
        login.user or named or options.get("user") or getpass.getuser(),
        tuple(Path(file).expanduser() for file in identities if file != "none"),
        bool(configured) or options.get("identitiesonly") == "yes",
        tuple(Path(file).expanduser() for files in known for file in files if file != "none"),
    )
    return [*before, hop]


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a configuration file with those of the files that it includes."""
    section = "Host *"
    for line in path.read_text().splitlines() if path.exists() else ():
        if include := re.match(r"\s*include[\s=]+(.*)", line, re.IGNORECASE):
            for pattern in shlex.split(include[1]):
                included = (path.parent / Path(pattern).expanduser()).absolute()
                for file in sorted(Path("/").glob(str(included.relative_to("/")))):
                    yield from _lines(file)
            yield section  # what follows is not the included file's
            continue
        if re.match(r"\s*(host|match)[\s=]", line, re.IGNORECASE):
            section = line
        yield line
