"""Machine service: makes, holds and removes a machine's parts of fabrics, as their heads ask.

A head connects (`greeting`) and sends one message that names the purpose of the connection. `part`
makes a part, answers the head's requests to it, and removes the part when the head says `stop`,
when the connection ends, or when the head is silent for `LEASE_S`. `stream` joins the connection
with a Unix socket of the part, `program` runs a program on one of its nodes.

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
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError, MoefabricError
from moefabric.core.machines import LEASE_S
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import UpRequest, process_id, request
from moefabric.emulator.fabric.datagrams import ServerSockets
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.runtime.processes import usage_of
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed.cluster.greeting import (
    LONGEST_LINE,
    Connection,
    authenticate,
    read_message,
    write_message,
)
from moefabric.testbed.cluster.programs import run_program
from moefabric.testbed.cluster.streams import join
from moefabric.testbed.fabric_processes import fabric_processes

_CPU: Final = Path("/proc/stat")
Message = dict[str, Any]


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

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client to the end of its connection."""
        try:
            if await authenticate((reader, writer), self._secret):
                await self._serve_request(await read_message(reader), (reader, writer))
        except (MoefabricError, KeyError, ValueError) as error:
            write_message(writer, {"error": str(error)})
        except (OSError, EOFError):  # the client has gone
            return
        finally:
            writer.close()

    async def _serve_request(self, message: Message, connection: Connection) -> None:
        match message.get("do"):
            case "part":
                await self._hold_part(message, connection)
            case "stream":
                path = _socket_path(message["fabric"], message["path"])
                try:
                    target = await asyncio.open_unix_connection(str(path))
                except OSError as error:
                    raise FabricError(f"{path}: {error.strerror}") from error
                write_message(connection[1], {})
                await join(connection, target)
            case "program":
                await run_program(message, connection)
            case other:
                raise FabricError(f"{other!r} is not one of part, stream, program")

    async def _hold_part(self, message: Message, connection: Connection) -> None:
        """Make this machine's part of a fabric, and keep it until the head stops it or dies."""
        reader, writer = connection
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
                write_message(writer, {"ready": True, "remarks": report["remarks"]})
                await self._answer_head(held, reader, writer)
            finally:
                held.close()
                await asyncio.to_thread(lifecycle.down, name, force=True)
                write_message(writer, {"stopped": True})
                self.part_ended.set()

    async def _answer_head(
        self, part: "HeldPart", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of a part's head until it says `stop`, is silent or gone."""
        with suppress(TimeoutError, OSError, EOFError):
            while True:
                async with asyncio.timeout(self._lease_s):
                    message = await read_message(reader)
                if message.get("do") == "stop":
                    return
                write_message(writer, await part.reply(message))
                await writer.drain()


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
        """Return the counters of the NICs of this machine's servers."""
        if self._counters is None:
            self._counters = EmulatedPortCounters(self.run_dir)
        reading = self._counters.read()
        return {
            "nics": self._counters.nics,
            "bytes": reading.bytes.tolist(),
            "frames": reading.frames.tolist(),
            "counts_light": reading.counts_light,
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
    parser.add_argument("--port", type=int, default=0, help="TCP port; default: any")
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
    server = await asyncio.start_server(
        service.answer, options.listen, options.port, limit=LONGEST_LINE
    )
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
