"""Mininet network of a fabric: servers, OCSes and switches are its nodes (`net["s0"]`).

Other modules make namespaces, links and switches (namespace_holders, links, datapath), all of a
kind at once, because Mininet would take 10 ms for each node and 10-28 ms for each link.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from moefabric.emulator.fabric import mininet_package  # noqa: F401 - finds Debian's Mininet

# isort: split
from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Node, Switch
from mininet.topo import Topo

from moefabric.emulator.fabric.plan import FabricPlan, Interface


class PlannedIntf(Intf):
    """Interface that already exists and has its addresses."""

    def config(self, ip: str | None = None, **_: object) -> dict[str, Any]:
        """Store the addresses without configuring the kernel."""
        if ip:
            self.ip, self.prefixLen = ip.split("/")
            self.mac = self.node.params.get("mac")
        return {}


class PlannedLink(Link):
    """Veth pair that already exists."""

    @classmethod
    def makeIntfPair(cls, *_: object, **__: object) -> None:  # noqa: N802 - Mininet's name
        """Do nothing: `moefabric.emulator.fabric.links` has made the pair."""


class PlannedNode(Node):
    """Node whose namespaces already exist; its shell starts at its first command."""

    def __init__(self, name: str, holder: int, **params: Any) -> None:
        """Take the node's name and the pid of a process in its namespaces."""
        self._holder, self._initialized = holder, False
        super().__init__(name, **params)
        self._initialized = True

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 - Mininet's name
        """Start the shell, but not from Mininet's constructor; `cmd` starts it when needed."""
        if self._initialized:
            self.inNamespace = False  # otherwise Mininet would make a namespace
            super().startShell(mnopts or f"-cda{self._holder}")
            self.inNamespace = self._holder != os.getpid()
        self.pid = self._holder

    def cmd(self, *words: Any, **options: Any) -> Any:
        """Run a command in the node's namespaces."""
        if not self._initialized:  # Mininet's constructor would switch the loopback on
            return ""
        if self.shell is None:
            self.startShell()
        return super().cmd(*words, **options)

    def config(self, **_: object) -> dict[str, Any]:
        """Do nothing: addresses come from the plan."""
        return {}

    @classmethod
    def setup(cls) -> None:
        """Do nothing: `machine_probe` checks that programs are installed."""


class PlannedSwitch(PlannedNode, Switch):
    """Electrical switch of the plan, in the fabric's namespace."""

    def start(self, controllers: list[Any]) -> None:
        """Do nothing: all switches are made at once (moefabric.emulator.fabric.datapath)."""


class FabricTopo(Topo):
    """Mininet topology of a plan: servers and OCSes are hosts, and ports keep their numbers.

    `Mininet(topo=FabricTopo(plan), switch=BpfSwitch)` lets Mininet make the network, without
    shaping, optical circuits and management network.
    """

    def build(self, plan: FabricPlan) -> None:
        """Build the topology; Mininet passes the constructor's arguments."""
        macs = {end.node: end.mac for link in plan.links for end in link.ends if end.mac}
        for host in plan.nodes:
            self.addHost(host, ip=None, mac=macs.get(host))
        for switch in plan.switches:
            self.addSwitch(switch.bridge, dpid=f"{switch.datapath_id:016x}")
        bridges = {end.name: switch.bridge for switch in plan.switches for end in switch.ports}
        for link in plan.links:  # the management bridges are no nodes
            nodes = [end.node or bridges.get(end.name, "") for end in link.ends]
            if all(nodes) and link.tunnel is None:
                self.addLink(*nodes, **_link_options(link.ends))


def _link_options(ends: tuple[Interface, ...]) -> dict[str, Any]:
    """Return the ends of a link as options of Mininet's `addLink`."""
    options: dict[str, Any] = {}
    for number, end in enumerate(ends, start=1):
        options |= {
            f"port{number}": end.port or None,
            f"intfName{number}": end.name,
            f"params{number}": {"ip": end.addresses[0] if end.addresses else None},
        }
    return options


def make_network(plan: FabricPlan, pids: Mapping[str, int]) -> Mininet:
    """Return the network of servers, OCSes and switches, with its links.

    Args:
        plan: the fabric, whose links exist.
        pids: by server and OCS, the pid of a process in its namespaces. The switches are in the
            caller's namespaces.
    """
    Mininet.inited = True  # otherwise it would change sysctls of the whole machine
    net = Mininet(controller=None, build=False)
    topo = FabricTopo(plan)
    for host in topo.hosts(sort=False):
        net.addHost(host, cls=PlannedNode, holder=pids[host], **topo.nodeInfo(host))
    for switch in topo.switches(sort=False):
        net.addSwitch(switch, cls=PlannedSwitch, holder=os.getpid(), **topo.nodeInfo(switch))
    for _, _, options in topo.links(withInfo=True):
        net.addLink(cls=PlannedLink, intf=PlannedIntf, **options)
    return net


def kill_shells(net: Mininet) -> None:
    """Kill the shells of nodes that have run commands."""
    for node in net.values():
        if node.shell is not None:
            with suppress(ProcessLookupError):
                os.killpg(node.shell.pid, signal.SIGKILL)
            node.shell.wait()
