"""Asking an optical switch's process something, and following what happens to it, from any other process of the machine."""

import json
import os
import selectors
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from emulator.plant import ask_path
from moefabric.errors import FabricError

_ANSWER_S: Final = 10.0


def ask(plant: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the process says that serves this plant. FabricError with its words where it refuses, or if nobody answers."""
    with _call(plant) as call:
        try:
            call.sendall(json.dumps(asked).encode() + b"\n")
            with call.makefile() as lines:
                said = dict(json.loads(lines.readline()))
        except (OSError, ValueError) as silent:
            raise FabricError(f"{plant.stem}: no answer") from silent
    if "error" in said:
        raise FabricError(f"{plant.stem}: {said['error']}")
    return said


def events(plants: Mapping[str, Path], *, follow: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of switches by name, as far as they are remembered; with `follow` those to come too, until the fabric ends."""
    with selectors.DefaultSelector() as waiting, ExitStack() as calls:
        unended: dict[str, bytes] = {}
        for name, plant in plants.items():
            call = calls.enter_context(_call(plant))
            call.sendall(json.dumps({"do": "events", "follow": follow}).encode() + b"\n")
            waiting.register(call, selectors.EVENT_READ, name)
            unended[name] = b""
        while waiting.get_map():
            for key, _ in waiting.select(None if follow else _ANSWER_S):
                sock, name = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                part = sock.recv(1 << 16)
                *lines, unended[name] = (unended[name] + part).split(b"\n")
                told = [json.loads(line) for line in lines]
                yield from ((name, event) for event in told if "kind" in event)
                if not part or any("end" in event for event in told):
                    waiting.unregister(sock)
                    sock.close()


def _call(plant: Path) -> socket.socket:
    call = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    call.settimeout(_ANSWER_S)
    try:
        call.connect(os.fspath(ask_path(plant)))
    except OSError as absent:
        call.close()
        raise FabricError(f"{plant.stem}: nobody to ask at {ask_path(plant)}: {absent.strerror}") from absent
    return call
