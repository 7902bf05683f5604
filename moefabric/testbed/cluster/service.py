"""Machine service: makes, holds and removes a machine's parts of fabrics, as their heads ask.

A head connects (`connection`), and sends one message that names the purpose of the connection.
`part` makes a part, answers the head's requests to it, and removes the part when the head says
`stop`, when the connection ends, or when the head is silent for `LEASE_S`. `stream` joins the
connection with a Unix socket of the part, `program` runs a program on one of its nodes.

The first line of the service's standard input is the secret that heads have to know. Once it
listens, it writes the port as a line of JSON to standard output. It ends, and its parts with it, at
SIGTERM or at the end of its standard input.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError, MoefabricError
from moefabric.core.machines import LEASE_S
from moefabric.emulator.fabric import lifecycle, node_commands
from moefabric.emulator.fabric.daemon_protocol import UpRequest, process_id, request
from moefabric.emulator.fabric.datagrams import ServerSockets
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.runtime.connection_limit import ConnectionLimit
from moefabric.runtime.environment import passed_environment
from moefabric.runtime.processes import usage_of
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed.cluster.connection import LONGEST_LINE, Connection, FrameKind, Message
from moefabric.testbed.fabric_processes import fabric_processes

_GRACE_S: Final = 3.0
_MOST_HEADS: Final = 4096
"""Connections of heads: one for each part, stream and program."""
_PART_BYTES: Final = 1 << 20
_CPU: Final = Path("/proc/stat")


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
            env=passed_environment(),
            start_new_session=True,
        )
        connection.write({})
        frames = asyncio.create_task(_forward_input(connection, process))
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            await asyncio.gather(
                connection.write_frames(FrameKind.OUTPUT, process.stdout),
                connection.write_frames(FrameKind.ERRORS, process.stderr),
            )
            status = await process.wait()
            if file.is_file():
                with file.open("rb") as source:
                    while part := source.read(_PART_BYTES):
                        await connection.write_frame(FrameKind.FILE, part)
            await connection.write_frame(FrameKind.STATUS, str(status).encode())
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


async def _forward_input(connection: Connection, process: Process) -> None:
    """Forward input and signals to a program; end it if its head goes away."""
    assert process.stdin is not None
    try:
        while True:
            kind, body = await connection.read_frame()
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


class MachineService:
    """The service of one machine, for any number of fabrics.

    Args:
        secret: Shared secret, by which the service and the heads authenticate each other.
        lease_s: Silence of a head after which its part ends.

    Attributes:
        part_ended: Set when a part has ended.
    """

    def __init__(self, secret: str, lease_s: float = LEASE_S) -> None:
        self._secret, self._lease_s = secret, lease_s
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self.part_ended = asyncio.Event()
        self._limit = ConnectionLimit[asyncio.StreamWriter](
            lambda writer: writer.transport.abort(), most_trusted=_MOST_HEADS
        )

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client to the end of its connection, if there is a place for it."""
        connection = Connection(reader, writer)
        try:
            self._limit.add(writer, writer.get_extra_info("peername", ("",))[0])
            proved = await connection.authenticate(self._secret)
            if proved and self._limit.begin_request(writer):
                await self._serve_request(await connection.read(), connection)
        except (MoefabricError, KeyError, TypeError, ValueError) as error:  # of another form, too
            connection.write({"error": str(error)})
        except (OSError, EOFError):  # the client has gone
            return
        finally:
            self._limit.remove(writer)
            writer.close()

    async def _serve_request(self, message: Message, connection: Connection) -> None:
        match message.get("do"):
            case "part":
                await self._hold_part(message, connection)
            case "stream":
                path = _socket_path(message["fabric"], message["path"])
                try:
                    target = Connection(*await asyncio.open_unix_connection(str(path)))
                except OSError as error:
                    raise FabricError(f"{path}: {error.strerror}") from error
                connection.write({})
                await connection.join(target)
            case "program":
                await run_program(message, connection)
            case other:
                raise FabricError(f"{other!r} is not one of part, stream, program")

    async def _hold_part(self, message: Message, connection: Connection) -> None:
        """Make this machine's part of a fabric, and keep it until the head stops it or dies."""
        wiring = FabricWiring.from_json(message["wiring"])
        timeout_s = float(message["timeout_s"])
        part = UpRequest(wiring, timeout_s, owner=os.getpid(), machine=message["machine"])
        name = wiring.fabric.name
        async with self._locks[name]:
            report = await asyncio.to_thread(
                lifecycle.up_part, part, fabric_processes, message["token"]
            )
            held = HeldPart(named_run_directory(name))
            try:
                connection.write({"ready": True, "remarks": report["remarks"]})
                await self._answer_head(held, connection)
            finally:
                held.close()
                await asyncio.to_thread(lifecycle.down, name, force=True)
                connection.write({"stopped": True})
                self.part_ended.set()

    async def _answer_head(self, part: "HeldPart", connection: Connection) -> None:
        """Answer the requests of a part's head until it says `stop`, is silent or gone."""
        with suppress(TimeoutError, OSError, EOFError):
            while True:
                async with asyncio.timeout(self._lease_s):
                    message = await connection.read()
                if message.get("do") == "stop":
                    return
                connection.write(await part.reply(message))
                await connection.writer.drain()


@dataclass
class HeldPart:
    """A part that is up, and answers requests of its head.

    Attributes:
        run_dir: Its run directory.
    """

    run_dir: RunDirectory
    _counters: EmulatedPortCounters | None = None

    def __post_init__(self) -> None:
        self._datagrams = ServerSockets(self.run_dir)

    async def reply(self, message: Message) -> Message:
        """Return the reply to a request of the head."""
        if message.get("do") == "alive":
            return self._heartbeat()
        questions: dict[str | None, Callable[[], Message]] = {
            "counts": self._counts,
            "datagrams": partial(self._datagrams.reply, message),
            "usage": self._usage,
        }
        default = partial(request, self.run_dir, message)
        try:
            return await asyncio.to_thread(questions.get(message.get("do"), default))
        except MoefabricError as error:
            return {"error": str(error)}

    def close(self) -> None:
        """Release the descriptors of counters and datagrams."""
        self._datagrams.close()
        if self._counters is not None:
            self._counters.close()

    def _heartbeat(self) -> Message:
        """Return this machine's clock and CPU times, and whether the part still runs."""
        return {
            "now_ns": time.monotonic_ns(),
            "ticks": list(map(int, _CPU.read_text().split("\n", 1)[0].split()[1:9])),
            "runs": self.run_dir.is_alive(),
            "exists": self.run_dir.path.exists(),
        }

    def _usage(self) -> Message:
        """Return the resources of this part's processes."""
        listed = request(self.run_dir, {"do": "inspect"})["processes"]
        pids = {process["name"]: process["pid"] for process in listed}
        usage = usage_of(pids | {"fabric": process_id(self.run_dir)})
        return {"usage": {name: vars(used) for name, used in usage.items()}}

    def _counts(self) -> Message:
        """Return the counters of the ports on this machine."""
        if self._counters is None:
            self._counters = EmulatedPortCounters(self.run_dir)
        reading = self._counters.read()
        return {
            "ports": self._counters.ports,
            "bytes": reading.bytes.tolist(),
            "frames": reading.frames.tolist(),
        }


def _socket_path(fabric: str, name: str) -> Path:
    """Return a Unix socket of a fabric's run directory.

    Raises:
        FabricError: if there is no such socket.
    """
    folder = named_run_directory(fabric).path
    path = (folder / name).resolve()
    if not path.is_relative_to(folder) or not path.is_socket():
        raise FabricError(f"{fabric}: there is no socket {name}")
    return path


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m moefabric.testbed.cluster.service --listen ADDRESS`."""
    parser = argparse.ArgumentParser(prog="machine_service", description=__doc__)
    parser.add_argument("--listen", required=True, help="IPv4 address, of the machines' network")
    parser.add_argument(
        "--lease",
        type=float,
        default=LEASE_S,
        help="seconds of silence after which the part of a head ends",
    )
    parser.add_argument("--once", action="store_true", help="end with the first part of a fabric")
    options = parser.parse_args(arguments)
    if not (secret := sys.stdin.readline().strip()):
        parser.error("the first line of standard input has to be the secret")
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(secret, options))
    return 0


async def _serve(secret: str, options: argparse.Namespace) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    _at_end_of_input(lambda: loop.call_soon_threadsafe(task.cancel))
    service = MachineService(secret, options.lease)
    server = await asyncio.start_server(service.answer, options.listen, limit=LONGEST_LINE)
    async with server:
        port = server.sockets[0].getsockname()[1]
        sys.stdout.write(json.dumps({"port": port}) + "\n")
        sys.stdout.flush()
        await (service.part_ended.wait() if options.once else server.serve_forever())


def _at_end_of_input(callback: Callable[[], object]) -> None:
    def read() -> None:
        with suppress(OSError, ValueError):
            while sys.stdin.read(1024):
                pass
        with suppress(RuntimeError):  # the service has ended
            callback()

    threading.Thread(target=read, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
