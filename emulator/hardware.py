"""All of a fabric's hardware: made in order in the calling process's new namespace, taken away in reverse."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from emulator import links, mirrors, namespaces, uplink
from emulator import run_dir as run_dirs
from emulator.command import run
from emulator.datapath import named
from emulator.description import described
from emulator.optics import Optics
from emulator.order import NODES, Order
from emulator.ovs import OpenVSwitch
from emulator.plan import plan
from emulator.processes import OUTER, Crew, Role, end_marked, entering
from emulator.waiting import Deadline
from moefabric.management import RunDir

_GRACE_S: Final = 0.3
"""What a process gets between SIGTERM and SIGKILL."""


class Hardware:
    """The hardware of one fabric. `close` takes everything away that was made, whatever there is of it by then."""

    def __init__(self, run_dir: RunDir, order: Order, say: Callable[[str], None]) -> None:
        """Nothing is made yet; `say` is told of each stage."""
        self.run_dir, self.order, self._say = run_dir, order, say
        self.wiring = order.wiring
        self.plan = plan(self.wiring.fabric, self.wiring.management)
        self.deadline = Deadline.after(order.timeout_s)
        self.crew = Crew(run_dir)
        self.optics: dict[str, Optics] = {}
        self.pids: dict[str, int] = {}
        self.crossbar = self.wiring.crossbar
        self.remarks: list[str] = []
        """What this machine could not give."""
        self._outer_fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._outer = f"/proc/{os.getpid()}/fd/{self._outer_fd}"
        self._undo = ExitStack()
        self._undo.callback(os.close, self._outer_fd)
        self._undo.callback(run_dirs.abandon, run_dir)
        self._undo.callback(end_marked, run_dir.name)
        self._undo.callback(self._cut_off)

    def leave(self) -> None:
        """Leave for a namespace of its own; before any thread is started, for each has its namespace from its maker."""
        namespaces.leave()

    def make(self) -> None:
        """Make everything, and return when it works. FabricError with the place otherwise; then `close`."""
        self._say("management network")
        self._join_management()
        self._undo.callback(self.crew.stop, _GRACE_S)
        self._begin(OUTER)  # controllers take longest to start, so they come first
        self._say("servers")
        self._make_nodes()
        self._say("optics")
        self._make_optics()
        self._say("switches")
        self._make_switches()
        self._say("controllers")
        if self.order.having(Role.CONTROLLER):
            self._connect()
        self._say("agents")
        self._await_rest()
        links.verify_all(self.plan, self.pids)

    def _join_management(self) -> None:
        """Join the fabric's namespace to the one left, by the management network."""
        namespaces.within(self._outer, lambda: uplink.take_in(self.order.outer, os.getpid()))
        uplink.bridge(self.plan.bridge_address)

    def _cut_off(self) -> None:
        """Take the outer interface away."""
        namespaces.within(self._outer, lambda: uplink.remove(uplink.leftovers(self.run_dir.name)))

    def _begin(self, *places: str) -> None:
        """Start those of the processes that are in these places and aren't started by others."""
        for process in self.order.processes:
            if process.where in places and process.name not in self.order.external:
                there = self._outer if process.where == OUTER else self.pids[process.where]
                self.crew.start(process.name, entering(there, process.argv), process.env)

    def _make_nodes(self) -> None:
        """Servers, OCS nodes and wires, shaped later; agents start as soon as their server has its addresses."""
        from emulator import nodes  # Mininet takes 0.1 s to import; the controllers have started

        self.ovs = OpenVSwitch(self.run_dir.path / "ovs", named(self.wiring.switch))
        os.environ.update(self.ovs.environment)
        links.quiet()
        self.crew.start("ovsdb-server", self.ovs.database())
        self.net = nodes.network(self.plan, self.ovs.datapath)
        self._undo.callback(self._end_nodes)
        self.pids = nodes.pids(self.net, self.plan)
        self._switching = self.crew.start("ovs-vswitchd", self.ovs.daemon(self.deadline))
        links.make(self.plan, self.pids)
        nodes.add_wires(self.net, self.plan)
        self._begin(*self.plan.nodes)
        (self.run_dir.path / NODES).write_text(json.dumps(self.pids))

    def _end_nodes(self) -> None:
        """End the shells of all nodes, and with them their namespaces and all that is in these."""
        for node in self.net.values():
            if node.shell is not None:
                with suppress(ProcessLookupError):
                    os.killpg(node.shell.pid, signal.SIGKILL)
                node.shell.wait()

    def _make_optics(self) -> None:
        if not self.plan.ocses:
            return
        self.crossbar, why = mirrors.choose()
        if why:
            self.remarks.append(f"{self.crossbar} moves the light, for {why}")
        for ocs in self.plan.ocses:
            self.optics[ocs.name] = Optics(ocs, self.crossbar, self.pids[ocs.name], self.run_dir)
            self._undo.callback(self.optics[ocs.name].close)

    def _make_switches(self) -> None:
        bridges = [self.net[switch.bridge].bridge() for switch in self.plan.switches]
        self.ovs.make(bridges, self.deadline)
        links.shape_all(self.plan, self.pids)  # after add-port, which removes what it finds
        if why := self.ovs.widen(self._switching.pid, bridges[0], self.deadline):
            self.remarks.append(why)

    def _await_rest(self) -> None:
        for agent in self.order.having(Role.AGENT):
            self.deadline.until(partial(self._is_there, self.run_dir.agent(agent.where)), agent.name)
        if self.order.having(Role.OCS):
            for name, optics in self.optics.items():
                self.deadline.until(partial(self._is_served, optics), f"the process of {name}")
        self.crew.check()

    def _is_there(self, socket: Path) -> bool:
        return self.crew.check() and socket.is_socket()

    def _is_served(self, optics: Optics) -> bool:
        return self.crew.check() and optics.plant.served

    def _connect(self) -> None:
        """Connect each switch to its controller once that listens: OVS waits 1 s after a refusal.

        The kernel is asked which connections there are, since OVS's database tells of them a second or more later.
        """
        controllers = {switch.bridge: switch.controller for switch in self.plan.switches}
        wanted = set(controllers.values())
        told = ", ".join(f"{address}:{port}" for address, port in sorted(wanted))
        self.deadline.until(
            lambda: self.crew.check() and wanted <= self._listening(), f"a controller at {told}"
        )
        self.ovs.connect(controllers, self.deadline)
        needed = Counter(controllers.values())
        self.deadline.until(
            lambda: self.crew.check() and needed <= namespaces.connections(),
            f"the switches' connection to {told}",
        )

    def _listening(self) -> set[tuple[str, int]]:
        return namespaces.within(self._outer, namespaces.listening)

    def faults(self) -> list[str]:
        """What has ended that should run, in words."""
        return [one.epitaph for one in self.crew.running.values() if one.ended is not None]

    def describe(self) -> dict[str, Any]:
        """The hardware's part of `inspect --json`."""
        links_shown = json.loads(run(["ip", "-j", "link", "show"]))
        carrier = {link["ifname"]: "LOWER_UP" in link["flags"] for link in links_shown}
        alive = [(one.name, one.pid) for one in self.crew.running.values() if one.ended is None]
        told = described(self.wiring, self.plan, carrier, alive)
        return told | {"crossbar": self.crossbar, "remarks": self.remarks, "faults": self.faults()}

    def close(self) -> None:
        """Take everything away."""
        self._undo.close()
