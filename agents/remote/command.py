"""Runs a command on a real host, with its output and exit status here.

The command ends with this process or the connection, and its input is empty. It starts in the
folder of this name, if the host has one.
"""

import json
import shlex
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from moefabric.agents.engine import guarded_process
from moefabric.agents.remote.ssh import SshHost
from moefabric.core.errors import AgentError
from moefabric.core.server_host import HostLogin
from moefabric.runtime.processes import wait_or_kill

_END_S: Final = guarded_process.GRACE_S + 3.0
"""Time for a host to end a command."""
SSH_FAILED: Final = 255
_INTERFACE: Final = "eth0"
"""Interface of an emulated server."""


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m moefabric.agents.remote.command --login JSON -- COMMAND...`.

    Returns:
        The command's exit status; 255 if SSH failed.
    """
    parser = login_parser("command", __doc__)
    parser.add_argument("--interface", default="", help="its interface in the fabric")
    parser.add_argument("--facts", type=Path, help="JSON file with the agent's reply to hello")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    host = SshHost(**vars(options.login))
    words = [*_words_there(options.command, host, options.interface, options.facts)]
    source = Path(guarded_process.__file__).read_text()
    silence = f"{host.silence_s:g}"
    guarded = [host.python, "-c", source, silence, str(Path.cwd()), *words]
    try:
        argv = host.argv(shlex.join(guarded))
    except AgentError as error:
        sys.stderr.write(f"{error}\n")
        return SSH_FAILED
    return _run(argv, host.silence_s / 4)


def login_parser(program: str, description: str | None) -> ArgumentParser:
    """Return the parser of a program's command line that names a host's login."""
    parser = ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "--login", required=True, type=HostLogin.from_json, help="a HostLogin as JSON"
    )
    return parser


def _words_there(
    command: Iterable[str], host: SshHost, interface: str, facts: Path | None
) -> Iterator[str]:
    """Yield a command's words with the host's names of Python, interface and agent."""
    for word in command:
        if word == sys.executable:
            yield host.python
        elif word == f"GLOO_SOCKET_IFNAME={_INTERFACE}" and interface:
            yield f"GLOO_SOCKET_IFNAME={interface}"
        elif word.startswith("MOEFABRIC_AGENT=") and facts is not None:
            yield f"MOEFABRIC_AGENT={json.loads(facts.read_text())['ranks']}"
        else:
            yield word


def _run(argv: list[str], heartbeat_s: float) -> int:
    """Run ssh, send signs of life, and return its exit status."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
    assert process.stdin is not None

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        while True:
            try:
                return process.wait(heartbeat_s)
            except subprocess.TimeoutExpired:
                with suppress(BrokenPipeError):
                    process.stdin.write(b"\n")
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()  # the host ends the command
        wait_or_kill(process, _END_S)


if __name__ == "__main__":
    sys.exit(main())
