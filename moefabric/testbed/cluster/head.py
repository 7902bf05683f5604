"""Process of the head that holds a fabric's parts on other machines.

It has the machine services make the parts, keeps their leases, measures their clocks, and answers
two kinds of clients at Unix sockets of the head's run directory: the fabric process, whose requests
go to all parts (`other_machines.ask_parts`), and clients of agents and OCS devices, whose
connections lead to the sockets of the same names on the other machines.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from moefabric.agents.fleet.clocks import clock_offset
from moefabric.core.errors import FabricError, MoefabricError
from moefabric.core.machines import LEASE_S
from moefabric.emulator.fabric.other_machines import OtherMachine, read_machines
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed.cluster.connection import LONGEST_LINE, Connection, Message

_HEARTBEAT_S: Final = 2.0
_HEARTBEAT_REPLY_S: Final = 4.0
REPLY_S: Final = 15.0
"""A busy machine may take seconds to read all counters of its part."""
_STOP_S: Final = 8.0
_READY_S: Final = 60.0
"""Limit until a part is ready."""


class PartLink:
    """A connection to a part, on which replies have the order of requests.

    Attributes:
        lost: Why the part is lost; empty while it is up.
        clock: The machine's clock minus the head's, as measured last: `offset_ns`, the largest
            error `uncertainty_ns`, and the instant `at_ns` by the head's clock. Empty before.
        removed: Set when the part is removed by a command on its machine.
    """

    def __init__(self, connection: Connection, lease_s: float = LEASE_S) -> None:
        self._connection, self._lease_s = connection, lease_s
        self._waiting = deque[asyncio.Future[Message]]()
        self._streams = set[Connection]()
        self._last_message_s = time.monotonic()
        self._replies = asyncio.create_task(self._read_replies())
        self.lost = ""
        self.clock: dict[str, int] = {}
        self.removed = asyncio.Event()

    async def ask(self, message: Message, timeout_s: float = REPLY_S) -> Message:
        """Send a request and return the reply, or an `error` without one."""
        if self.lost:
            return {"error": self.lost}
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        self._connection.write(message)
        try:
            return dict(await asyncio.wait_for(asyncio.shield(reply), timeout_s))
        except TimeoutError:
            return {"error": f"no answer within {timeout_s:g} s"}

    async def watch(self) -> None:
        """Send heartbeats until the part is lost or removed."""
        while not self.lost:
            await self._check()
            await asyncio.sleep(_HEARTBEAT_S)

    async def _check(self) -> None:
        """Send a heartbeat, measure the clock, and notice the end of the part."""
        sent_ns = time.monotonic_ns()
        reply = await self.ask({"do": "alive"}, min(_HEARTBEAT_REPLY_S, self._lease_s))
        received_ns = time.monotonic_ns()
        if "now_ns" in reply:
            clock = clock_offset([(sent_ns, reply["now_ns"], received_ns)])
            self.clock = {
                "offset_ns": clock.offset_ns,
                "uncertainty_ns": clock.uncertainty_ns,
                "at_ns": received_ns,
            }
            if not reply["runs"]:
                self.lose("its part has ended")
                if not reply["exists"]:
                    self.removed.set()
        elif time.monotonic() - self._last_message_s > self._lease_s:
            self.lose(f"silent for {self._lease_s:g} s")

    @contextmanager
    def stream(self, connection: Connection) -> Iterator[None]:
        """Register a stream of the machine, which ends with the part."""
        self._streams.add(connection)
        try:
            yield
        finally:
            self._streams.discard(connection)

    def lose(self, reason: str) -> None:
        """Record the loss of the part, and end its streams and pending requests."""
        self.lost = self.lost or reason
        for connection in (self._connection, *self._streams):
            connection.writer.transport.abort()
        while self._waiting:
            reply = self._waiting.popleft()
            if not reply.done():
                reply.set_result({"error": self.lost})

    async def _read_replies(self) -> None:
        with suppress(OSError, EOFError, ValueError):
            while True:
                message = await self._connection.read()
                self._last_message_s = time.monotonic()
                if self._waiting and not (reply := self._waiting.popleft()).done():
                    reply.set_result(message)
        self.lose("its connection has ended")


class Head:
    """The parts of a fabric on other machines, and the sockets that lead to them.

    Args:
        run_dir: The head's run directory.
    """

    def __init__(self, run_dir: RunDirectory) -> None:
        self._run_dir = run_dir
        self._request = {"do": "part", "token": run_dir.read_token(), "timeout_s": _READY_S}
        self._others = read_machines(run_dir)
        self._links: dict[str, PartLink] = {}
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Hold the parts until SIGTERM, a request to stop, or the removal of a part.

        Raises:
            FabricError: if a part can't be made; names its machine.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        wiring = self._run_dir.wiring_file.read_text()
        links = await asyncio.gather(*(self._make(other, wiring) for other in self._others))
        self._links = {
            other.machine.name: link for other, link in zip(self._others, links, strict=True)
        }
        async with AsyncExitStack() as undo:
            for other in self._others:
                for name in other.sockets:
                    forward = partial(self._forward, other, name)
                    await undo.enter_async_context(await _unix_server(forward, self._run_dir, name))
            watches = [asyncio.create_task(link.watch()) for link in links]
            socket = self._run_dir.machines_socket.name
            await undo.enter_async_context(await _unix_server(self._answer, self._run_dir, socket))
            removal = asyncio.create_task(self._await_removal())
            await self._ended.wait()
            for task in (*watches, removal):
                task.cancel()

    async def _make(self, other: OtherMachine, wiring: str) -> PartLink:
        """Have a machine make its part."""
        name = other.machine.name
        connection = await Connection.to(other.machine)
        try:
            await connection.request({**self._request, "wiring": wiring, "machine": name})
        except (EOFError, FabricError) as error:
            raise FabricError(f"machine {name}: {error}") from error
        return PartLink(connection)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a request with the replies of all parts."""
        connection = Connection(reader, writer)
        with suppress(OSError, EOFError, ValueError):
            message = await connection.read()
            if message.get("do") == "clocks":
                parts = {name: link.clock for name, link in self._links.items() if link.clock}
            else:
                links = {name: link for name, link in self._links.items() if not link.lost}
                limit_s = _STOP_S if message.get("do") == "stop" else REPLY_S
                replies = (link.ask(message, limit_s) for link in links.values())
                parts = dict(zip(links, await asyncio.gather(*replies), strict=True))
            lost = {name: link.lost for name, link in self._links.items() if link.lost}
            connection.write({"parts": parts, "lost": lost})
            await writer.drain()
            if message.get("do") == "stop":
                self._ended.set()
        writer.close()

    async def _forward(
        self,
        other: OtherMachine,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Join a client with the socket of the same name on another machine."""
        link = self._links[other.machine.name]
        try:
            remote = await Connection.to(other.machine)
            await remote.request({"do": "stream", "fabric": self._run_dir.name, "path": name})
        except (MoefabricError, OSError, EOFError) as error:
            sys.stderr.write(f"{name}: {error}\n")
            writer.close()
            return
        with link.stream(remote):
            await Connection(reader, writer).join(remote)

    async def _await_removal(self) -> None:
        """End the fabric if a part is removed by `down` on its machine."""
        removed = [asyncio.create_task(link.removed.wait()) for link in self._links.values()]
        await asyncio.wait(removed, return_when=asyncio.FIRST_COMPLETED)
        socket = await asyncio.open_unix_connection(str(self._run_dir.control_socket))
        connection = Connection(*socket)
        connection.write({"do": "stop"})
        await connection.writer.drain()


async def _unix_server(answer: Any, run_dir: RunDirectory, name: str) -> asyncio.AbstractServer:
    """Listen at a Unix socket that only root may use."""
    path = run_dir.path / name
    server = await asyncio.start_unix_server(answer, str(path), limit=LONGEST_LINE)
    path.chmod(0o600)
    return server


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m moefabric.testbed.cluster.head --run-dir RUN_DIR`."""
    parser = argparse.ArgumentParser(prog="head", description=__doc__)
    parser.add_argument("--run-dir", required=True, type=Path)
    options = parser.parse_args(arguments)
    try:
        run_dir = RunDirectory(options.run_dir)
        asyncio.run(Head(run_dir).run())
    except (MoefabricError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
