"""The optical switch as a process: handed its mirrors by the fabric, told by SCPI over TCP, seen by real frames."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from emulator import namespaces
from emulator.crossbar import BpfCrossbar
from emulator.light import Ports
from emulator.mirrors import BPF, MIRRED, Mirrors, choose
from emulator.plant import Plant, listening_within
from tests.kernel.optical_bench import Wires, address, heard, missing_for_kernel_tests

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

PORTS, SETTLE_NS, LINK_UP_NS = 4, 20_000_000, 10_000_000
WITHOUT_PRIVILEGE = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


class Ocs:
    """A switch of four ports with a host on each, its plant, and the processes that serve it."""

    def __init__(self, run_dir: Path, held: ExitStack, crossbar: str = BPF) -> None:
        self.run_dir, self._held = run_dir, held
        self.wires = held.enter_context(Wires(PORTS))
        there = self.wires.path(self.wires.ocs)
        self.mirrors = Mirrors(crossbar, Ports(PORTS, PORTS), self.wires.plug_in(), there)
        held.callback(self.mirrors.close)
        self.listener = listening_within(there, "127.0.0.1", 5025)
        held.callback(self.listener.close)
        facts = {**self.mirrors.facts, "settle_ns": SETTLE_NS, "link_up_ns": LINK_UP_NS, "serial": "000001"}
        self.plant = Plant(run_dir / "ocs0.plant", facts, (self.mirrors.fd, self.listener.fileno()))
        held.callback(self.plant.close)

    @property
    def crossbar(self) -> BpfCrossbar:
        """The same mirrors, as the fabric sees them."""
        crossbar = BpfCrossbar(Ports(PORTS, PORTS), os.dup(self.mirrors.fd))
        self._held.callback(crossbar.close)
        return crossbar

    def start(self, plant: Path, *before: str) -> subprocess.Popen[bytes]:
        command = [*before, sys.executable, "-m", "emulator.ocs", "--plant", str(plant)]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        self._held.callback(process.wait, 10)
        self._held.callback(process.terminate)
        self.plant.wait_ready(deadline_s=20)
        return process

    def client(self) -> socket.socket:
        sock = namespaces.within(self.wires.path(self.wires.ocs), socket.socket)
        self._held.callback(sock.close)
        sock.settimeout(5)
        sock.connect(("127.0.0.1", 5025))
        return sock

    def asked(self, line: str) -> str:
        with self.client() as sock:
            sock.sendall(line.encode() + b"\n")
            with sock.makefile() as replies:
                return replies.readline().rstrip("\n")


@pytest.fixture
def ocs(tmp_path: Path) -> Iterator[Ocs]:
    with ExitStack() as held:
        yield Ocs(tmp_path, held)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_scpi_moves_the_light_that_carries_frames_and_needs_no_privilege(ocs: Ocs) -> None:
    process = ocs.start(ocs.plant.path, *WITHOUT_PRIVILEGE)
    one, two = ocs.wires.udp(1), ocs.wires.udp(2)
    one.sendto(b"unlit", address(2))
    assert ocs.asked("*idn?") == "Polatis,N-OST-4x4-LU1-DMHNS,000001,6.5.2.18"
    assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    one.sendto(b"lit", address(2))
    two.sendto(b"back", address(1))
    assert (heard(two), heard(one)) == ([b"lit"], [b"back"])
    assert ocs.asked(":oxc:swit:conn:only (@1),(@7);stat?") == "(@1),(@7)"
    one.sendto(b"dark", address(2))
    assert heard(two) == []
    assert (ocs.crossbar.counters()[1].dropped_unlit, ocs.crossbar.counters()[1].dropped_dark) == (1, 1)
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status


def test_light_outlives_the_process_and_the_next_one_carries_on(ocs: Ocs) -> None:
    first = ocs.start(ocs.plant.path)
    assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    before = ocs.crossbar.show()
    first.kill()
    first.wait(timeout=5)
    one, two = ocs.wires.udp(1), ocs.wires.udp(2)
    one.sendto(b"nobody is there", address(2))
    assert heard(two) == [b"nobody is there"]
    ocs.start(ocs.plant.path)
    assert ocs.asked(":oxc:swit:conn:stat?") == "(@1,2),(@6,5)"
    assert ocs.asked(":oxc:swit:conn:add (@3),(@8);*opc?") == "1"
    one.sendto(b"still lit", address(2))
    assert heard(two) == [b"still lit"]
    assert {p: ocs.crossbar.show()[p] for p in before} == before


def test_complete_is_said_when_links_are_up_again_and_frames_pass(ocs: Ocs) -> None:
    ocs.start(ocs.plant.path)
    before = time.monotonic_ns()
    assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    took_ns = time.monotonic_ns() - before
    assert SETTLE_NS + LINK_UP_NS <= took_ns < SETTLE_NS + LINK_UP_NS + 1_000_000_000
    one, two = ocs.wires.udp(1), ocs.wires.udp(2)
    one.sendto(b"lit", address(2))
    assert heard(two) == [b"lit"]


def test_without_bpf_the_process_moves_tc_filters_instead(tmp_path: Path) -> None:
    with ExitStack() as held:
        ocs = Ocs(tmp_path, held, crossbar=MIRRED)
        first = ocs.start(ocs.plant.path)
        one, two = ocs.wires.udp(1), ocs.wires.udp(2)
        assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
        threading.Event().wait(0.1)  # its own thread lights it up, soon after the instant
        one.sendto(b"lit", address(2))
        assert heard(two) == [b"lit"]
        first.kill()
        first.wait(timeout=5)
        ocs.start(ocs.plant.path)
        assert ocs.asked(":oxc:swit:conn:stat?") == "(@1,2),(@6,5)"
        assert ocs.asked(":oxc:swit:disc:all;*opc?") == "1"
        one.sendto(b"unlit", address(2))
        assert heard(two) == []


def test_the_best_crossbar_that_works_is_chosen() -> None:
    assert choose() == (BPF, None)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(ocs: Ocs, sent: signal.Signals) -> None:
    process = ocs.start(ocs.plant.path)
    process.send_signal(sent)
    assert process.wait(timeout=5) == 0


def test_it_ends_with_the_fabric(ocs: Ocs) -> None:
    process = ocs.start(ocs.plant.path)
    ocs.plant.close()
    assert process.wait(timeout=5) == 0


def test_a_directory_is_served_plant_by_plant_for_as_long_as_each_lives(ocs: Ocs) -> None:
    process = ocs.start(ocs.run_dir.parent)
    assert ocs.asked("*stb?") == "0"
    facts = {**ocs.plant.facts, "serial": "000002"}
    ocs.plant.close()
    ocs.plant = Plant(ocs.run_dir / "ocs0.plant", facts, (ocs.mirrors.fd, ocs.listener.fileno()))
    try:
        ocs.plant.wait_ready(deadline_s=20)
        assert ",000002," in ocs.asked("*idn?")
        process.terminate()
        assert process.wait(timeout=10) == 0
        assert not ocs.plant.served
    finally:
        ocs.plant.close()


def test_a_fabric_that_never_comes_is_one_line_and_status_1(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "emulator.ocs",
        "--plant",
        str(tmp_path / "no.plant"),
        "--deadline",
        "0.2",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=20, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"plant: nobody listens on {tmp_path}/no.plant: {os.strerror(2)}\n"


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_another_user_is_turned_away(ocs: Ocs) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        plant = Plant(Path(name) / "ocs0.plant", ocs.plant.facts, (ocs.mirrors.fd,))
        try:
            plant.path.chmod(0o666)
            look = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(64))"
            nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"]
            command = [*nobody, "-c", look, str(plant.path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        finally:
            plant.close()
    assert (done.stdout, done.stderr) == ("b''\n", "")
