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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from emulator import namespaces
from emulator.asking import ask, events
from emulator.carrier import Carrier
from emulator.crossbar import BpfCrossbar
from emulator.light import Ports
from emulator.loop import Timers
from emulator.mirrors import BPF, MIRRED, Mirrors, choose
from emulator.plant import Links, Plant, listening_within
from emulator.waiting import Deadline
from moefabric.errors import FabricError
from tests.kernel.carrier_bench import CarrierWatch
from tests.kernel.optical_bench import Wires, address, heard, missing_for_kernel_tests

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

PORTS, SETTLE_NS, LINK_UP_NS = 4, 20_000_000, 10_000_000
WITHOUT_PRIVILEGE = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


class Ocs:
    """A switch of four ports with a host on each, its plant, and the processes that serve it."""

    def __init__(
        self, run_dir: Path, held: ExitStack, crossbar: str = BPF, *, link_down: bool = False, **more: object
    ) -> None:
        self.run_dir, self._held = run_dir, held
        self.wires = held.enter_context(Wires(PORTS))
        there = self.wires.path(self.wires.ocs)
        self.mirrors = Mirrors(crossbar, Ports(PORTS, PORTS), self.wires.plug_in(), there)
        held.callback(self.mirrors.close)
        self.listener = listening_within(there, "127.0.0.1", 5025)
        held.callback(self.listener.close)
        facts = {**self.mirrors.facts, "settle_ns": SETTLE_NS, "link_up_ns": LINK_UP_NS, "serial": "000001"}
        facts |= {"link_down": link_down, **more}

        def links(timers: Timers) -> Callable[[Links], None]:
            carrier = Carrier({port: f"p{port}" for port in self.wires.hosts}, there, timers)
            held.callback(carrier.close)
            return carrier.change

        fds = (self.mirrors.fd, self.listener.fileno())
        self.plant = Plant(run_dir / "ocs0.plant", facts, fds, links if link_down else None)
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

    def until_kept(self, enough: Callable[[dict[str, Any]], bool]) -> None:
        """Return when the fabric has been told so much of what outlives the process."""
        Deadline.after(10).until(
            lambda: "memory" in self.plant.facts and enough(self.plant.facts["memory"]), "the memory"
        )

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


def orphaned(ocs: Ocs) -> tuple[socket.socket, socket.socket]:
    """A circuit that its process has lit before it is killed, and that carries a frame all the same: its two ends."""
    first = ocs.start(ocs.plant.path)
    assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    first.kill()
    first.wait(timeout=5)
    one, two = ocs.wires.udp(1), ocs.wires.udp(2)
    one.sendto(b"nobody is there", address(2))
    assert heard(two) == [b"nobody is there"]
    return one, two


def test_light_outlives_the_process_and_the_next_one_carries_on(ocs: Ocs) -> None:
    one, two = orphaned(ocs)
    before = ocs.crossbar.show()
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


def test_the_link_is_down_without_light_and_until_some_time_after_it_is_back(tmp_path: Path) -> None:
    with ExitStack() as held:
        ocs = Ocs(tmp_path, held, link_down=True)
        watch = held.enter_context(CarrierWatch(ocs.wires.path(ocs.wires.host(2))))
        ocs.start(ocs.plant.path)
        watch.until(False)
        commanded = time.monotonic_ns()
        assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
        lit_at = ocs.crossbar.show()[1].lit_at_ns
        assert commanded + SETTLE_NS <= lit_at < commanded + SETTLE_NS + 500_000_000
        assert watch.until(True) >= lit_at + LINK_UP_NS
        one, two = ocs.wires.udp(1), ocs.wires.udp(2)
        one.sendto(b"lit", address(2))
        assert heard(two) == [b"lit"]
        assert ocs.asked(":oxc:swit:conn:add (@3,4),(@8,7);*opc?") == "1"
        one.sendto(b"still lit", address(2))
        assert heard(two) == [b"still lit"]
        assert ocs.asked(":oxc:swit:conn:sub (@1),(@6);*opc?") == "1"
        watch.until(False)


def test_a_volatile_switch_is_dark_after_a_crash_of_its_process(tmp_path: Path) -> None:
    with ExitStack() as held:
        ocs = Ocs(tmp_path, held, profile={"startup": "volatile"})
        one, two = orphaned(ocs)
        ocs.start(ocs.plant.path)
        assert ocs.asked(":oxc:swit:conn:stat?") == "(@),(@)"
        one.sendto(b"dark", address(2))
        assert heard(two) == []


def test_what_is_shut_or_suffered_outlives_the_process_too(ocs: Ocs) -> None:
    first = ocs.start(ocs.plant.path)
    assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);:oxc:swit:port:dis (@1);*opc?") == "1"
    ask(ocs.plant.path, {"do": "inject", "fault": {"ill": "port", "ports": [4]}})
    ocs.until_kept(lambda memory: memory["shut"] == [1] and len(memory["faults"]) == 1)
    first.kill()
    first.wait(timeout=5)
    ocs.start(ocs.plant.path)
    assert ocs.asked(":oxc:swit:port:stat? (@1:4)") == "(D,E,E,F)"
    assert ocs.asked(":oxc:swit:conn:stat?") == "(@1,2),(@6,5)"
    assert ask(ocs.plant.path, {"do": "heal"})["faults"] == []
    assert ocs.asked(":oxc:swit:port:enab (@1);*opc?") == "1"
    one, two = ocs.wires.udp(1), ocs.wires.udp(2)
    one.sendto(b"lit", address(2))
    assert heard(two) == [b"lit"]


def test_faults_are_injected_and_cleared_from_outside_and_told_in_the_stream(ocs: Ocs) -> None:
    ocs.start(ocs.plant.path)
    assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    said = ask(ocs.plant.path, {"do": "inject", "fault": {"ill": "port", "ports": [6]}})
    assert said["faults"] == [{"ill": "port", "ports": [6], "value": 0.0, "times": None, "number": 1}]
    one, two = ocs.wires.udp(1), ocs.wires.udp(2)
    one.sendto(b"dark", address(2))
    two.sendto(b"lit", address(1))
    assert (heard(two), heard(one)) == ([], [b"lit"])
    assert ask(ocs.plant.path, {"do": "heal", "number": 1})["faults"] == []
    assert ocs.asked("*opc?") == "1"
    one.sendto(b"lit again", address(2))
    assert heard(two) == [b"lit again"]
    with pytest.raises(FabricError, match="ocs0: there is no fault 1"):
        ask(ocs.plant.path, {"do": "heal", "number": 1})
    kinds = [event["kind"] for _, event in events({"ocs0": ocs.plant.path}, follow=False)]
    assert kinds == [
        *("started", "changed", "settled", "fault", "port-failed", "power-low"),
        *("fault-cleared", "port-recovered", "power-clear", "settled"),
    ]


@pytest.mark.parametrize(("after", "joined"), [(0, "(@),(@)"), (1, "(@1),(@6)")])
def test_a_connection_breaks_off_before_a_command_is_done_or_right_after(
    ocs: Ocs, after: int, joined: str
) -> None:
    ocs.start(ocs.plant.path)
    ask(ocs.plant.path, {"do": "inject", "fault": {"ill": "reset", "value": after, "times": 1}})
    with ocs.client() as client:
        client.sendall(b":oxc:swit:conn:add (@1),(@6);*opc?\n")
        with pytest.raises(ConnectionResetError):
            client.recv(16)
    assert ocs.asked(":oxc:swit:conn:stat?") == joined


def test_a_reboot_hangs_up_on_everybody_and_light_stays_if_it_is_preserved(tmp_path: Path) -> None:
    with ExitStack() as held:
        ocs = Ocs(tmp_path, held, profile={"boot_ns": 300_000_000})
        ocs.start(ocs.plant.path)
        assert ocs.asked(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
        with ocs.client() as client:
            client.sendall(b"*opc?\n")
            assert client.recv(16) == b"1\n"
            ask(ocs.plant.path, {"do": "reboot"})
            with pytest.raises(ConnectionResetError):
                client.recv(16)
        with ocs.client() as client, suppress(ConnectionError):
            client.sendall(b"*opc?\n")
            assert client.recv(16) == b"", "nobody answers while it boots"
        one, two = ocs.wires.udp(1), ocs.wires.udp(2)
        one.sendto(b"lit", address(2))
        assert heard(two) == [b"lit"]
        for _, event in events({"ocs0": ocs.plant.path}, follow=True):
            if event["kind"] == "started" and event["words"] == "2 cross-connects":
                break
        assert ocs.asked(":oxc:swit:conn:stat?") == "(@1,2),(@6,5)"


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
