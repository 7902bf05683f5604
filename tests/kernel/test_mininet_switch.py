"""BPF switch in plain Mininet networks, controlled by Ryu's own learning switch."""

import pytest

from tests.support.namespaces import isolated_result

RYU = """
import moefabric.controller.southbound.openflow.framework
import sys
from ryu.cmd.manager import main
main(sys.argv[1:])
"""
NETWORK = """
import json, os, subprocess, sys
from mininet.net import Mininet
from mininet.node import RemoteController
from mininet.topolib import TreeTopo
from moefabric.emulator.fabric.mininet_switch import BpfSwitch

Mininet.inited = True  # or it would rewrite sysctls of the whole machine
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
# Ryu ends with this process, also when the test's time-out kills it.
ryu = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", sys.executable, "-c", sys.argv[1],
                        "--ofp-listen-host", "127.0.0.1", "ryu.app.simple_switch_13"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
net = Mininet(topo=TreeTopo(depth=2, fanout=2), switch=BpfSwitch, controller=None, autoSetMacs=True)
net.addController("c0", controller=RemoteController, ip="127.0.0.1", port=6653)
try:
    net.start()
    result = {"connected": net.waitConnected(timeout=20, delay=0.1)}
    result["lost"] = net.pingAll(timeout="3")
    result["again"] = net.pingAll(timeout="1")
    flows = subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", f"unix:{net['s1'].management}"],
                           capture_output=True, text=True)
    result["flows"] = flows.stdout
    processes = [switch.service.popen for switch in net.switches]
finally:
    net.stop()
    ryu.terminate()
    ryu.wait()
result["ended"] = [process.poll() for process in processes]
result["links"] = [link["ifname"] for link in json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True).stdout)]
print(json.dumps(result))
"""


@pytest.mark.timeout(90)
def test_switch_works_under_plain_mininet_and_ryu() -> None:
    """Run a tree of three switches and four hosts; simple_switch_13 uses packet-in and packet-out."""
    result = isolated_result("-c", NETWORK, RYU)
    assert result["connected"]
    assert result["lost"] == 0
    assert result["again"] == 0
    assert "priority=1" in result["flows"], (
        "OpenFlow tools see the flows that the controller has learnt"
    )
    assert result["ended"] == [0, 0, 0]
    assert result["links"] == ["lo"]


FABRIC_IN_MININET = """
import json, subprocess
from mininet.net import Mininet
from moefabric.emulator.fabric.mininet_switch import BpfSwitch
from moefabric.emulator.fabric.mininet_nodes import FabricTopo
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.runtime.run_directory import ManagementNetwork
from moefabric.core.topology import Eps, Fabric, Ocs, Region

Mininet.inited = True
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
fabric = Fabric("mn", (Region("r0", 0, ("s0", "s1"), Ocs("ocs0", 2)),), 2, 1, 1, 50e6, Eps(4))
net = Mininet(topo=FabricTopo(plan_fabric(fabric, ManagementNetwork("198.18.0.0/24"))), switch=BpfSwitch, controller=None)
net.start()
try:
    links = sorted(f"{link.intf1}={link.intf2}" for link in net.links)
    ports = {switch.name: {str(intf): port for intf, port in switch.ports.items() if port} for switch in net.switches}
    for switch, port in (("sw-s0", 3), ("sw-s1", 3), ("leaf0", 1)):
        out = {"sw-s0": "in_port=1,actions=output:3", "sw-s1": "in_port=1,actions=output:3", "leaf0": "in_port=1,actions=output:2"}[switch]
        back = {"sw-s0": "in_port=3,actions=output:1", "sw-s1": "in_port=3,actions=output:1", "leaf0": "in_port=2,actions=output:1"}[switch]
        for rule in (out, back):
            subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", f"unix:{net[switch].management}", rule], check=True)
    for host, address in (("s0", "10.0.0.1"), ("s1", "10.0.1.1")):
        net[host].cmd(f"ip address add {address}/8 dev eth0")
    lost = net["s0"].cmd("ping -c 2 -i 0.2 -W 2 10.0.1.1")
finally:
    net.stop()
print(json.dumps({"ports": ports, "ping": lost}))
"""


@pytest.mark.timeout(60)
def test_fabric_plan_works_as_mininet_topology() -> None:
    result = isolated_result("-c", FABRIC_IN_MININET)
    assert result["ports"]["leaf0"] == {"leaf0-p1": 1, "leaf0-p2": 2}
    assert result["ports"]["sw-s0"] == {"s0-host": 1, "s0-o0": 2, "s0-e0": 3}
    assert " 0% packet loss" in result["ping"]
