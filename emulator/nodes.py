"""The fabric as Mininet sees it: servers, switches and the OCS as nodes, with names, links and `net['s0']`.

Namespaces, wires and switches are made beside it, all at once (emulator.keeping, links, electrical): Mininet's own way costs 10 ms a node
and 10-28 ms a link.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Node, Switch
from mininet.topo import Topo

from emulator.plan import FABRIC, Interface, Plan, SwitchPlan


class Wired(Intf):
    """An interface that is there already, with its addresses."""

    def config(self, ip: str | None = None, **_: object) -> dict[str, Any]:
        """Take note of the addresses; nothing is told to the kernel."""
        if ip:
            self.ip, self.prefixLen = ip.split("/")
            self.mac = self.node.params.get("mac")
        return {}


class Wire(Link):
    """A veth pair that is there already."""

    @classmethod
    def makeIntfPair(cls, *_: object, **__: object) -> None:  # noqa: N802 - Mininet's name
        """Nothing: `emulator.links` made it."""


class PlannedNode(Node):
    """A node that is what the plan says, in namespaces that are there already. It has a shell once somebody asks it something."""

    def __init__(self, name: str, keeper: int, **params: Any) -> None:
        """`keeper` is a process in the node's namespaces."""
        self._keeper, self._made = keeper, False
        super().__init__(name, **params)
        self._made = True

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 - Mininet's name
        """Not yet when the node is made: `cmd` starts it."""
        if self._made:
            self.inNamespace = False  # or Mininet would make it one
            super().startShell(mnopts or f"-cda{self._keeper}")
            self.inNamespace = self._keeper != os.getpid()
        self.pid = self._keeper

    def cmd(self, *words: Any, **options: Any) -> Any:
        """Run a command in the node's namespaces."""
        if not self._made:  # Mininet would have the loopback up, which it is
            return ""
        if self.shell is None:
            self.startShell()
        return super().cmd(*words, **options)

    def config(self, **_: object) -> dict[str, Any]:
        """Nothing: addresses come from the plan."""
        return {}

    @classmethod
    def setup(cls) -> None:
        """Nothing: `emulator.probe` looks for programs."""


class Server(PlannedNode):
    """A training host."""


class OcsNode(PlannedNode):
    """The namespace where the fibres of a region's OCS end."""


class PlannedSwitch(PlannedNode, Switch):
    """An electrical switch of the plan, in the fabric's namespace."""

    def start(self, controllers: list[Any]) -> None:
        """Nothing: all switches are made at once (emulator.electrical)."""


class FabricTopo(Topo):
    """A plan as one of Mininet's topologies: servers and OCSes are hosts, NICs and uplinks are links, ports keep their numbers.

    `Mininet(topo=FabricTopo(plan), switch=BpfSwitch)` makes it Mininet's own way, without shaping, light or management network.
    """

    def build(self, plan: Plan) -> None:
        """Called by Mininet with what the maker was given."""
        macs = {end.node: end.mac for link in plan.links for end in link.ends if end.mac}
        for host in plan.nodes:
            self.addHost(host, ip=None, mac=macs.get(host))
        for switch in plan.switches:
            self.addSwitch(switch.bridge, dpid=f"{switch.datapath_id:016x}")
        owner = {end.name: switch for switch in plan.switches for end in switch.ports}
        for link in plan.links:
            nodes = [_node(end, owner) for end in link.ends]
            if all(nodes):
                self.addLink(*nodes, **_wire(link.ends))


def _node(end: Interface, owner: dict[str, SwitchPlan]) -> str:
    """Mininet's name for the node that an interface is on; empty for the management bridge, which is none."""
    if end.node != FABRIC:
        return end.node
    return owner[end.name].bridge if end.name in owner else ""


def _wire(ends: tuple[Interface, Interface]) -> dict[str, Any]:
    """A link's ends in Mininet's words."""
    told: dict[str, Any] = {}
    for number, end in enumerate(ends, start=1):
        told |= {
            f"port{number}": end.port or None,
            f"intfName{number}": end.name,
            f"params{number}": {"ip": end.addresses[0] if end.addresses else None},
        }
    return told


def network(plan: Plan, pids: Mapping[str, int]) -> Mininet:
    """The plan's servers and OCSes, each in the namespaces of a process, and its switches, in the caller's; no wires yet."""
    Mininet.inited = True  # or it would rewrite sysctls of the whole machine
    net = Mininet(controller=None, build=False)
    net.topo = FabricTopo(plan)
    ocses = {ocs.name for ocs in plan.ocses}
    for host in net.topo.hosts(sort=False):
        kind = OcsNode if host in ocses else Server
        net.addHost(host, cls=kind, keeper=pids[host], **net.topo.nodeInfo(host))
    for switch in net.topo.switches(sort=False):
        net.addSwitch(switch, cls=PlannedSwitch, keeper=os.getpid(), **net.topo.nodeInfo(switch))
    return net


def add_wires(net: Mininet) -> None:
    """Tell Mininet of the wires between its nodes, once they are made."""
    for _, _, told in net.topo.links(withInfo=True):
        net.addLink(cls=Wire, intf=Wired, **told)


def end_shells(net: Mininet) -> None:
    """End the shells that were asked for."""
    for node in net.values():
        if node.shell is not None:
            with suppress(ProcessLookupError):
                os.killpg(node.shell.pid, signal.SIGKILL)
            node.shell.wait()
