"""Programs that a machine service runs on nodes of its parts, with their streams at the head."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from moefabric.emulator.fabric import node_commands
from moefabric.testbed.cluster.greeting import Connection, write_message
from moefabric.testbed.cluster.streams import FrameKind, read_frame, send_all, send_frame

_GRACE_S: Final = 3.0
_PART_BYTES: Final = 1 << 20


async def run_program(message: dict[str, Any], connection: Connection) -> None:
    """Run the program of a request; end it if its head goes away.

    Args:
        message: `fabric`, `node`, `kind`, `command`, and the head's `python` and `folder`.
        connection: carries the program's streams as frames, after a message that it has started.

    Raises:
        FabricError: if the fabric has no such node here.
    """
    with ExitStack() as undo:
        file = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="moefabric-"))) / "file"
        argv = await asyncio.to_thread(_argv, message, file)
        folder = Path(message["folder"])
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=folder if folder.is_dir() else None,
            start_new_session=True,
        )
        reader, writer = connection
        write_message(writer, {})
        frames = asyncio.create_task(_forward_input(reader, process))
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            await asyncio.gather(
                send_all(writer, FrameKind.OUTPUT, process.stdout),
                send_all(writer, FrameKind.ERRORS, process.stderr),
            )
            status = await process.wait()
            if file.is_file():
                with file.open("rb") as source:
                    while part := source.read(_PART_BYTES):
                        await send_frame(writer, FrameKind.FILE, part)
            await send_frame(writer, FrameKind.STATUS, str(status).encode())
        finally:
            frames.cancel()
            await _end(process)


def _argv(message: dict[str, Any], file: Path) -> Sequence[str]:
    """Return the argv of a program, with this machine's Python in the place of the head's."""
    name, node = message["fabric"], message["node"]
    command = [sys.executable if word == message["python"] else word for word in message["command"]]
    match message["kind"]:
        case "capture":
            settings = json.loads(command[0]) | {"file": str(file)}
            return node_commands.local_capture_argv(name, node, settings)
        case "network":
            return node_commands.network_argv(name, node, command)
        case _:
            return node_commands.exec_argv(name, node, command)


async def _forward_input(reader: asyncio.StreamReader, process: Process) -> None:
    """Forward input and signals to a program; end it if its head goes away."""
    assert process.stdin is not None
    try:
        while True:
            kind, body = await read_frame(reader)
            with suppress(OSError):
                if kind == FrameKind.INPUT:
                    process.stdin.write(body)
                    await process.stdin.drain()
                elif kind == FrameKind.INPUT_END:
                    process.stdin.close()
                elif kind == FrameKind.SIGNAL:
                    _signal(process, signal.Signals(int(body)))
    except (OSError, EOFError, ValueError):
        await _end(process)


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


async def _end(process: Process) -> None:
    """End a program that still runs, and wait for its end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            _signal(process, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE_S)
