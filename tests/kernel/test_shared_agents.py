"""Agents of several servers in one process: each has its server's network, and fails alone."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from moefabric.agents.fleet.channel import Channel, ask_all, connect_local, request_all
from moefabric.agents.fleet.connections import DataPath
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.messages import Message
from moefabric.core.errors import AgentError, FabricError, ServerLossError
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.marked_processes import kill_marked
from moefabric.emulator.linux.processes import ChildProcesses, ProcessSpec, prefork_argv
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.runtime.scratch_folder import scratch_folder
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.fabric_processes import fabric_processes
from tests.kernel.fabric_lab import Machine, small_fabric
from tests.support.agents_lab import arm, collect, kill_agent, paced_flow
from tests.support.namespaces import Island, island

HOST = prefork_argv("moefabric.agents.engine.host", bare=True)
RATE_BPS = 50e6
SERVERS = ("s0", "s1", "s2")


class Lab:
    """The agents of an island's namespaces in one process."""

    def __init__(self, where: Island, folder: Path) -> None:
        self.where, self.run_dir = where, RunDirectory(folder / f"shared-{os.getpid()}")
        for needed in (self.run_dir.log_folder, self.run_dir.agent_socket("s0").parent):
            needed.mkdir(parents=True)
        self.processes = ChildProcesses(self.run_dir)
        self.processes.start_all((self.spec(name), self.network(name)) for name in where.names)
        self.processes.wait_forked(Deadline.after(20))

    def network(self, server: str) -> str:
        return f"/run/netns/{self.where.netns(server)}"

    def spec(self, server: str) -> ProcessSpec:
        argv = ("--name", server, "--control", str(self.run_dir.agent_socket(server)))
        return ProcessSpec(f"agent-{server}", server, argv, prefork=HOST, host="agents-0")

    def channel(self, server: str) -> Channel:
        return connect_local(server, self.run_dir.agent_socket(server), 20)

    def signal(self, server: str, number: signal.Signals) -> None:
        self.processes.send_signal(f"agent-{server}", number)

    def paths(self) -> list[DataPath]:
        return [
            DataPath(a, b, "o0", self.where.addresses[b])
            for a in self.where.names
            for b in self.where.names
            if a != b
        ]


@pytest.fixture
def lab() -> Iterator[Lab]:
    # A path of a socket has 107 letters at most, which pytest's own folders would exceed.
    with island(*SERVERS) as where, scratch_folder("mf-shared-") as folder:
        lab = Lab(where, folder)
        try:
            yield lab
        finally:
            lab.processes.stop(grace_s=1)
            kill_marked(lab.run_dir.name)


@contextmanager
def connected(lab: Lab) -> Iterator[Fleet]:
    with Fleet([lab.channel(server) for server in SERVERS]) as fleet:
        fleet.connect(lab.paths())
        yield fleet


def listeners(place: str) -> set[tuple[str, int]]:
    return namespaces.run_in(place, namespaces.listening_addresses)


def test_sockets_are_in_the_network_of_their_server_only(lab: Lab) -> None:
    with connected(lab) as fleet:
        assert {fact["pid"] for fact in fleet.facts.values()} == {
            lab.processes.running["agents-0"].pid
        }
        for server in SERVERS:
            address = lab.where.addresses[server]
            own = listeners(lab.network(server))
            assert {place for place, _ in own} == {address}
            for other in {*SERVERS} - {server}:
                assert not own & listeners(lab.network(other))
            assert fleet.facts[server]["interfaces"]["o0"] == address
            counts = namespaces.run_in(lab.network(server), namespaces.connection_counts)
            assert counts.total() == 4, "two from here and two to here"
            refused = {fleet.channels[server]: ("listen", {"addresses": ["10.99.0.77"]})}
            with pytest.raises(AgentError, match=rf"{server}: can't listen on 10\.99\.0\.77"):
                request_all(refused, 5)
        host = namespaces.path_of(lab.processes.running["agents-0"].pid)
        assert not listeners(host) & set().union(*(listeners(lab.network(s)) for s in SERVERS))


def test_killed_agent_closes_its_sockets_and_no_others(lab: Lab) -> None:
    with connected(lab) as fleet:
        flows = [
            paced_flow("s1", "s0", 10_000_000, RATE_BPS),
            paced_flow("s0", "s2", 10_000_000, RATE_BPS),
            paced_flow("s1", "s2", 1_000_000, RATE_BPS),
        ]
        arm(fleet, 1, flows, 20)
        while not fleet.request("stats")["s2"]["bytes_received"]:
            pass
        lab.signal("s0", signal.SIGKILL)
        with pytest.raises(ServerLossError) as loss:
            collect(fleet, 1)
        assert loss.value.servers == {"s0"}
        assert not listeners(lab.network("s0"))
        fleet.drop(["s0"])
        fleet.abandon(1)
        connections = request_all({fleet.channels[s]: ("stats", {}) for s in ("s1", "s2")}, 5)
        for server in ("s1", "s2"):
            [lost] = [c for c in connections[server]["connections"] if c["peer"] == "s0"]
            assert lost["state"] == "lost"
        fleet.reconnect()
        (record,) = fleet.run(2, [paced_flow("s1", "s2", 1_000_000)])
        assert record.ok, record.why
    assert list(lab.processes.ends()) == ["agent-s0 was killed"]
    lab.signal("s0", signal.SIGCONT)  # nothing more can happen to it
    with pytest.raises(FabricError, match="agent-s0 was killed"):
        lab.processes.check_alive()


def test_stopped_agent_is_silent_and_goes_on_where_it_was(lab: Lab) -> None:
    with connected(lab) as fleet:
        quick, slow = paced_flow("s1", "s2", 500_000), paced_flow("s1", "s0", 3_000_000)
        lab.signal("s0", signal.SIGSTOP)
        requests: dict[Channel, tuple[str, Message]] = {
            channel: ("clock", {}) for channel in fleet.channels.values()
        }
        assert {channel.name for channel in ask_all(requests, 0.5)} == {"s1", "s2"}
        arm(fleet, 1, [slow], 20)
        assert fleet.run(2, [quick])[0].ok
        lab.signal("s0", signal.SIGSTOP)  # a second one changes nothing
        lab.signal("s0", signal.SIGCONT)
        (record,) = collect(fleet, 1)
        assert record.ok, record.why
        assert len(ask_all(requests, 5)) == 3


def test_end_of_the_process_is_the_end_of_all_its_agents(lab: Lab) -> None:
    with connected(lab) as fleet:
        os.kill(lab.processes.running["agents-0"].pid, signal.SIGKILL)
        with pytest.raises(ServerLossError) as loss:
            fleet.request("stats")
        assert loss.value.servers == {*SERVERS}
    Deadline.after(20).wait_for(lambda: any(lab.processes.ends()), "the end")
    assert list(lab.processes.ends()) == [
        "agents-0 ended (signal 9), saying: nothing; with it ended agent-s0, agent-s1, agent-s2"
    ]
    lab.signal("s0", signal.SIGSTOP)  # as to a process that has ended


def agents(wiring: FabricWiring, run_dir: RunDirectory) -> list[ProcessSpec]:
    return [spec for spec in fabric_processes(wiring, run_dir) if spec.name.startswith("agent-")]


@contextmanager
def up(machine: Machine, fabric: Fabric, *, shared: bool) -> Iterator[dict[str, int]]:
    """Yield the pid of each process of a fabric that has agents only."""
    wanted = replace(lifecycle.wanted(fabric, "bpf"), shared_agents=shared)
    machine.run(partial(lifecycle.up, wanted, agents))
    try:
        shown = lifecycle.inspect(fabric.name)["processes"]
        yield {process["name"]: process["pid"] for process in shown}
    finally:
        machine.down(fabric.name)


def test_fabric_reports_killed_agents_and_shows_who_shares(machine: Machine) -> None:
    fabric = small_fabric("share", servers=("s0", "s1", "s2", "s3"))
    with up(machine, fabric, shared=True):
        shown = {one["name"]: one for one in lifecycle.inspect("share")["processes"]}
        served = [one.get("servers", []) for one in shown.values()]
        assert sorted(server for part in served for server in part) == [*fabric.servers]
        kill_agent("share", "s2")
        assert lifecycle.inspect("share")["faults"] == ["agent-s2 was killed"]
        shown = {one["name"]: one for one in lifecycle.inspect("share")["processes"]}
        assert all("s2" not in one.get("servers", []) for one in shown.values())
        for server in ("s0", "s1", "s3"):
            socket = RunDirectory.of_fabric("share").agent_socket(server)
            with closing(connect_local(server, socket)) as channel:
                request_all({channel: ("clock", {})}, 5)


def test_separate_agents_have_processes_in_the_namespaces_of_their_servers(
    machine: Machine,
) -> None:
    fabric = small_fabric("apart")
    with up(machine, fabric, shared=False) as pids:
        assert not [name for name in pids if name.startswith("agents-")]
        places = {Path(namespaces.path_of(pids[f"agent-{s}"])).readlink() for s in fabric.servers}
        assert len(places) == 2
        kill_agent("apart", "s0")
        Deadline.after(20).wait_for(lambda: bool(lifecycle.inspect("apart")["faults"]), "fault")
        assert lifecycle.inspect("apart")["faults"] == [
            "agent-s0 ended (signal 9), saying: nothing"
        ]
