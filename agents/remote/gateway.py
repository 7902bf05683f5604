"""Makes the agent on a real host one of a fabric's agents: it answers at a local Unix socket.

The process starts the agent over SSH and ends with it; it prints why. OpenSSH forwards each
connection with the socket to the agent.
"""

import json
import secrets
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from moefabric.agents.fleet.channel import Channel, request_all, wait
from moefabric.agents.remote.bundle import bundle
from moefabric.agents.remote.command import login_parser
from moefabric.agents.remote.ssh import DEPLOY_S, SshHost
from moefabric.core.errors import AgentError

_LOOK_S = 3600.0


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m moefabric.agents.remote.gateway --server s3 --control PATH --login JSON`.

    Returns:
        The exit status: 1 once the agent has ended.
    """
    parser = login_parser("gateway", __doc__)
    parser.add_argument("--server", required=True, help="name of the server, such as s3")
    parser.add_argument("--control", required=True, type=Path, help="the Unix socket")
    parser.add_argument("--link", type=json.loads, help="facts of the agent's HostLink as JSON")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _serve(options.server, options.control, SshHost(**vars(options.login)), options.link)
    except AgentError as error:
        sys.stderr.write(f"{error}\n")
    return 1


def _serve(server: str, control: Path, host: SshHost, link: dict[str, Any] | None) -> None:
    """Start the agent and wait for its end; raise AgentError for its reason."""
    remote = f"/tmp/moefabric-{secrets.token_hex(8)}.sock"  # noqa: S108 - only its owner may open it
    forwarded = control.with_suffix(".forward")
    words = ["--name", server, "--stdio", "--control", remote, "--silence", f"{host.silence_s:g}"]
    if link is not None:
        words += ["--link", json.dumps(_with_local_address(link))]
    session = host.start(words, bundle(), forward=(str(forwarded), remote))
    channel = Channel(server, session, lambda: host.failure(session))
    try:
        reply = request_all({channel: ("hello", {})}, DEPLOY_S)[server]
        control.with_suffix(".facts").write_text(json.dumps(reply))
        forwarded.rename(control)  # not before the agent listens
        while not channel.gone:
            wait([channel], lambda _: False, _LOOK_S)
        raise AgentError(channel.gone)
    finally:
        channel.close()
        for path in (control, forwarded):
            with suppress(FileNotFoundError):
                path.unlink()


def _with_local_address(link: dict[str, Any]) -> dict[str, Any]:
    """Return a link whose tunnel ends at the address from which this machine reaches the host."""
    if not (tunnel := link.get("tunnel")):
        return link
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((tunnel["host"], tunnel["port"]))
        return {**link, "tunnel": {**tunnel, "remote": probe.getsockname()[0]}}


if __name__ == "__main__":
    sys.exit(main())
