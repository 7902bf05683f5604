"""A hundred thousand wrong inputs by TL1, and as many by RESTCONF, for a switch's process: it lives, its memory is flat, its light stays."""

import contextlib
import itertools
import os
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from emulator.crossbar import BpfCrossbar
from emulator.light import Light, Ports
from emulator.mirrors import BPF
from emulator.plant import Plant, listening_within
from tests.kernel.optical_bench import missing_for_kernel_tests
from tests.ocs_wrong_words import TL1_LOG_IN, request, restconf_inputs, tl1_inputs

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
    pytest.mark.timeout(900),
]

INPUTS, WARM_UP = 100_000, 20_000
LIGHTS = {1: Light(14, 0), 2: Light(13, 0)}
GROWTH_BYTES = 4 << 20
Where = tuple[str, int]


class Served:
    """A process that serves a switch of 12 ports whose mirrors are lit already."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self.crossbar = held.enter_context(contextlib.closing(BpfCrossbar.create(Ports(12, 12))))
        self.crossbar.load(LIGHTS)
        listeners = {
            name: held.enter_context(listening_within(None, "127.0.0.1", 0)) for name in ("tl1", "restconf")
        }
        self.where: dict[str, Where] = {name: listener.getsockname() for name, listener in listeners.items()}
        facts = {"crossbar": BPF, "ports": 12, "settle_ns": 0, "serial": "1", "listening": list(listeners)}
        fds = [self.crossbar.fd, *(listener.fileno() for listener in listeners.values())]
        plant = Plant(folder / "ocs0.plant", facts, fds)
        held.callback(plant.close)
        command = [sys.executable, "-m", "emulator.ocs", "--plant", str(plant.path)]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        held.callback(self.process.wait, 10)
        held.callback(self.process.terminate)
        plant.wait_ready(deadline_s=20)

    @property
    def resident_bytes(self) -> int:
        """The memory that the process has."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    with ExitStack() as held:
        yield Served(folder, held)


WORDS = (b" COMPLD", b" DENY", b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 500", b"HTTP/1.1 501")


def said(where: Where, inputs: list[bytes]) -> Counter[bytes]:
    """What one client is told that says all this, and hears the switch out."""
    heard: Counter[bytes] = Counter()
    # Some are hung up on before they have said everything.
    with socket.create_connection(where, timeout=30) as client, contextlib.suppress(OSError):
        for data in inputs:
            client.sendall(data)
            if select.select([client], [], [], 0)[0]:
                heard.update(_counted(client.recv(1 << 16)))
        client.shutdown(socket.SHUT_WR)
        while part := client.recv(1 << 16):
            heard.update(_counted(part))
    return heard


def _counted(part: bytes) -> dict[bytes, int]:
    return {word: part.count(word) for word in WORDS}


def answered(where: Where, asked: bytes, wanted: bytes) -> bytes:
    """What a new client hears until this comes."""
    heard = b""
    with socket.create_connection(where, timeout=30) as client:
        client.sendall(asked)
        while wanted not in heard:
            part = client.recv(1 << 16)
            assert part, f"hung up after {heard!r}"
            heard += part
    return heard


ASKED: dict[str, tuple[bytes, bytes]] = {
    "tl1": (TL1_LOG_IN + b"RTRV-PATCH:::2:;", b'   "1,14"\r\n   "2,13"\r\n;'),
    "restconf": (
        request(b"GET", b"/api/data/cross-connects"),
        b'{"pair":[{"ingress":1,"egress":14},{"ingress":2,"egress":13}]}',
    ),
}


@pytest.mark.parametrize(
    ("language", "inputs", "a_client"),
    [
        pytest.param("tl1", tl1_inputs, 250, id="tl1"),
        # Who says what is no HTTP is hung up on, and not heard any further.
        pytest.param("restconf", restconf_inputs, 1, id="restconf"),
    ],
)
def test_a_hundred_thousand_wrong_inputs_leave_the_process_as_it_was(
    tmp_path: Path, language: str, inputs: Callable[[int, int], Iterator[bytes]], a_client: int
) -> None:
    with served(tmp_path) as switch:
        wrong, heard = inputs(20260101, INPUTS), Counter[bytes]()
        before, started = 0, time.monotonic()
        for turn, some in enumerate(iter(lambda: list(itertools.islice(wrong, a_client)), [])):
            if turn == WARM_UP // a_client:
                before = switch.resident_bytes
            heard.update(said(switch.where[language], some))
        for other, (asked, wanted) in ASKED.items():
            answered(switch.where[other], asked, wanted)
        grown, took = switch.resident_bytes - before, time.monotonic() - started
        assert switch.process.poll() is None
        lit = {port: light.out_port for port, light in switch.crossbar.show().items()}
    told = ", ".join(f"{number} x {word.decode().strip()}" for word, number in heard.items() if number)
    print(f"\n{language}: {INPUTS} inputs in {took:.0f} s; memory grew by {grown / 1024:.0f} kB; {told}")
    assert lit == {1: 14, 2: 13}
    assert heard[b"HTTP/1.1 500"] == 0
    assert grown < GROWTH_BYTES
