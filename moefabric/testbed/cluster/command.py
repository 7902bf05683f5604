"""Runs a command on a node of another machine, with its input, output and exit status here."""

import argparse
import asyncio
import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from moefabric.core.errors import MoefabricError
from moefabric.emulator.fabric.other_machines import read_machines
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed.cluster.connection import Connection, FrameKind

_PART_BYTES: Final = 1 << 16
_FAILED: Final = 255
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str] | None = None) -> int:
    """Run a command on a node: `... --run-dir D --machine M --node N -- COMMAND...`.

    Args:
        arguments: Command line; None for that of the process.

    Returns:
        The command's exit status; 255 if its machine failed.
    """
    parser = argparse.ArgumentParser(prog="command", description=__doc__)
    parser.add_argument("--run-dir", required=True, type=Path, help="the head's run directory")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--node", default="", help="server or OCS; default: the fabric's namespace")
    parser.add_argument("--kind", default="exec", choices=("exec", "network", "capture"))
    parser.add_argument("--file", type=Path, help="where the contents of a capture go")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        return asyncio.run(_run(options))
    except (MoefabricError, OSError, EOFError, ValueError) as error:
        sys.stderr.write(f"machine {options.machine}: {error}\n")
        return _FAILED


async def _run(options: argparse.Namespace) -> int:
    run_dir = RunDirectory(options.run_dir)
    others = read_machines(run_dir)
    machine = next(o.machine for o in others if o.machine.name == options.machine)
    connection = await Connection.to(machine)
    message = {
        "do": "program",
        "fabric": run_dir.name,
        "node": options.node,
        "kind": options.kind,
        "command": options.command,
        "python": sys.executable,
        "folder": str(Path.cwd()),
    }
    await connection.request(message)
    _forward_input(connection)
    with ExitStack() as undo:
        file = undo.enter_context(options.file.open("wb")) if options.file else None
        return await _write_output(connection, file)


def _forward_input(connection: Connection) -> None:
    """Forward signals and standard input to the program."""
    loop = asyncio.get_running_loop()
    tasks = set[asyncio.Task[None]]()

    def send(kind: FrameKind, body: bytes = b"") -> None:
        task = loop.create_task(connection.write_frame(kind, body))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    for number in _SIGNALS:
        loop.add_signal_handler(number, send, FrameKind.SIGNAL, str(int(number)).encode())

    def read_input() -> None:
        while part := os.read(0, _PART_BYTES):
            frame = connection.write_frame(FrameKind.INPUT, part)
            asyncio.run_coroutine_threadsafe(frame, loop).result()
        loop.call_soon_threadsafe(send, FrameKind.INPUT_END)

    threading.Thread(target=read_input, daemon=True).start()


async def _write_output(connection: Connection, file: BinaryIO | None) -> int:
    """Write the program's output, and return its exit status."""
    output, errors = sys.stdout.buffer, sys.stderr.buffer
    targets = {FrameKind.OUTPUT: output, FrameKind.ERRORS: errors, FrameKind.FILE: file}
    while True:
        kind, body = await connection.read_frame()
        if kind == FrameKind.STATUS:
            status = int(body)
            return status if status >= 0 else 128 - status
        if target := targets.get(kind):
            target.write(body)
            target.flush()


if __name__ == "__main__":
    sys.exit(main())
