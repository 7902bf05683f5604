"""A hundred thousand wrong inputs for a switch's process: it lives, its memory is flat, its cross-connects are as they were."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from emulator.crossbar import BpfCrossbar
from emulator.light import Ports
from emulator.mirrors import BPF
from emulator.plant import Plant, listening_within
from tests.kernel.optical_bench import missing_for_kernel_tests
from tests.ocs_fuzz import inputs

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
    pytest.mark.timeout(400),
]

INPUTS, A_CLIENT, WARM_UP = 100_000, 500, 10_000
JOINED = "(@1,2),(@14,13)"
GROWTH_BYTES = 4 << 20


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], tuple[str, int]]]:
    """A process that serves a switch of 12 ports, and where."""
    with ExitStack() as held:
        crossbar = held.enter_context(contextlib.closing(BpfCrossbar.create(Ports(12, 12))))
        listener = held.enter_context(listening_within(None, "127.0.0.1", 0))
        facts = {"crossbar": BPF, "ports": 12, "settle_ns": 0, "serial": "1"}
        plant = Plant(folder / "ocs0.plant", facts, [crossbar.fd, listener.fileno()])
        held.callback(plant.close)
        command = [sys.executable, "-m", "emulator.ocs", "--plant", str(plant.path)]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        held.callback(process.wait, 10)
        held.callback(process.terminate)
        plant.wait_ready(deadline_s=20)
        yield process, listener.getsockname()


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def feed(where: tuple[str, int], said: list[bytes]) -> None:
    """One client that says all this, reads what it is told, and goes."""
    with socket.create_connection(where, timeout=10) as client:
        for data in said:
            client.sendall(data)
            if select.select([client], [], [], 0)[0]:
                client.recv(1 << 16)
        client.sendall(b"\n:oxc:swit:size?\n")
        heard = b""
        while not heard.endswith(b"12,12\n"):
            part = client.recv(1 << 16)
            assert part, "hung up"
            heard = (heard + part)[-4096:]


def test_a_hundred_thousand_wrong_inputs_leave_the_process_as_it_was(tmp_path: Path) -> None:
    with served(tmp_path) as (process, where):
        feed(where, [b":oxc:swit:conn:add (@1,2),(@14,13)\n"])
        wrong = inputs(seed=int.from_bytes(b"ocs"), number=INPUTS)
        before, started = 0, time.monotonic()
        for turn in range(INPUTS // A_CLIENT):
            if turn == WARM_UP // A_CLIENT:
                before = resident(process.pid)
            feed(where, [next(wrong) for _ in range(A_CLIENT)])
        grown = resident(process.pid) - before
        took = time.monotonic() - started
        assert process.poll() is None
        with socket.create_connection(where, timeout=10) as client, client.makefile() as said:
            client.sendall(b":oxc:swit:conn:stat?\n")
            assert said.readline() == f"{JOINED}\n"
    print(f"\n{INPUTS} wrong inputs in {took:.0f} s; the process's memory grew by {grown / 1024:.0f} kB")
    assert grown < GROWTH_BYTES
