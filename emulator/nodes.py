"""The fabric as Mininet sees it: servers, switches and the OCS as nodes, with names, links and `net['s0']`.

Mininet makes the namespaces; wires and bridges are made in batches (emulator.links, emulator.ovs), since its own way costs 10-28 ms a link.
"""

from typing import Any

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Node, OVSSwitch

from emulator.datapath import Datapath
from emulator.ovs import Bridge
from emulator.plan import FABRIC, Interface, Plan, SwitchPlan


class Wired(Intf):
    """An interface that is there already, with its addresses."""

    def config(self, ip: str | None = None, **_: object) -> dict[str, Any]:
        """Take note of the address; nothing is told to the kernel."""
        if ip:
            self.ip, self.prefixLen = ip.split("/")
        return {}


class Wire(Link):
    """A veth pair that is there already."""

    @classmethod
    def makeIntfPair(cls, *_: object, **__: object) -> None:  # noqa: N802 - Mininet's name
        """Nothing: `emulator.links` made it."""


class PlannedNode(Node):
    """A node that is what the plan says, and asks nothing of the machine by itself."""

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


class OpenFlowSwitch(OVSSwitch):
    """A bridge of the fabric's own Open vSwitch. It has a shell only if somebody asks it something."""

    def __init__(self, name: str, **params: Any) -> None:
        self._made = False
        super().__init__(name, failMode="secure", protocols="OpenFlow13", **params)
        self._made = True

    @classmethod
    def setup(cls) -> None:
        """Nothing: Mininet would leave the process if it found no daemon yet."""
        cls.OVSVersion = "3.0"

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 - Mininet's name
        """Not yet: `cmd` starts it."""

    def cmd(self, *words: Any, **options: Any) -> Any:
        """Run a command beside the switch, in the fabric's namespace."""
        if not self._made:  # Mininet would have the loopback up, which it is
            return ""
        if self.shell is None:
            super().startShell()
        return super().cmd(*words, **options)

    def start(self, controllers: list[Any]) -> None:
        """Nothing: all bridges are made in one transaction."""

    def bridge(self) -> Bridge:
        """This switch as OVS is told of it."""
        ports = tuple((intf.name, number) for number, intf in sorted(self.intfs.items()) if number)
        return Bridge(self.name, int(self.dpid, 16), ports)


def network(plan: Plan, datapath: Datapath) -> Mininet:
    """The plan's servers and OCSes, each with its namespace, and its switches; no wires yet."""
    Mininet.inited = True  # or it would rewrite sysctls of the whole machine
    net = Mininet(controller=None, build=False)
    for server in plan.servers:
        net.addHost(server, cls=Server, ip=None)
    for ocs in plan.ocses:
        net.addHost(ocs.name, cls=OcsNode, ip=None)
    for switch in plan.switches:
        kind = "user" if datapath.in_user_space else "kernel"
        net.addSwitch(switch.bridge, cls=OpenFlowSwitch, dpid=f"{switch.datapath_id:016x}", datapath=kind)
    return net


def add_wires(net: Mininet, plan: Plan) -> None:
    """Tell Mininet of the wires between its nodes, once they are made."""
    owner = {end.name: switch for switch in plan.switches for end in switch.ports}
    for link in plan.links:
        nodes = [_node(end, owner) for end in link.ends]
        if all(nodes):
            _add_wire(net, nodes, link.ends)


def _node(end: Interface, owner: dict[str, SwitchPlan]) -> str:
    """Mininet's name for the node that an interface is on; empty for the management bridge, which is none."""
    if end.node != FABRIC:
        return end.node
    return owner[end.name].bridge if end.name in owner else ""


def _add_wire(net: Mininet, nodes: list[str], ends: tuple[Interface, Interface]) -> None:
    params = [{"ip": end.addresses[0] if end.addresses else None} for end in ends]
    a, b = ends
    net.addLink(
        *nodes,
        port1=a.port or None,
        port2=b.port or None,
        cls=Wire,
        intf=Wired,
        intfName1=a.name,
        intfName2=b.name,
        params1=params[0],
        params2=params[1],
        addr1=a.mac or None,
        addr2=b.mac or None,
    )


def pids(net: Mininet, plan: Plan) -> dict[str, int]:
    """A process in the namespace of each node that has one."""
    return {node: int(net[node].pid) for node in plan.nodes}
