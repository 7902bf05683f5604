"""Ryu's own applications in the place of a fabric's controllers: `controller: external`."""

import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moefabric import ControlError, EmulatedFabric, Lab
from moefabric.runtime.waiting import Deadline
from moefabric.ui.dashboard.fabric_source import FabricSource
from tests.support.ryu import RYU, need_ryu

pytestmark = [pytest.mark.usefixtures("own_machine")]
REST = "http://127.0.0.1:8080/stats"


def fabric(controller: str) -> EmulatedFabric:
    return EmulatedFabric(
        fabric=f"ryu-{controller}",
        gpus_per_server=2,
        nic_rate="100Gb/s",
        nics={"optical": 1, "electrical": 1},
        regions=[{"servers": 4, "ocs": {"settle": "5ms"}}],
        scale={"bytes": 1000},
        controller=controller,
    )


@contextmanager
def ryu(lab: Lab, application: str, log: Path) -> Iterator[None]:
    """Run `ryu-manager` until the end of the block, once all switches are connected to it."""
    address, _ = lab.wiring.management.openflow_endpoint(None)
    argv = [RYU, "--ofp-listen-host", address, "--wsapi-host", "127.0.0.1", application]
    with log.open("w") as out:
        manager = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        assert lab.net.waitConnected(timeout=30, delay=0.1), log.read_text()
        yield
    finally:
        manager.terminate()
        manager.wait()


@pytest.fixture(scope="module", autouse=True)
def _usable_ryu() -> None:
    need_ryu()


@pytest.fixture
def eps_lab() -> Iterator[Lab]:
    with fabric("external-eps").up() as lab:
        yield lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    with fabric("external").up() as lab:
        yield lab


def await_learning(lab: Lab, *switches: str) -> None:
    """Wait until Ryu's application has sent each of these switches its first flow."""
    for switch in switches:
        has_flow = lambda node=lab.net[switch]: "CONTROLLER" in node.dpctl("dump-flows")  # noqa: E731
        Deadline.after(20).wait_for(has_flow, f"the first flow of {switch}")


def rest(method: str, path: str, document: object = None) -> Any:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"{REST}/{path}", data, method=method)
    with urllib.request.urlopen(request, timeout=10) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def test_learning_switch_of_ryu_is_the_eps_of_a_fabric(eps_lab: Lab, tmp_path: Path) -> None:
    """The regions' controllers stay: `check` needs packets by Ryu's EPS, and moves light."""
    assert eps_lab.exec("s0", "ping -c 1 -W 1 10.0.1.1").returncode, "nobody controls the leaf"
    with ryu(eps_lab, "ryu.app.simple_switch_13", tmp_path / "log"):
        await_learning(eps_lab, "leaf0")
        found = eps_lab.check()
        assert found.passed, list(found.lines())
        assert found.circuits == 4
        flows = eps_lab.net["leaf0"].dpctl("dump-flows")
        assert eps_lab.inspect()["controllers"][-1]["connected"] == 1
    assert "dl_dst=02:00:0a:00:01:01" in flows, "Ryu's application has learnt the servers"
    listed = {entry["region"]: entry for entry in eps_lab.inspect()["controllers"]}
    place = {"region": "eps", "openflow": "198.18.0.1:6653", "external": True}
    assert listed["eps"] in [place | {"connected": n} for n in (0, 1)], "Ryu has just ended"
    assert listed["r0"]["health"]["ready"]


def test_learning_switch_of_ryu_controls_all_switches(lab: Lab, tmp_path: Path) -> None:
    with ryu(lab, "ryu.app.simple_switch_13", tmp_path / "log"):
        await_learning(lab, "leaf0", *(f"sw-{server}" for server in lab.servers))
        assert lab.net.pingAll(timeout="3") == 0
    named = r"r0 has a controller of others at 198.18.0.1:6653 .*ocs0 itself moves light"
    with pytest.raises(ControlError, match=named):
        lab.light("s0~s1")


def test_rest_of_ryu_sets_flows_and_scpi_sets_circuits(lab: Lab, tmp_path: Path) -> None:
    region, [s0, s1] = lab.fabric.regions[0], (lab.fabric.openflow.dpid(s) for s in ("s0", "s1"))
    with ryu(lab, "ryu.app.ofctl_rest", tmp_path / "log"):
        Deadline.after(20).wait_for(lambda: len(rest("GET", "switches")) == 5, "the switches")
        assert lab.exec("s0", "ping -c 1 -W 1 10.0.1.1").returncode, "there are no flows"
        for dpid in (s0, s1):
            for port, other in ((1, 2), (2, 1)):  # the server and its optical NIC
                output = [{"type": "OUTPUT", "port": other}]
                entry = {"dpid": dpid, "match": {"in_port": port}, "actions": output}
                rest("POST", "flowentry/add", entry)
        assert lab.exec("s0", "ping -c 1 -W 1 10.0.1.1").returncode, "there is no light"
        address = lab.wiring.management.ocs_address(region)
        with socket.create_connection((address, 5025), 5) as scpi:
            scpi.sendall(b":oxc:swit:conn:only (@1,2),(@6,5);stat?\n")
            assert scpi.recv(4096) == b"(@1,2),(@6,5)\n"
        arrives = lambda: lab.exec("s0", "ping -c 1 -W 1 10.0.1.1").returncode == 0  # noqa: E731
        Deadline.after(10).wait_for(arrives, "a packet by light")
        assert lab.inspect()["ocs"][0]["circuits"] == [["s0/o0", "s1/o0"]]
        assert FabricSource(lab).circuits(region) == {"lit": ["s0/o0~s1/o0"], "dark": []}
        assert rest("GET", f"flow/{s0}")[str(s0)][0]["packet_count"] > 0


def test_up_waits_for_no_controller_of_others(lab: Lab) -> None:
    assert not lab.net["leaf0"].connected()
    assert "controllers" not in {process["name"] for process in lab.inspect()["processes"]}
