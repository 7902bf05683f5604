"""Client of a switch's control socket: requests, and the stream of events."""

import json
import selectors
import socket
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.emulator.linux.line_requests import ask_socket
from moefabric.emulator.ocs.fd_handoff import connect, control_path

_TIMEOUT_S: Final = 10.0


def request(ocs_socket: Path, message: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request to the process of a switch, and return the reply as a JSON object.

    Args:
        ocs_socket: the handoff socket of the switch (`RunDir.ocs_socket`).
        message: `{"do": "inject", "fault": {...}}`, `{"do": "clear", "number": n}` (without number:
            all), `{"do": "reboot"}`, `{"do": "show"}` or `{"do": "list"}`.

    Raises:
        FabricError: if the process refuses the request, or does not reply.
    """
    with _connect(ocs_socket) as sock:
        try:
            reply = ask_socket(sock, message)
        except (OSError, ValueError) as error:
            raise FabricError(f"{ocs_socket.stem}: no answer") from error
    if "error" in reply:
        raise FabricError(f"{ocs_socket.stem}: {reply['error']}")
    return reply


def events(
    ocs_sockets: Mapping[str, Path], *, follow: bool
) -> Generator[tuple[str, dict[str, Any]]]:
    """Yield the events of switches: the stored ones of all in order of time, then new ones.

    Args:
        ocs_sockets: handoff sockets by name of the switch.
        follow: whether to wait for new events after the stored ones, until the fabric ends.

    Yields:
        The name of the switch and the event as a JSON object.
    """
    with selectors.DefaultSelector() as selector, ExitStack() as sockets:
        incomplete: dict[str, bytes] = {}
        untold, stored = set(ocs_sockets), list[tuple[str, dict[str, Any]]]()
        for name, path in ocs_sockets.items():
            sock = sockets.enter_context(_connect(path))
            sock.sendall(json.dumps({"do": "events", "follow": follow}).encode() + b"\n")
            selector.register(sock, selectors.EVENT_READ, name)
            incomplete[name] = b""
        while selector.get_map():
            for key, _ in selector.select(None if follow else _TIMEOUT_S):
                ready, name = key.fileobj, key.data
                assert isinstance(ready, socket.socket)
                data = ready.recv(1 << 16)
                *lines, incomplete[name] = (incomplete[name] + data).split(b"\n")
                messages = [json.loads(line) for line in lines]
                stored += ((name, message) for message in messages if "kind" in message)
                is_told = not data or any("end" in message for message in messages)
                if is_told:
                    untold.discard(name)
                if not data or (is_told and not follow):
                    selector.unregister(ready)
                    ready.close()
                if not untold:
                    yield from sorted(stored, key=lambda named: int(named[1]["at_ns"]))
                    stored.clear()


def _connect(ocs_socket: Path) -> socket.socket:
    sock = connect(control_path(ocs_socket), 0, ocs_socket.stem)
    sock.settimeout(_TIMEOUT_S)
    return sock
