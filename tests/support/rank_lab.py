"""Ranks with PyTorch on loopback: agents as processes, and a loop that plans one flow a pair."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.errors import AgentError
from moefabric.core.exchange import Exchange
from moefabric.core.flows import PacedFlow
from tests.support.agents_lab import agent

LOOK_NS = 50_000_000


class Agents:
    """Agents of some servers as processes on loopback, and their fleet."""

    def __init__(self, folder: Path, servers: Sequence[str]) -> None:
        self.servers, self._undo = list(servers), ExitStack()
        started = {name: self._undo.enter_context(agent(name, folder)) for name in servers}
        self.processes = {name: process for name, (_, process) in started.items()}
        self.fleet = self._undo.enter_context(Fleet(channel for channel, _ in started.values()))
        paths = [DataPath(*pair, "e0", "127.0.0.1") for pair in permutations(servers, 2)]
        self.fleet.connect(paths)

    def rank_socket(self, server: str) -> str:
        path: str = self.fleet.facts[server]["ranks"]
        return path

    def close(self) -> None:
        self._undo.close()


@dataclass
class ExchangeLoop:
    """Carries out what ranks ask for, in a thread of its own."""

    fleet: Fleet
    exchanges: list[Exchange] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stopped: bool = False

    def start(self) -> None:
        self.fleet.ranks.start()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self.stopped = True
        self.fleet.wake()
        self._thread.join()

    def _run(self) -> None:
        inflight: dict[int, Exchange] = {}
        while not self.stopped:
            try:
                ended = self.fleet.wait_ended(time.monotonic_ns() + LOOK_NS)
                self._finish(inflight, ended)
                self.fleet.lost_ranks()
                for exchange in self.fleet.take_exchanges():
                    self.exchanges.append(exchange)
                    flows = [PacedFlow(*pair, "e0", n, None) for pair, n in exchange.owed.items()]
                    if flows:
                        inflight[self.fleet.launch(flows, None, 30.0, exchange)] = exchange
                    else:
                        self.fleet.finish(exchange)
            except AgentError as error:
                self.failures.append(str(error))
                if self.fleet.channels:
                    self.fleet.drop([n for n, c in self.fleet.channels.items() if c.gone])

    def _finish(self, inflight: dict[int, Exchange], ended: dict[int, Any]) -> None:
        for number, records in ended.items():
            self.fleet.finish(
                inflight.pop(number), "; ".join(record.why for record in records if not record.ok)
            )


class RankError(Exception):
    """A rank's function raised an error."""


class RankProcess:
    """A process with PyTorch that executes functions."""

    def __init__(self, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        program = Path(__file__).with_name("rank_program.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(theirs.fileno())],
            env=os.environ | environment,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.connection = Connection(ours.detach())

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.connection.send((function.__code__.co_filename, function.__name__, arguments))

    def result(self, deadline_s: float = 60.0) -> Any:
        """Return a function's result; raise RankError if it raised."""
        if not self.connection.poll(deadline_s):
            raise TimeoutError("a rank hangs")
        ok, value = self.connection.recv()
        if not ok:
            raise RankError(value)
        return value

    def close(self) -> None:
        self.connection.close()  # ends the program
        self.process.wait(20)


class Ranks:
    """The ranks of a job."""

    def __init__(self, processes: list[RankProcess]) -> None:
        self.processes = processes

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Have all ranks execute a function; return their results."""
        for process in self.processes:
            process.start(function, *arguments)
        return [process.result() for process in self.processes]

    def errors(self, function: Callable[..., Any], *arguments: Any) -> list[str]:
        """Have all ranks execute a function that raises; return the errors."""
        for process in self.processes:
            process.start(function, *arguments)
        return [error_of(process) for process in self.processes]


def error_of(process: RankProcess) -> str:
    """Return the error that a rank's function raises; its result if there is none."""
    try:
        return f"no error: {process.result()}"
    except RankError as error:
        return str(error)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def ranks_on(sockets: Sequence[str]) -> Iterator[Ranks]:
    """Yield one rank for each agent's socket; empty sockets mean no agent."""
    port = free_port()
    with ExitStack() as undo:
        processes = []
        for rank, path in enumerate(sockets):
            environment = {
                "RANK": str(rank), "WORLD_SIZE": str(len(sockets)), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                "MOEFABRIC_AGENT": path,
            }  # fmt: skip
            processes.append(RankProcess(environment))
            undo.callback(processes[-1].close)
        yield Ranks(processes)
