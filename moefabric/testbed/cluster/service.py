"""Machine service: makes, holds and removes a machine's parts of fabrics, as their heads ask.

A head connects (`greeting`) and sends one message that names the purpose of the connection. `part`
makes a part, answers the head's requests to it, and removes the part when the head says `stop`,
when the connection ends, or when the head is silent for `LEASE_S`. `stream` joins the connection
with a Unix socket of the part, `program` runs a program on one of its nodes.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError, MoefabricError
from moefabric.core.machines import LEASE_S
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import process_id, request
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

_CPU: Final = Path("/proc/stat")
Message = dict[str, Any]


class MachineService:
    """The service of one machine, for any number of fabrics.

    Args:
        secret: Shared secret, by which the service and the heads authenticate each other.
        processes: The processes of a fabric.
        lease_s: Silence of a head after which its part ends.
    """

    def __init__(
        self, secret: str, processes: lifecycle.ProcessList, lease_s: float = LEASE_S
    ) -> None:
        self._secret, self._processes, self._lease_s = secret, processes, lease_s
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._part_ended = asyncio.Event()

    async def serve(
        self, address: str, port: int, ready: Callable[[int], None], *, once: bool = False
    ) -> None:
        """Serve until cancelled, and remove the parts that are up then.

        Args:
            address: IPv4 address to listen at.
            port: TCP port; 0 for any.
            ready: called with the port once the service listens.
            once: end with the first part.
        """
        server = await asyncio.start_server(self._answer, address, port, limit=LONGEST_LINE)
        async with server:
            ready(server.sockets[0].getsockname()[1])
            if once:
                await self._part_ended.wait()
            else:
                await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        part = lifecycle.PartRequest(wiring, message["machine"], message["token"], timeout_s)
        name = wiring.fabric.name
        async with self._locks[name]:
            report = await asyncio.to_thread(lifecycle.up_part, part, self._processes, os.getpid())
            held = HeldPart(named_run_directory(name))
            try:
                write_message(writer, {"ready": True, "remarks": report["remarks"]})
                await self._answer_head(held, reader, writer)
            finally:
                held.close()
                await asyncio.to_thread(lifecycle.down, name, force=True)
                write_message(writer, {"stopped": True})
                self._part_ended.set()

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
        try:
            if message.get("do") == "alive":
                return self._heartbeat()
            if message.get("do") == "counts":
                return await asyncio.to_thread(self._counts)
            if message.get("do") == "datagrams":
                return await asyncio.to_thread(self._datagrams.reply, message)
            if message.get("do") == "usage":
                return await asyncio.to_thread(self._usage)
            return await asyncio.to_thread(request, self.run_dir, message)
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
