"""Process of an optical switch: handoff, SCPI over TCP, and frames through its crossbar."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar
from moefabric.emulator.crossbar.carrier import Carrier
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.linux import namespaces
from moefabric.emulator.ocs.client import events, request
from moefabric.emulator.ocs.fd_handoff import HandoffServer, listen_in_namespace
from moefabric.runtime.waiting import Deadline
from tests.kernel.carrier_bench import CarrierWatch
from tests.kernel.optical_bench import HostNetwork, address, input_counters, received_datagrams
from tests.support.ocs_process import SCPI_ALONE, start_ocs, wait_served
from tests.support.paths import REPOSITORY

PORTS, SETTLE_NS, LINK_UP_NS = 4, 20_000_000, 10_000_000
WITHOUT_PRIVILEGE = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


class OcsLab:
    """A switch of four ports with a host on each, and the processes that serve it."""

    def __init__(
        self, run_dir: Path, resources: ExitStack, *, link_down: bool = False, **more: object
    ) -> None:
        self.run_dir, self._resources = run_dir, resources
        self.network = resources.enter_context(HostNetwork(PORTS))
        netns = self.network.path(self.network.ocs)
        self.crossbar_fd = self.network.crossbar().fd
        self.listener = listen_in_namespace(netns, "127.0.0.1", 5025)
        resources.callback(self.listener.close)
        facts = {
            "ports": PORTS,
            "profile": {"settle": {"fixed_ns": SETTLE_NS}},
            "link_up": {"fixed_ns": LINK_UP_NS},
            "serial": "000001",
            "listening": SCPI_ALONE,
        }
        facts |= {"link_down": link_down, **more}

        interfaces = {port: f"p{port}" for port in self.network.hosts}
        carrier = partial(Carrier, interfaces, netns) if link_down else None
        fds = (self.crossbar_fd, self.listener.fileno())
        self.handoff = HandoffServer(run_dir / "ocs0.handoff", facts, fds, carrier)
        resources.callback(self.handoff.close)

    @property
    def crossbar(self) -> BpfCrossbar:
        """Another handle of the crossbar."""
        crossbar = BpfCrossbar(Ports(PORTS), os.dup(self.crossbar_fd))
        self._resources.callback(crossbar.close)
        return crossbar

    def start(self, handoff: Path, *prefix: str) -> subprocess.Popen[bytes]:
        """Start a process, and wait until it serves the switch."""
        process = start_ocs(handoff, *prefix)
        self._resources.callback(process.wait, 10)
        self._resources.callback(process.terminate)
        wait_served(self.handoff)
        return process

    def wait_saved(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the fabric has saved a state that fulfils a condition."""
        Deadline.after(10).wait_for(
            lambda: "memory" in self.handoff.facts and condition(self.handoff.facts["memory"]),
            "the saved state",
        )

    def client(self) -> socket.socket:
        """Connect by SCPI."""
        sock = namespaces.run_in(self.network.path(self.network.ocs), socket.socket)
        self._resources.callback(sock.close)
        sock.settimeout(30)
        sock.connect(("127.0.0.1", 5025))
        return sock

    def query(self, line: str) -> str:
        """Send a line by SCPI, and return the reply."""
        with self.client() as sock:
            sock.sendall(line.encode() + b"\n")
            with sock.makefile() as replies:
                return replies.readline().rstrip("\n")


@pytest.fixture
def ocs(tmp_path: Path) -> Iterator[OcsLab]:
    with ExitStack() as resources:
        yield OcsLab(tmp_path, resources)


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_scpi_moves_light_without_privileges(ocs: OcsLab) -> None:
    process = ocs.start(ocs.handoff.path, *WITHOUT_PRIVILEGE)
    one, two = ocs.network.udp(1), ocs.network.udp(2)
    one.sendto(b"unlit", address(2))
    assert ocs.query("*idn?") == "Polatis,N-OST-4x4-LU1-DMHNS,000001,6.5.2.18"
    assert ocs.query(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    one.sendto(b"lit", address(2))
    two.sendto(b"back", address(1))
    assert (received_datagrams(two), received_datagrams(one)) == ([b"lit"], [b"back"])
    assert ocs.query(":oxc:swit:conn:only (@1),(@7);stat?") == "(@1),(@7)"
    one.sendto(b"dark", address(2))
    assert received_datagrams(two) == []
    counters = input_counters(ocs.crossbar)[1]
    assert (counters.dropped_unlit, counters.dropped_dark) == (1, 1)
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status


def kill_after_lighting(ocs: OcsLab) -> tuple[socket.socket, socket.socket]:
    """Light a circuit, kill the process, and check that the circuit still carries frames.

    Returns:
        Sockets at the two ends of the circuit.
    """
    first = ocs.start(ocs.handoff.path)
    assert ocs.query(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    first.kill()
    first.wait(timeout=30)
    one, two = ocs.network.udp(1), ocs.network.udp(2)
    one.sendto(b"nobody is there", address(2))
    assert received_datagrams(two) == [b"nobody is there"]
    return one, two


def test_light_survives_process_and_next_process_takes_over(ocs: OcsLab) -> None:
    one, two = kill_after_lighting(ocs)
    before = ocs.crossbar.cross_connects()
    ocs.start(ocs.handoff.path)
    assert ocs.query(":oxc:swit:conn:stat?") == "(@1,2),(@6,5)"
    assert ocs.query(":oxc:swit:conn:add (@3),(@8);*opc?") == "1"
    one.sendto(b"still lit", address(2))
    assert received_datagrams(two) == [b"still lit"]
    assert ocs.crossbar.cross_connects().items() >= before.items()


def test_opc_query_waits_for_links_and_frames_pass(ocs: OcsLab) -> None:
    ocs.start(ocs.handoff.path)
    before = time.monotonic_ns()
    assert ocs.query(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    duration_ns = time.monotonic_ns() - before
    assert SETTLE_NS + LINK_UP_NS <= duration_ns < SETTLE_NS + LINK_UP_NS + 1_000_000_000
    one, two = ocs.network.udp(1), ocs.network.udp(2)
    one.sendto(b"lit", address(2))
    assert received_datagrams(two) == [b"lit"]


def test_link_is_down_without_light_and_up_after_link_up_time(tmp_path: Path) -> None:
    with ExitStack() as resources:
        ocs = OcsLab(tmp_path, resources, link_down=True)
        watch = resources.enter_context(CarrierWatch(ocs.network.path(ocs.network.host(2))))
        ocs.start(ocs.handoff.path)
        watch.wait(False)
        commanded = time.monotonic_ns()
        assert ocs.query(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
        lit_at = ocs.crossbar.cross_connects()[1, PORTS + 2]
        assert commanded + SETTLE_NS <= lit_at < commanded + SETTLE_NS + 500_000_000
        assert watch.wait(True) >= lit_at + LINK_UP_NS
        one, two = ocs.network.udp(1), ocs.network.udp(2)
        one.sendto(b"lit", address(2))
        assert received_datagrams(two) == [b"lit"]
        assert ocs.query(":oxc:swit:conn:add (@3,4),(@8,7);*opc?") == "1"
        one.sendto(b"still lit", address(2))
        assert received_datagrams(two) == [b"still lit"]
        assert ocs.query(":oxc:swit:conn:sub (@1),(@6);*opc?") == "1"
        watch.wait(False)


def test_dialect_of_an_absent_package_is_left_out(tmp_path: Path) -> None:
    with ExitStack() as resources:
        absent = {"lab": "absent_package.dialect:LAB"}
        ocs = OcsLab(tmp_path, resources, listening=absent)
        process = ocs.start(ocs.handoff.path)
        assert request(ocs.handoff.path, {"do": "show"})["faults"] == []
        assert process.poll() is None


def test_volatile_switch_is_dark_after_crash(tmp_path: Path) -> None:
    with ExitStack() as resources:
        ocs = OcsLab(tmp_path, resources, profile={"startup": "volatile"})
        one, two = kill_after_lighting(ocs)
        ocs.start(ocs.handoff.path)
        assert ocs.query(":oxc:swit:conn:stat?") == "(@),(@)"
        one.sendto(b"dark", address(2))
        assert received_datagrams(two) == []


def test_shutters_and_faults_survive_process(ocs: OcsLab) -> None:
    first = ocs.start(ocs.handoff.path)
    assert ocs.query(":oxc:swit:conn:add (@1,2),(@6,5);:oxc:swit:port:dis (@1);*opc?") == "1"
    request(ocs.handoff.path, {"do": "inject", "fault": {"kind": "port", "ports": [4]}})
    ocs.wait_saved(lambda memory: memory["shut"] == [1] and len(memory["faults"]) == 1)
    first.kill()
    first.wait(timeout=30)
    ocs.start(ocs.handoff.path)
    assert ocs.query(":oxc:swit:port:stat? (@1:4)") == "(D,E,E,F)"
    assert ocs.query(":oxc:swit:conn:stat?") == "(@1,2),(@6,5)"
    assert request(ocs.handoff.path, {"do": "clear"})["faults"] == []
    assert ocs.query(":oxc:swit:port:enab (@1);*opc?") == "1"
    one, two = ocs.network.udp(1), ocs.network.udp(2)
    one.sendto(b"lit", address(2))
    assert received_datagrams(two) == [b"lit"]


def test_control_socket_injects_and_clears_faults_and_streams_events(ocs: OcsLab) -> None:
    ocs.start(ocs.handoff.path)
    assert ocs.query(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
    reply = request(ocs.handoff.path, {"do": "inject", "fault": {"kind": "port", "ports": [6]}})
    assert reply["faults"] == [
        {"kind": "port", "ports": [6], "value": 0.0, "times": None, "number": 1}
    ]
    one, two = ocs.network.udp(1), ocs.network.udp(2)
    one.sendto(b"dark", address(2))
    two.sendto(b"lit", address(1))
    assert (received_datagrams(two), received_datagrams(one)) == ([], [b"lit"])
    assert request(ocs.handoff.path, {"do": "clear", "number": 1})["faults"] == []
    assert ocs.query("*opc?") == "1"
    one.sendto(b"lit again", address(2))
    assert received_datagrams(two) == [b"lit again"]
    with pytest.raises(FabricError, match="ocs0: there is no fault 1"):
        request(ocs.handoff.path, {"do": "clear", "number": 1})
    kinds = [event["kind"] for _, event in events({"ocs0": ocs.handoff.path}, follow=False)]
    assert kinds == [
        *("started", "changed", "settled", "fault", "port-failed", "power-low"),
        *("fault-cleared", "port-recovered", "power-clear", "settled"),
    ]


@pytest.mark.parametrize(("after", "connected"), [(0, "(@),(@)"), (1, "(@1),(@6)")])
def test_reset_fault_breaks_connection_before_or_after_command(
    ocs: OcsLab, after: int, connected: str
) -> None:
    ocs.start(ocs.handoff.path)
    request(
        ocs.handoff.path, {"do": "inject", "fault": {"kind": "reset", "value": after, "times": 1}}
    )
    with ocs.client() as client:
        client.sendall(b":oxc:swit:conn:add (@1),(@6);*opc?\n")
        with pytest.raises(ConnectionResetError):
            client.recv(16)
    assert ocs.query(":oxc:swit:conn:stat?") == connected


def test_reboot_disconnects_clients_and_preserves_light(tmp_path: Path) -> None:
    with ExitStack() as resources:
        ocs = OcsLab(tmp_path, resources, profile={"boot_ns": 300_000_000})
        ocs.start(ocs.handoff.path)
        assert ocs.query(":oxc:swit:conn:add (@1,2),(@6,5);*opc?") == "1"
        with ocs.client() as client:
            client.sendall(b"*opc?\n")
            assert client.recv(16) == b"1\n"
            request(ocs.handoff.path, {"do": "reboot"})
            with pytest.raises(ConnectionResetError):
                client.recv(16)
        with ocs.client() as client, suppress(ConnectionError):
            client.sendall(b"*opc?\n")
            assert client.recv(16) == b"", "no replies during boot"
        one, two = ocs.network.udp(1), ocs.network.udp(2)
        one.sendto(b"lit", address(2))
        assert received_datagrams(two) == [b"lit"]
        for _, event in events({"ocs0": ocs.handoff.path}, follow=True):
            if event["kind"] == "started" and event["words"] == "2 cross-connects":
                break
        assert ocs.query(":oxc:swit:conn:stat?") == "(@1,2),(@6,5)"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_process_cleanly(ocs: OcsLab, sent: signal.Signals) -> None:
    process = ocs.start(ocs.handoff.path)
    process.send_signal(sent)
    assert process.wait(timeout=30) == 0


def test_process_ends_with_fabric(ocs: OcsLab) -> None:
    process = ocs.start(ocs.handoff.path)
    ocs.handoff.close()
    assert process.wait(timeout=30) == 0


def test_directory_of_handoff_sockets_is_served(ocs: OcsLab) -> None:
    process = ocs.start(ocs.run_dir.parent)
    assert ocs.query("*stb?") == "0"
    facts = {**ocs.handoff.facts, "serial": "000002"}
    ocs.handoff.close()
    ocs.handoff = HandoffServer(
        ocs.run_dir / "ocs0.handoff", facts, (ocs.crossbar_fd, ocs.listener.fileno())
    )
    try:
        wait_served(ocs.handoff)
        assert ",000002," in ocs.query("*idn?")
        process.terminate()
        assert process.wait(timeout=10) == 0
        assert not ocs.handoff.is_served
    finally:
        ocs.handoff.close()


def test_missing_socket_is_reported_in_one_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "moefabric.emulator.ocs",
        "--socket",
        str(tmp_path / "no.handoff"),
        "--deadline",
        "0.2",
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=20, cwd=REPOSITORY, check=False
    )
    assert result.returncode == 1
    assert (
        result.stderr
        == f"OCS handoff: nothing listens on {tmp_path}/no.handoff: {os.strerror(2)}\n"
    )


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_process_of_another_user_is_disconnected(ocs: OcsLab) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        handoff = HandoffServer(Path(name) / "ocs0.handoff", ocs.handoff.facts, (ocs.crossbar_fd,))
        try:
            handoff.path.chmod(0o666)
            script = (
                "import socket, sys; s = socket.socket(socket.AF_UNIX); "
                "s.connect(sys.argv[1]); print(s.recv(64))"
            )
            as_nobody = [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "/usr/bin/python3",
            ]
            command = [*as_nobody, "-c", script, str(handoff.path)]
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=20, check=False
            )
        finally:
            handoff.close()
    assert (result.stdout, result.stderr) == ("b''\n", "")
