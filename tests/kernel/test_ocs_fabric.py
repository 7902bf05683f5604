"""The optical switch in a fabric: links that follow the light, and faults by command line."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from click.testing import CliRunner, Result

from moefabric.core.ocs import Ocs, RandomTime
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.linux import namespaces
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline
from moefabric.ui.cli import fault
from moefabric.ui.cli.main import main
from tests.kernel.fabric_lab import Machine, ocs_process, small_fabric

SETTLE_NS, LINK_UP_NS = 5_000_000, 30_000_000
CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], 5025), 5) as ocs, ocs.makefile("rw") as lines:
    lines.write(sys.argv[2] + ";*opc?\\n")
    lines.flush()
    print(lines.readline(), end="")
"""
CIRCUIT = ":oxc:swit:conn:add (@1,2),(@4,3)"


@pytest.fixture(scope="module")
def fabric(machine: Machine) -> Iterator[Fabric]:
    """Two servers with an optical NIC each, whose links follow the light."""
    bare = small_fabric("dark")
    dark = Ocs("ocs0", 2, SETTLE_NS, RandomTime(LINK_UP_NS), link_down=True)
    fabric = replace(bare, regions=(replace(bare.regions[0], ocs=dark),))
    machine.up(fabric, ocs_process)
    yield fabric
    machine.down(fabric.name)


def query(machine: Machine, fabric: Fabric, line: str) -> str:
    """Send a line by SCPI, and return the reply once all light has settled."""
    wiring = RunDirectory.of_fabric(fabric.name).wiring_file.read_text()
    address = str(json.loads(wiring)["management"]["subnet"]).replace(".0/24", ".2")
    words = [sys.executable, "-c", CONNECT, address, line]
    return machine.run(
        lambda: subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
    )


def carriers(fabric: Fabric) -> dict[str, bool]:
    servers = lifecycle.inspect(fabric.name)["servers"]
    return {nic["name"]: nic["carrier"] for server in servers for nic in server["nics"]}


def wait_carriers(fabric: Fabric, **expected: bool) -> None:
    required = {name.replace("_", "/"): up for name, up in expected.items()}
    Deadline.after(30).wait_for(lambda: required.items() <= carriers(fabric).items(), f"{required}")


def command(*words: str) -> Result:
    return CliRunner().invoke(fault.fault, ["ocs", *words], catch_exceptions=False)


class Controller:
    """Controller that receives the port status messages of a switch (OpenFlow 1.3)."""

    HELLO, PORT_STATUS, SET_ASYNC = 0, 12, 28
    HEADER, PORT = struct.Struct("!BBHI"), struct.Struct("!8xI4x6s2x16sII24x")

    def __init__(self, fabric: Fabric, bridge: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(RunDirectory.of_fabric(fabric.name).switches / f"{bridge}.mgmt"))
        self._send(self.HELLO, b"")
        self._send(self.SET_ASYNC, struct.pack("!6I", 0, 0, 7, 7, 0, 0))

    def _send(self, kind: int, body: bytes) -> None:
        self._socket.sendall(self.HEADER.pack(4, kind, self.HEADER.size + len(body), 1) + body)

    def next_port_status(self) -> tuple[str, bool]:
        """Return the name of the next port that changes, and whether it has a link."""
        while True:
            _, kind, length, _ = self.HEADER.unpack(
                self._socket.recv(self.HEADER.size, socket.MSG_WAITALL)
            )
            body = self._socket.recv(length - self.HEADER.size, socket.MSG_WAITALL)
            if kind == self.PORT_STATUS:
                _, _, name, _, state = self.PORT.unpack(body)
                return name.rstrip(b"\0").decode(), not state & 1

    def close(self) -> None:
        self._socket.close()


def test_dark_nic_has_no_link_and_its_switch_reports_changes(
    machine: Machine, fabric: Fabric
) -> None:
    assert query(machine, fabric, ":oxc:swit:disc:all") == "1\n"
    wait_carriers(fabric, s0_o0=False, s1_o0=False, s0_e0=True, s1_e0=True)
    with closing(Controller(fabric, "sw-s0")) as controller:
        assert query(machine, fabric, CIRCUIT) == "1\n"
        assert controller.next_port_status() == ("s0-o0", True)
        wait_carriers(fabric, s0_o0=True, s1_o0=True)
        assert query(machine, fabric, ":oxc:swit:disc:all") == "1\n"
        assert controller.next_port_status() == ("s0-o0", False)
    wait_carriers(fabric, s0_o0=False, s1_o0=False)


def test_failed_port_takes_link_down_until_fault_is_cleared(
    machine: Machine, fabric: Fabric
) -> None:
    assert query(machine, fabric, CIRCUIT) == "1\n"
    wait_carriers(fabric, s0_o0=True, s1_o0=True)
    assert command("port", "s0/o0", "--name", "dark").output == "1: port 1,3 (s0/o0 at ocs0)\n"
    wait_carriers(fabric, s0_o0=False, s1_o0=False)
    assert command("--name", "dark").output == "1: port 1,3 (s0/o0 at ocs0)\n"
    shown = CliRunner().invoke(main, ["ocs", "--name", "dark"], catch_exceptions=False).output
    assert shown.splitlines() == [
        "ocs0  Polatis N-OST-2x2-LU1-DMHNS dark-ocs0 6.5.2.18, preserve",
        "  port  fibre       state         to      power  label",
        "     1  from s0/o0  failed         4  -60.0 dBm",
        "     2  from s1/o0  tuned          3    0.0 dBm",
        "     3  to s0/o0    failed         2  -60.0 dBm",
        "     4  to s1/o0    tuned (dark)   1  -60.0 dBm",
    ]
    assert command("--clear", "--name", "dark").output == "ocs0: no faults\n"
    wait_carriers(fabric, s0_o0=True, s1_o0=True)
    words, lines = (
        CliRunner().invoke(main, ["events", "dark", *json_option], catch_exceptions=False).output
        for json_option in ((), ("--json",))
    )
    assert re.search(r"^\d\d:\d\d:\d\d\.\d+ fabric inject +\S+ s0/o0", words, re.MULTILINE)
    known = [json.loads(line) for line in lines.splitlines()]
    failures = [(one["kind"], one["what"]) for one in known if "ocs" not in one]
    assert failures[-2:] == [("inject", ["s0/o0"]), ("clear", ["s0/o0"])]
    assert [one["kind"] for one in known if "ocs" in one][-6:] == [
        "port-failed",
        "power-low",
        "fault-cleared",
        "port-recovered",
        "power-clear",
        "settled",
    ]


def test_all_protocols_listen_on_address_of_switch(machine: Machine, fabric: Fabric) -> None:
    pid = json.loads((RunDirectory.of_fabric(fabric.name).path / "nodes.json").read_text())["ocs0"]
    listening = namespaces.run_in(
        namespaces.path_of(int(pid)), partial(namespaces.listening_addresses)
    )
    assert {port for _, port in listening} >= {5025, 3082, 8008}


def test_ended_process_is_started_again_and_light_stays_on(
    machine: Machine, fabric: Fabric
) -> None:
    query(machine, fabric, CIRCUIT)
    wait_carriers(fabric, s0_o0=True, s1_o0=True)
    for _ in range(2):  # the second restart waits
        first = process_id(fabric)
        os.kill(first, signal.SIGKILL)

        def restarted(first: int = first) -> bool:
            up = carriers(fabric)
            assert up["s0/o0"]
            assert up["s1/o0"]
            return process_id(fabric) not in {0, first}

        Deadline.after(20).wait_for(restarted, "another process of the OCS")
        assert query(machine, fabric, ":oxc:swit:conn:stat?") == "(@1,2),(@4,3);1\n"
    assert lifecycle.inspect(fabric.name)["faults"] == []


def process_id(fabric: Fabric) -> int:
    """Return the process id of the OCS; 0 while it doesn't run."""
    processes = lifecycle.inspect(fabric.name)["processes"]
    return int(next((one["pid"] for one in processes if one["name"] == "ocs0"), 0))
