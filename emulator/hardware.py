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

from emulator import electrical, links, mirrors, namespaces, uplink
from emulator import run_dir as run_dirs
from emulator.command import run
from emulator.datapath import named
from emulator.description import described
from emulator.keeping import Keeping
from emulator.optics import Optics
from emulator.order import NODES, Order
from emulator.outages import Outages
from emulator.plan import plan
from emulator.processes import OUTER, Crew, Process, Role, adopt_orphans, bury_orphans, end_marked
from emulator.waiting import Beside, Deadline
from moefabric.errors import FabricError
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
        self.outages = Outages(self.plan, self._signal_agent)
        self.remarks: list[str] = []
        """What this machine could not give."""
        self._outer_fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._outer = f"/proc/{os.getpid()}/fd/{self._outer_fd}"
        self._undo = ExitStack()
        self._undo.callback(os.close, self._outer_fd)
        self._undo.callback(run_dirs.abandon, run_dir)
        self._undo.callback(self._cut_off)
        self._undo.callback(
            self._end_rest
        )  # before the addresses that they listen on are free for another fabric

    def leave(self) -> None:
        """Leave for a namespace of its own; before any thread is started, for each has its namespace from its maker.

        From now on what any process of the fabric leaves behind is the caller's to end.
        """
        namespaces.leave()
        adopt_orphans()

    def make(self) -> None:
        """Make everything, and return when it works. FabricError with the place otherwise; then `close`."""
        self._say("management network")
        self._join_management()
        self._undo.callback(self.crew.stop, _GRACE_S)
        self._undo.callback(self.outages.release)
        self._begin(OUTER)  # controllers take longest to start, so they come first
        self._say("servers")
        self._make_nodes()
        switching = Beside("switches", partial(self.switches.make, self.plan.switches, self.deadline))
        self._say("optics")
        self._make_optics()
        self._say("switches")
        switching.done(self.deadline)
        # After OVS's add-port, which removes the queueing that it finds; rules may come meanwhile.
        shaping = Beside("shaping", partial(links.shape_all, self.plan, self.pids))
        self._say("controllers")
        if self.order.having(Role.CONTROLLER):
            self._connect()
        shaping.done(self.deadline)
        if why := self.switches.settle(self.deadline):
            self.remarks.append(why)
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

    def _end_rest(self) -> None:
        """End what is left of processes, orphans of ours too."""
        end_marked(self.run_dir.name)
        with suppress(FabricError):
            bury_orphans(Deadline.after(_GRACE_S))

    def _begin(self, *places: str) -> None:
        """Start those of the processes that are in these places."""
        self.crew.start_all(
            (process, self._outer if process.where == OUTER else self.pids[process.where])
            for process in self._ours
            if process.where in places
        )

    @property
    def _ours(self) -> list[Process]:
        """The processes that nobody else starts."""
        return [process for process in self.order.processes if process.name not in self.order.external]

    def _make_nodes(self) -> None:
        """Servers, OCS nodes and wires, shaped later; agents start as soon as their server has its addresses."""
        keeping = self._undo.enter_context(Keeping(self.plan.nodes, self.run_dir.name))
        datapath = named(self.wiring.switch)
        self.switches = electrical.switches(datapath, self.run_dir.switches, self.crew.start)
        links.quiet()
        self.switches.begin(self.deadline)
        self.crew.warm(self._ours)
        from emulator import nodes  # Mininet takes 0.1 s to import; all that can has started

        self.pids = keeping.pids(self.deadline)
        self.net = nodes.network(self.plan, self.pids)
        self._undo.callback(nodes.end_shells, self.net)
        links.make(self.plan, self.pids)
        nodes.add_wires(self.net)
        self._begin(*self.plan.nodes)
        (self.run_dir.path / NODES).write_text(json.dumps(self.pids))

    def _make_optics(self) -> None:
        if not self.plan.ocses:
            return
        self.crossbar, why = mirrors.choose()
        if why:
            self.remarks.append(f"{self.crossbar} moves the light, for {why}")
        for ocs in self.plan.ocses:
            self.optics[ocs.name] = Optics(ocs, self.crossbar, self.pids[ocs.name], self.run_dir)
            self._undo.callback(self.optics[ocs.name].close)

    def _await_rest(self) -> None:
        self.crew.gather(self.deadline)
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
        self.switches.connect(controllers, self.deadline)
        needed = Counter(controllers.values())
        self.deadline.until(
            lambda: self.crew.check() and needed <= namespaces.connections(),
            f"the switches' connection to {told}",
        )

    def _listening(self) -> set[tuple[str, int]]:
        return namespaces.within(self._outer, namespaces.listening)

    def _signal_agent(self, server: str, number: signal.Signals) -> None:
        """To its agent, if that is one that was started here."""
        for agent in self.order.having(Role.AGENT):
            if agent.where == server and agent.name in self.crew.running:
                self.crew.running[agent.name].signal(number)

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
