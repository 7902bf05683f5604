"""SSH client for machines without OpenSSH's: runs a command on a host by Paramiko.

Its use, exit status and messages are those of `ssh`, so that sessions, remote commands and
`moefabric.agents.remote.ssh_errors` need not know which client runs.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import paramiko
from paramiko.pkey import UnknownKeyType

from moefabric.agents.remote.command import SSH_FAILED, login_parser
from moefabric.agents.remote.ssh import DEPLOY_S, KEEPALIVE_S, KEEPALIVES
from moefabric.agents.remote.ssh_config import Hop, route
from moefabric.core.errors import AgentError

_CHUNK: Final = 1 << 16
_UNREADABLE: Final = (OSError, TypeError, ValueError, paramiko.SSHException, UnknownKeyType)
"""Errors of a private key that is missing, has a passphrase or is of an unknown kind."""


class _FailedError(Exception):
    """A connection that failed, in the words of OpenSSH's client."""


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m moefabric.agents.remote.paramiko_client --login JSON -- COMMAND`.

    Returns:
        The command's exit status; 255 if SSH failed.
    """
    parser = login_parser("paramiko_client", __doc__)
    parser.add_argument("command", help="for the login shell")
    options = parser.parse_args(arguments)
    transports: list[paramiko.Transport] = []
    try:
        hops = route(options.login)
        for hop in hops:
            transports.append(_logged_in(hop, transports[-1] if transports else None))
        return _run(transports[-1], options.command, hops[-1])
    except (_FailedError, AgentError, paramiko.SSHException, OSError, EOFError) as error:
        sys.stderr.write(f"{str(error) or 'Connection closed'}\n")
        return SSH_FAILED
    finally:
        for transport in reversed(transports):
            transport.close()


def _logged_in(hop: Hop, before: paramiko.Transport | None) -> paramiko.Transport:
    """Return a connection to a host, by way of the one before, with its key checked."""
    transport = paramiko.Transport(_stream(hop, before))
    try:
        known = paramiko.HostKeys()
        for file in hop.known_hosts:
            if file.exists():
                known.load(str(file))
        keys: Mapping[str, paramiko.PKey] = known.lookup(hop.known_as) or {}
        security = transport.get_security_options()
        # The server is asked for a key of a kind that is known.
        kinds = sorted(security.key_types, key=lambda kind: _key_name(kind) not in keys)
        security.key_types = kinds
        transport.start_client(timeout=DEPLOY_S)
        _check(hop, transport.get_remote_server_key(), keys)
        with _deadline(transport, hop):
            _log_in(transport, hop)
    except BaseException:
        transport.close()
        raise
    return transport


def _revoked_keys(files: Iterable[Path]) -> set[str]:
    """Return the keys, in base64, that are marked as revoked in files of known hosts.

    sshd(8) has lines of `@revoked`, hosts, kind and key. A revoked key is refused for all hosts.
    """
    lines = (line.split() for file in files if file.exists() for line in file.open())
    return {words[3] for words in lines if len(words) > 3 and words[0] == "@revoked"}


def _key_name(kind: str) -> str:
    """Return the name of the keys that make a kind of signature."""
    return "ssh-rsa" if kind.startswith("rsa-sha2-") else kind


def _stream(hop: Hop, before: paramiko.Transport | None) -> socket.socket | paramiko.Channel:
    where = (hop.hostname, hop.port)
    if before is not None:
        try:
            return before.open_channel("direct-tcpip", where, ("127.0.0.1", 0), timeout=DEPLOY_S)
        except paramiko.ChannelException as error:
            raise _FailedError(f"channel 0: open failed: connect failed: {error.text}") from error
    try:
        return socket.create_connection(where, DEPLOY_S)
    except socket.gaierror as error:
        raise _FailedError(f"Could not resolve hostname {where[0]}: {error.strerror}") from error
    except OSError as error:
        why = error.strerror or "Connection timed out"
        raise _FailedError(f"connect to host {where[0]} port {where[1]}: {why}") from error


def _check(hop: Hop, key: paramiko.PKey, keys: Mapping[str, paramiko.PKey]) -> None:
    """Raise _FailedError unless a host's key is the known one, and not revoked."""
    kind = key.get_name()
    if key.get_base64() in _revoked_keys(hop.known_hosts):
        raise _FailedError(f"Host key for {hop.known_as} is revoked: {key.fingerprint}")
    if kind not in keys:
        strict = "and you have requested strict checking"
        raise _FailedError(f"No {kind} host key is known for {hop.known_as} {strict}.")
    if keys[kind].asbytes() != key.asbytes():
        raise _FailedError(
            f"REMOTE HOST IDENTIFICATION HAS CHANGED\n{key.fingerprint}\n"
            f"Host key for {hop.known_as} has changed"
        )


def _log_in(transport: paramiko.Transport, hop: Hop) -> None:
    """Offer keys until the host accepts one; raise _FailedError if it accepts none."""
    for key in _keys(hop):
        with suppress(paramiko.AuthenticationException):
            transport.auth_publickey(hop.user, key)
        if transport.is_authenticated():
            return
        if not transport.is_active():  # it has had enough keys
            break
    for file in hop.identities:
        if not file.exists():
            sys.stderr.write(f"Identity file {file} not accessible: No such file or directory.\n")
    raise _FailedError(f"{hop.user}@{hop.hostname}: Permission denied (publickey).")


def _keys(hop: Hop) -> Iterator[paramiko.PKey]:
    """Yield the keys of ssh-agent that may be used, then those of files with their certificates."""
    public = [file.with_name(f"{file.name}.pub") for file in hop.identities]
    named = {file.read_text().split()[1] for file in public if file.exists()}
    for key in paramiko.Agent().get_keys():
        if not hop.only_identities or key.get_base64() in named:
            yield key
    for file in hop.identities:
        with suppress(*_UNREADABLE):
            yield paramiko.PKey.from_path(file)


def _run(transport: paramiko.Transport, command: str, hop: Hop) -> int:
    """Run a command with this process's streams, and return its exit status."""
    lost = threading.Event()
    _in_background(_watch, transport, lost)
    channel = transport.open_session(timeout=DEPLOY_S)
    with _deadline(transport, hop):
        channel.exec_command(command)
    _in_background(_send_input, channel)
    errors = _in_background(_copy, channel.recv_stderr, 2)
    _copy(channel.recv, 1)
    status = channel.recv_exit_status()
    errors.join()
    if lost.is_set():
        raise _FailedError(f"Timeout, server {hop.hostname} not responding.")
    if status < 0:
        raise _FailedError(f"Connection to {hop.hostname} closed by remote host.")
    return status


@contextmanager
def _deadline(transport: paramiko.Transport, hop: Hop) -> Iterator[None]:
    """Close a connection unless the host answers in time; Paramiko itself waits without end."""
    late = threading.Event()

    def end() -> None:
        late.set()
        transport.close()

    watchdog = threading.Timer(DEPLOY_S, end)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError, _FailedError) as error:
        if late.is_set():
            raise _FailedError(f"Timeout, server {hop.hostname} not responding.") from error
        raise
    finally:
        watchdog.cancel()


def _in_background(work: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _watch(transport: paramiko.Transport, lost: threading.Event) -> None:
    """Close a connection whose other end doesn't answer; Paramiko's keepalives ask for no reply."""
    while transport.is_active():
        request = _in_background(transport.global_request, "keepalive@openssh.com")
        request.join(KEEPALIVE_S * KEEPALIVES)
        if request.is_alive():
            lost.set()
            transport.close()
        lost.wait(KEEPALIVE_S)


def _send_input(channel: paramiko.Channel) -> None:
    with suppress(OSError):
        while data := os.read(0, _CHUNK):
            channel.sendall(data)
        channel.shutdown_write()


def _copy(receive: Callable[[int], bytes], descriptor: int) -> None:
    while data := receive(_CHUNK):
        while data:
            data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main())
