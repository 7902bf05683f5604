"""Explains in one line why an SSH session ended, and names the remedy."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SSH_FAILED: Final = 255
_NO_PROGRAM: Final = 127


@dataclass(frozen=True)
class Destination:
    """A host as the user names it, and as the SSH configuration completes it.

    Attributes:
        host: Its name there.
        hostname: Its address or name in the network.
    """

    host: str
    hostname: str
    port: int
    user: str

    @property
    def place(self) -> str:
        """The host for messages."""
        return f"host {self.host} ({self.hostname} port {self.port})"

    @property
    def known_as(self) -> str:
        """Name of the host in files of known hosts."""
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"


def failure(destination: Destination, python: str, status: int | None, output: str) -> str:
    """Return why a session ended.

    Args:
        python: Python's name there.
        status: The client's exit status, which is the remote command's or 255; None if it still
            runs.
        output: The client's error output and that of the remote command.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    if status == _NO_PROGRAM:
        there = f"there is no {python} ({last})"
        return f"{destination.place}: {there}; install it there: apt install python3"
    if status not in {_SSH_FAILED, None}:
        return f"{destination.place}: the agent ended with status {status}: {last}"
    text = "\n".join(lines)
    for pattern, explain in _EXPLANATIONS:
        if match := re.search(pattern, text, re.MULTILINE):
            if isinstance(explain, str):
                reason = explain.format(host=destination.host, **match.groupdict())
            else:
                reason = explain(destination, match, text)
            return f"{destination.place}: {reason}"
    return f"{destination.place}: ssh ended: {last}; try `ssh {destination.host} true`"


def _changed_key(destination: Destination, match: re.Match[str], text: str) -> str:
    known = re.search(r"^Offending (?:\S+ )?key in (?P<file>\S+)", text, re.MULTILINE)
    instead = f" is not the known one ({known['file']})" if known else " is not the known one"
    named = re.search(r"[Hh]ost key for (?P<name>\S+) has changed", text)
    name = named["name"] if named else destination.known_as
    return (
        f"its host key has changed: {match['fingerprint']}{instead}; the connection may be "
        f"intercepted. If the change is right, `ssh-keygen -R '{name}'` and log in once with ssh"
    )


def _unknown_key(destination: Destination, match: re.Match[str], _text: str) -> str:
    name, port = match["name"], 22
    if bracketed := re.fullmatch(r"\[(.*)\]:([0-9]+)", name):
        name, port = bracketed[1], int(bracketed[2])
    is_target = name == destination.hostname
    whose = "its host key" if is_target else f"the host key of {name}, on the way,"
    scan = f"`ssh-keyscan -p {port} {name} >> ~/.ssh/known_hosts`"
    return (
        f"{whose} is unknown; log in once with `ssh {destination.host}` and compare the "
        f"fingerprint, or {scan} if nobody can be in between"
    )


def _refused(destination: Destination, match: re.Match[str], text: str) -> str:
    on_the_way = match["host"] not in {destination.hostname, destination.host}
    where = f" at {match['host']}, on the way" if on_the_way else ""
    user = match["user"] or destination.user
    reason = ""
    if "UNPROTECTED PRIVATE KEY" in text:
        reason = "others may read the private key: `chmod 600` it; "
    elif missing := re.search(r"^Identity file (\S+) not accessible", text, re.MULTILINE):
        reason = f"there is no {missing[1]}; "
    return (
        f"no key of ours is accepted for user {user}{where}; {reason}send one with `ssh-copy-id`; "
        "a key with a passphrase has to be in ssh-agent (`ssh-add`)"
    )


_Explain = Callable[[Destination, re.Match[str], str], str]
_EXPLANATIONS: Final[tuple[tuple[str, str | _Explain], ...]] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED[\s\S]*?(?P<fingerprint>(SHA256|MD5):\S+?)\.?$",
        _changed_key,
    ),
    (
        r"\S+ is (marked as )?revoked|REVOKED HOST KEY",
        (
            "its host key is revoked in the files of known hosts; the host may be an impostor: "
            "ask its administrator for the new key"
        ),
    ),
    (r"No (?P<type>\S+) host key is known for (?P<name>\S+)", _unknown_key),
    (r"^((?P<user>[^\s@]+)@)?(?P<host>\S+): Permission denied \(.*\)\.?$", _refused),
    (
        r"Could not resolve hostname (?P<name>\S+): (?P<why>.*)$",
        "{name}: {why}; give an address, or HostName in ~/.ssh/config",
    ),
    (
        r"connect to host (?P<name>\S+) port (?P<port>[0-9]+): (?P<why>.*)$",
        "no connection to {name} port {port}: {why}; is its SSH server up?",
    ),
    (
        r"open failed: [^:]*: (?P<why>.*)$",
        "the jump host gets no connection to it: {why}; is it up?",
    ),
    (
        r"Timeout, server \S+ not responding|[Bb]roken pipe|[Cc]onnection reset",
        "its SSH connection is lost; look at its network and whether the host is up",
    ),
    (
        r"(?P<why>(Connection (to \S+ )?(closed|timed out)|[Bb]ad (configuration|owner)).*)$",
        "ssh ended: {why}; try `ssh {host} true`",
    ),
)
