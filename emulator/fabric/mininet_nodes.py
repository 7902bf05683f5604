"""Mininet's objects for a running fabric: its servers, switches, OCSes, links and controllers.

The fabric process makes namespaces, links and switches, all of a kind at once, because Mininet
would take 10 ms for each node and 10-28 ms for each link. Any process of the machine gets them as
objects of Mininet, whose shells and programs join the namespaces.
"""

import json
import os
import subprocess
import termios
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

from moefabric.core.errors import FabricError, MoefabricError, UnsupportedError
from moefabric.emulator.fabric import mininet_package

if mininet_package.mininet_spec() is None:
    raise UnsupportedError("Mininet is missing: apt install mininet; see `moefabric doctor`")

# isort: split
from mininet.cli import CLI
from mininet.link import Intf, Link
from mininet.log import error, output
from mininet.net import Mininet
from mininet.node import Controller, Host, Node, Switch
from mininet.topo import Topo

from moefabric.core.failure_kinds import FailureKind
from moefabric.emulator.fabric import hardware_injection
from moefabric.emulator.fabric import plan as planned
from moefabric.emulator.fabric.daemon_protocol import NODES, process_id
from moefabric.emulator.fabric.node_commands import exec_argv
from moefabric.emulator.fabric.other_machines import remote_argv
from moefabric.emulator.fabric.plan import FabricPlan, Interface, plan_fabric
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.emulator.linux import namespaces
from moefabric.runtime.run_directory import FabricWiring

Enter = Callable[[Sequence[str]], list[str]]
"""Returns the argv that runs a command on a node."""
_OF_THE_SHELL: Final = ("shell", "stdin", "stdout", "pollOut")
"""Attributes of a node that exist from the start of its shell on."""
_OCS_DATAPATH: Final = 0xC5 << 32
"""Datapath id of the first OCS in networks that Mininet makes itself."""


class JoinedIntf(Intf):
    """Interface that already exists and has its addresses."""

    def config(self, ip: str | None = None, own_mac: str = "", **change: object) -> dict[str, Any]:
        """Store the addresses without configuring the kernel; refuse rates, delays and others."""
        if change:
            raise FabricError(f"{self}: {', '.join(change)}: the fabric's file decides about links")
        self.mac = own_mac or None
        if ip:
            self.ip, self.prefixLen = ip.split("/")
        return {}

    def updateIP(self) -> str | None:  # noqa: N802 - Mininet's name
        """Return the address of the plan, which doesn't change."""
        ip: str | None = self.ip
        return ip


class JoinedLink(Link):
    """Link that already exists, and stays."""

    @classmethod
    def makeIntfPair(cls, *_: object, **__: object) -> None:  # noqa: N802 - Mininet's name
        """Do nothing: `moefabric.emulator.fabric.links` has made the pair."""

    def stop(self) -> None:
        """Do nothing: the link belongs to the fabric."""

    def delete(self) -> None:
        """Refuse."""
        raise FabricError(f"{self}: a fabric's links stay; `link NODE NODE down` takes one down")


class JoinedNode(Node):
    """Node whose namespaces already exist; its shell starts when it is first used."""

    inNamespace: bool  # noqa: N815 - Mininet's name

    def __init__(self, name: str, enter: Enter, pid: int | None = None, **params: Any) -> None:
        """Take the way into the node, and the pid of a process there if one is on this machine."""
        self._enter, self._pid, self._made = enter, pid, False
        super().__init__(name, **params)
        self.pid, self._made = pid, True
        for part in _OF_THE_SHELL:
            delattr(self, part)

    def __getattr__(self, name: str) -> Any:
        """Start the shell when a part of it is used."""
        if name not in _OF_THE_SHELL:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self.startShell()
        return vars(self)[name]

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 - Mininet's name
        """Start the shell, but not from Mininet's constructor.

        Raises:
            FabricError: if the node has no bash; Mininet would wait for it forever.
        """
        if self._made:
            tried = subprocess.run(
                self._enter(["bash", "-c", ":"]), capture_output=True, check=False
            )
            if tried.returncode:
                raise FabricError(f"{self}: no shell without bash: {tried.stderr.decode().strip()}")
            in_namespace = self.inNamespace
            self.shell, self.inNamespace = None, False  # else Mininet would make a namespace
            super().startShell(mnopts)
            settings = termios.tcgetattr(self.slave)  # on another machine, the shell can't do so
            settings[3] &= ~termios.ECHO
            termios.tcsetattr(self.slave, termios.TCSANOW, settings)
            self.pid, self.inNamespace = self._pid, in_namespace

    def _popen(self, cmd: Sequence[str], **params: Any) -> Any:
        """Start a command, of which Mininet's first two words are `mnexec` and its options."""
        return super()._popen([*cmd[:2], *self._enter(cmd[2:])], **params)

    def popen(self, *words: Any, **options: Any) -> Any:
        """Start a program on the node, and return it."""
        return super().popen(*words, **{"mncmd": ["mnexec", "-d"], **options})

    def cmd(self, *words: Any, **options: Any) -> Any:
        """Run a command on the node; Mininet's constructor, which would configure it, can't."""
        return super().cmd(*words, **options) if self._made else ""

    def terminate(self) -> None:
        """End the shell if it has started."""
        if vars(self).get("shell"):
            super().terminate()

    def config(self, **_: object) -> dict[str, Any]:
        """Do nothing: addresses come from the plan."""
        return {}

    @classmethod
    def setup(cls) -> None:
        """Do nothing: `machine_probe` checks that programs are installed."""


class FabricHost(JoinedNode, Host):
    """Server of a running fabric."""


class JoinedSwitch(JoinedNode, Switch):
    """Switch of a running fabric, which is on and stays on."""

    def start(self, controllers: Sequence[Any]) -> None:
        """Do nothing: the switch forwards."""

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803, FBT001, FBT002 - Mininet's
        """Do nothing at the end of the network, and refuse `switch NAME stop`."""
        if not deleteIntfs:
            error(f"{self}: a fabric's switches stay on\n")


class FabricOcs(JoinedSwitch):
    """OCS of a running fabric; port numbers are those of its inputs."""

    def dpctl(self, *_: str) -> str:
        """Return that there is no OpenFlow."""
        return "an OCS has no flows: `moefabric light`, or its SCPI, TL1 and RESTCONF\n"


class FabricSwitch(JoinedSwitch):
    """Packet switch of a running fabric: of a server (`sw-s0`), a leaf or a spine."""

    def __init__(
        self, name: str, tools: str, controller: tuple[str, int], peers: int, **params: Any
    ) -> None:
        """Take the socket for OpenFlow tools, and the controller with the number of its switches.

        Only switches of this machine count.
        """
        self._tools, self._controller, self._peers = tools, controller, peers
        super().__init__(name, **params)

    def dpctl(self, command: str, *arguments: str) -> str:
        """Run a command of `ovs-ofctl` and return its output."""
        argv = ("ovs-ofctl", "-O", "OpenFlow13", command, f"unix:{self._tools}", *arguments)
        return str(self.cmd(*argv))

    def connected(self) -> bool:
        """Return whether all switches of this one's controller are connected to it."""
        if self.pid is None:
            return bool(super().connected())
        counts = namespaces.run_in(self.pid, namespaces.connection_counts)
        return counts[self._controller] >= self._peers


class FabricController(JoinedNode, Controller):
    """Controller of a region (`r0`) or of the EPS (`eps`) of a running fabric."""

    def checkListening(self) -> None:  # noqa: N802 - Mininet's name
        """Do nothing: it listens."""

    def start(self) -> None:
        """Do nothing: it runs."""

    def stop(self, *_: object) -> None:
        """Do nothing: it belongs to the fabric."""


class FabricTopo(Topo):
    """Mininet topology of a plan: servers are hosts, OCSes are switches, ports keep their numbers.

    `Mininet(topo=FabricTopo(plan), switch=BpfSwitch)` lets Mininet make the network, without
    shaping, light and management network.
    """

    def build(self, plan: FabricPlan) -> None:
        """Build the topology; Mininet passes the constructor's arguments."""
        macs = {end.node: end.mac for link in plan.links for end in link.ends if end.mac}
        for server in plan.servers:
            self.addHost(server, ip=None, mac=macs[server])
        for switch in plan.switches:
            self.addSwitch(switch.bridge, dpid=f"{switch.datapath_id:016x}")
        for ocs in plan.ocses:
            self.addSwitch(ocs.name, dpid=f"{_OCS_DATAPATH + ocs.region.index:016x}")
        for link, nodes in links_of_nodes(plan):
            self.addLink(*nodes, **_link_options(link.ends))


def links_of_nodes(plan: FabricPlan) -> Iterator[tuple[planned.Link, list[str]]]:
    """Yield the links between nodes, which the management bridges aren't, with both nodes."""
    bridges = {end.name: switch.bridge for switch in plan.switches for end in switch.ports}
    for link in plan.links:
        nodes = [end.node or bridges.get(end.name, "") for end in link.ends]
        if all(nodes) and link.tunnel is None:
            yield link, nodes


def _refuse(*_: object, **__: object) -> NoReturn:
    raise FabricError("a fabric has the nodes and links of its file: change it, and `moefabric up`")


def _link_options(ends: tuple[Interface, ...]) -> dict[str, Any]:
    """Return the ends of a link as options of Mininet's `addLink`."""
    options: dict[str, Any] = {}
    for number, end in enumerate(ends, start=1):
        options |= {
            f"port{number}": end.port or None,
            f"intfName{number}": end.name,
            f"params{number}": {"ip": next(iter(end.addresses), None), "own_mac": end.mac},
        }
    return options


class FabricNet(Mininet):
    """Mininet's network of a running fabric, which it neither makes nor removes."""

    def __init__(self, wiring: FabricWiring) -> None:
        """Describe the fabric; no shell starts before it is used.

        Raises:
            FabricError: if the fabric doesn't run.
        """
        Mininet.inited = True  # otherwise it would change sysctls of the whole machine
        self.on_stop: Callable[[], object] = lambda: None
        self._wiring, self._run_dir = wiring, named_run_directory(wiring.fabric.name)
        plan = plan_fabric(wiring.fabric, wiring.management)
        self._plan = plan.with_interfaces(wiring.interfaces)
        self._process = process_id(self._run_dir)
        self._pids: dict[str, int] = json.loads((self._run_dir.path / NODES).read_text())
        self._switches = {switch.bridge: switch.name for switch in self._plan.switches}
        here = [name for name in self._switches.values() if not wiring.machine_of(name)]
        self._peers = Counter(map(wiring.switch_controller, here))
        topo, kinds = FabricTopo(self._plan), {"host": self._host, "switch": self._switch}
        super().__init__(topo, controller=None, link=JoinedLink, intf=JoinedIntf, **kinds)
        self.addHost = self.addSwitch = self.addLink = _refuse
        for region in wiring.controlled:
            ip, port = wiring.management.openflow_endpoint(region)
            name = region.name if region else "eps"
            self.addController(name, FabricController, enter=list, ip=ip, port=port)

    def _host(self, name: str, **params: Any) -> FabricHost:
        enter = partial(exec_argv, self._run_dir.name, name)
        return FabricHost(name, enter=enter, pid=self._pids.get(name), **params)

    def _switch(self, name: str, **params: Any) -> JoinedSwitch:
        fabric = self._run_dir.name
        if name not in self._switches:
            params |= {"enter": partial(exec_argv, fabric, name), "pid": self._pids.get(name)}
            return FabricOcs(name, **params)
        switch = self._switches[name]
        controller = self._wiring.switch_controller(switch)
        machine = self._wiring.machine_of(switch)
        there = partial(remote_argv, self._run_dir, machine, "")
        return FabricSwitch(
            name,
            tools=str(self._run_dir.switches / f"{name}.mgmt"),
            controller=controller,
            peers=self._peers[controller],
            enter=there if machine else partial(exec_argv, fabric, ""),
            pid=None if machine else self._process,
            **params,
        )

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:  # noqa: N802 - Mininet's
        """Let the NICs between two nodes fail (`down`), or work again (`up`), as by `fault`."""
        change = hardware_injection.inject if status == "down" else hardware_injection.clear
        try:
            change(self._run_dir, FailureKind.NIC, self.nics_between(src, dst))
        except MoefabricError as refusal:
            error(f"{refusal}\n")

    def iperf(
        self,
        hosts: Sequence[FabricHost] | None = None,
        l4Type: str = "TCP",  # noqa: N803 - Mininet's name
        udpBw: str = "10M",  # noqa: N803
        seconds: int = 5,
        port: int = 5001,
        **_: object,
    ) -> list[str]:
        """Measure the rate between two servers; return that of the receiver and of the sender.

        Mininet's own waits forever for iperf 2.1, and ends every iperf of the machine.

        Raises:
            FabricError: if iperf3 fails.
        """
        client, server = hosts or (self.hosts[0], self.hosts[-1])
        output("*** Iperf: testing", l4Type, "bandwidth between", client, "and", server, "\n")
        options = ["-u", "-b", udpBw] if l4Type == "UDP" else []
        with server.popen("iperf3", "-s", "-1", "--forceflush", "-p", str(port)) as listener:
            try:
                while b"listening" not in (line := listener.stdout.readline()):
                    if not line:
                        raise FabricError(f"{server}: iperf3: {listener.stderr.read().decode()}")
                argv = ["iperf3", "-J", "-c", server.IP(), "-p", str(port), "-t", str(seconds)]
                end = json.loads(client.pexec([*argv, *options])[0]).get("end") or {}
            finally:
                listener.terminate()
        if "sum_received" not in end:
            raise FabricError(f"{client}: iperf3 doesn't reach {server}")
        rates = [end[side]["bits_per_second"] / 1e6 for side in ("sum_received", "sum_sent")]
        result = [udpBw] * bool(options) + [f"{rate:.3g} Mbits/sec" for rate in rates]
        output(f"*** Results: {result}\n")
        return result

    def nics_between(self, a: str, b: str) -> list[str]:
        """Return the NICs between two nodes; a server and its switch are one.

        Raises:
            FabricError: if there are none, or no such nodes.
        """
        if unknown := {a, b} - self.nameToNode.keys():
            raise FabricError(f"{', '.join(unknown)}: no such node; there are {', '.join(self)}")
        ends = {self._switches.get(node, node) for node in (a, b)}
        nics = [
            link.name
            for link, nodes in links_of_nodes(self._plan)
            if link.is_nic and {self._switches.get(node, node) for node in nodes} == ends
        ]
        if not nics:
            remedy = "NICs, servers and OCSes can fail (`moefabric fault --help`)"
            raise FabricError(f"{a} and {b}: no NIC is between them; {remedy}")
        return nics

    def stop(self) -> None:
        """End the shells; the fabric stays, unless `mn` has made it."""
        super().stop()
        self.on_stop()

    def end_shells(self) -> None:
        """End the shells, with what runs in them."""
        for node in self.values():
            node.terminate()


class FabricCLI(CLI):
    """Mininet's command line, which takes names with hyphens (`sw-s0 ip link`)."""

    identchars = CLI.identchars + "-"

    def do_source(self, line: str) -> None:
        """Run the commands of a file; Mininet's own fails once it can't read it."""
        try:
            Path(line.strip()).open().close()
        except OSError as fault:
            error(f"source: {line.strip()}: {fault.strerror}\n")
            return
        super().do_source(line)


def run_commands(net: FabricNet, commands: TextIO) -> None:
    """Run Mininet's command line on a network until `exit` or the end of its input.

    Input that isn't a terminal is a script: it is read line by line, and what the nodes' programs
    read is empty, while Mininet itself would hand them the rest of the script.
    """
    if commands.isatty():
        FabricCLI(net, stdin=commands)
        return
    silent, held = os.pipe()
    with os.fdopen(silent) as nothing, os.fdopen(held, "w"):
        line = FabricCLI(net, stdin=nothing, script=os.devnull)
        for text in commands:
            if line.onecmd(line.precmd(text.strip())):
                break
