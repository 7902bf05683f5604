"""The optical switch in a fabric: links that go down with the light, as the servers' switches tell it, and faults by the command line."""

import json
import os
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

from emulator import lifecycle, namespaces
from emulator.waiting import Deadline
from moefabric.commands import events as told_events
from moefabric.commands import fault, ocs
from moefabric.management import RunDir
from moefabric.topology import Fabric, Ocs
from tests.kernel.fabric_lab import Machine, ocs_process, wired

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]
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
    """Two servers, an optical NIC each, whose links hang on their light."""
    bare = wired("dark")
    dark = Ocs("ocs0", 2, SETTLE_NS, LINK_UP_NS, link_down=True)
    fabric = replace(bare, regions=(replace(bare.regions[0], ocs=dark),))
    machine.up(fabric, ocs_process)
    yield fabric
    machine.down(fabric.name)


def told(machine: Machine, fabric: Fabric, line: str) -> str:
    """What the switch answers by SCPI, once all has settled."""
    wiring = RunDir.named(fabric.name).wiring.read_text()
    address = str(json.loads(wiring)["management"]["subnet"]).replace(".0/24", ".2")
    words = [sys.executable, "-c", CONNECT, address, line]
    return machine.here(
        lambda: subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
    )


def carriers(fabric: Fabric) -> dict[str, bool]:
    servers = lifecycle.inspect(fabric.name)["servers"]
    return {nic["name"]: nic["carrier"] for server in servers for nic in server["nics"]}


def until_carriers(fabric: Fabric, **expected: bool) -> None:
    wanted = {name.replace("_", "/"): up for name, up in expected.items()}
    Deadline.after(5).until(lambda: wanted.items() <= carriers(fabric).items(), f"{wanted}")


def command(*words: str) -> Result:
    return CliRunner().invoke(fault.fault, ["ocs", *words], catch_exceptions=False)


class Controller:
    """Whoever is told of a switch's ports by OpenFlow 1.3."""

    HELLO, PORT_STATUS, SET_ASYNC = 0, 12, 28
    HEADER, PORT = struct.Struct("!BBHI"), struct.Struct("!8xI4x6s2x16sII24x")

    def __init__(self, fabric: Fabric, bridge: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(5)
        self._socket.connect(str(RunDir.named(fabric.name).switches / f"{bridge}.mgmt"))
        self._say(self.HELLO, b"")
        self._say(self.SET_ASYNC, struct.pack("!6I", 0, 0, 7, 7, 0, 0))

    def _say(self, kind: int, body: bytes) -> None:
        self._socket.sendall(self.HEADER.pack(4, kind, self.HEADER.size + len(body), 1) + body)

    def told(self) -> tuple[str, bool]:
        """The next port that it is told of, and whether that has a link."""
        while True:
            _, kind, length, _ = self.HEADER.unpack(self._socket.recv(self.HEADER.size, socket.MSG_WAITALL))
            body = self._socket.recv(length - self.HEADER.size, socket.MSG_WAITALL)
            if kind == self.PORT_STATUS:
                _, _, name, _, state = self.PORT.unpack(body)
                return name.rstrip(b"\0").decode(), not state & 1

    def close(self) -> None:
        self._socket.close()


def test_a_dark_nic_has_no_link_and_its_switch_tells_the_controller_when_it_has(
    machine: Machine, fabric: Fabric
) -> None:
    assert told(machine, fabric, ":oxc:swit:disc:all") == "1\n"
    until_carriers(fabric, s0_o0=False, s1_o0=False, s0_e0=True, s1_e0=True)
    with closing(Controller(fabric, "sw-s0")) as controller:
        assert told(machine, fabric, CIRCUIT) == "1\n"
        assert controller.told() == ("s0-o0", True)
        until_carriers(fabric, s0_o0=True, s1_o0=True)
        assert told(machine, fabric, ":oxc:swit:disc:all") == "1\n"
        assert controller.told() == ("s0-o0", False)
    until_carriers(fabric, s0_o0=False, s1_o0=False)


def test_a_failed_port_takes_its_link_down_until_the_fault_is_cleared(
    machine: Machine, fabric: Fabric
) -> None:
    assert told(machine, fabric, CIRCUIT) == "1\n"
    until_carriers(fabric, s0_o0=True, s1_o0=True)
    assert command("port", "s0/o0", "--name", "dark").output == "1: port 1,3\n"
    until_carriers(fabric, s0_o0=False, s1_o0=False)
    assert command("--name", "dark").output == "1: port 1,3\n"
    shown = CliRunner().invoke(ocs.ocs, ["--name", "dark"], catch_exceptions=False).output
    assert shown.splitlines() == [
        "ocs0  Polatis N-OST-2x2-LU1-DMHNS dark-ocs0 6.5.2.18, preserve",
        "  1  s0/o0 out  failed  -> 4  -60.0 dBm",
        "  2  s1/o0 out  tuned  -> 3  0.0 dBm",
        "  3  s0/o0 in  failed  -> 2  -60.0 dBm",
        "  4  s1/o0 in  tuned  -> 1  -60.0 dBm",
    ]
    assert command("--clear", "--name", "dark").output == "ocs0: no faults\n"
    until_carriers(fabric, s0_o0=True, s1_o0=True)
    events = CliRunner().invoke(told_events.events, ["--name", "dark"], catch_exceptions=False).output
    kinds = [json.loads(line)["kind"] for line in events.splitlines()]
    assert kinds[-6:] == [
        "port-failed",
        "power-low",
        "fault-cleared",
        "port-recovered",
        "power-clear",
        "settled",
    ]


def test_all_languages_listen_on_the_switchs_address(machine: Machine, fabric: Fabric) -> None:
    pid = json.loads((RunDir.named(fabric.name).path / "nodes.json").read_text())["ocs0"]
    listening = namespaces.within(namespaces.of(int(pid)), partial(namespaces.listening))
    assert {port for _, port in listening} >= {5025, 3082, 8008}
