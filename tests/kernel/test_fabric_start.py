"""Parts that start a large fabric quickly: namespace holders, prefork servers, netlink batches."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from moefabric.agents.fleet.channel import Channel, connect_local
from moefabric.core.errors import FabricError
from moefabric.emulator.linux import namespaces, netlink
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.marked_processes import kill_marked, marked_pids
from moefabric.emulator.linux.namespace_holders import NamespaceHolders
from moefabric.emulator.linux.processes import ChildProcesses, ProcessSpec, prefork_argv
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline

T = TypeVar("T")
AGENT = prefork_argv("moefabric.agents.engine.main", bare=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(tmp_path / f"start-{os.getpid()}")
    directory.log_folder.mkdir(parents=True)
    yield directory
    kill_marked(directory.name)


@pytest.fixture
def pids(run_dir: RunDirectory) -> Iterator[dict[str, int]]:
    with NamespaceHolders(("s0", "s1"), run_dir.name) as holders:
        yield holders.pids(Deadline.after(20))


def run_inside(pid: int, function: Callable[[], T]) -> T:
    return namespaces.run_in(namespaces.path_of(pid), function)


def agent(run_dir: RunDirectory, server: str) -> ProcessSpec:
    return ProcessSpec(
        f"agent-{server}",
        server,
        ("--name", server, "--control", socket_path(run_dir, server)),
        prefork=AGENT,
    )


def socket_path(run_dir: RunDirectory, server: str) -> str:
    return str(run_dir.path / f"{server}.sock")


def channel(run_dir: RunDirectory, server: str) -> Channel:
    return connect_local(server, Path(socket_path(run_dir, server)))


def test_each_node_has_own_namespaces_until_holders_close(run_dir: RunDirectory) -> None:
    with NamespaceHolders(("s0", "s1"), run_dir.name) as holders:
        pids = holders.pids(Deadline.after(20))
        namespace_links = {
            Path(f"/proc/{pid}/ns/{kind}").readlink()
            for pid in (*pids.values(), os.getpid())
            for kind in ("net", "mnt")
        }
        assert len(namespace_links) == 6
        [holder] = marked_pids(run_dir.name)
        assert all(Path(f"/proc/{holder}/task/{pid}").is_dir() for pid in pids.values())
        interfaces = run(
            ["nsenter", "-t", str(pids["s0"]), "-n", "-m", "ls", "/sys/class/net"]
        ).split()
        assert interfaces == ["lo"], "/sys shows the node's own interfaces"
    assert marked_pids(run_dir.name) == []


def test_agents_are_forked_in_their_namespaces_and_death_is_reported(
    run_dir: RunDirectory, pids: dict[str, int]
) -> None:
    processes = ChildProcesses(run_dir)
    processes.start_all((agent(run_dir, server), pid) for server, pid in pids.items())
    processes.wait_forked(Deadline.after(20))
    for server, pid in pids.items():
        with closing(channel(run_dir, server)):
            forked = processes.running[f"agent-{server}"]
            assert forked.exit_status is None
            for kind in ("net", "mnt"):
                assert Path(f"/proc/{forked.pid}/ns/{kind}").samefile(f"/proc/{pid}/ns/{kind}")
            assert os.getsid(forked.pid) == forked.pid
            assert forked.pid in marked_pids(run_dir.name)
    assert processes.check_alive()
    os.kill(processes.running["agent-s1"].pid, signal.SIGKILL)
    Deadline.after(30).wait_for(
        lambda: processes.running["agent-s1"].exit_status == -signal.SIGKILL, "the end of an agent"
    )
    with pytest.raises(FabricError, match=r"agent-s1 ended \(signal 9\), saying: nothing"):
        processes.check_alive()
    processes.stop(grace_s=1)
    assert len(marked_pids(run_dir.name)) == 1, "the holder of the namespaces"


def test_forked_program_that_fails_is_reported_with_its_last_line(
    run_dir: RunDirectory, pids: dict[str, int]
) -> None:
    processes = ChildProcesses(run_dir)
    processes.start_all(
        [
            (
                ProcessSpec(
                    "lost", "s0", ("--name", "s0", "--control", "/no/such/place"), prefork=AGENT
                ),
                pids["s0"],
            )
        ]
    )
    processes.wait_forked(Deadline.after(20))
    Deadline.after(30).wait_for(
        lambda: processes.running["lost"].exit_status is not None, "its end"
    )
    with pytest.raises(
        FabricError, match=r"lost exited 1, saying: agent s0: .*No such file or directory"
    ):
        processes.check_alive()
    processes.stop(grace_s=0)


def test_module_that_does_not_import_is_named(run_dir: RunDirectory, pids: dict[str, int]) -> None:
    processes = ChildProcesses(run_dir)
    processes.start_all(
        [(ProcessSpec("x", "s0", (), prefork=prefork_argv("no.such.module")), pids["s0"])]
    )
    with pytest.raises(
        FabricError, match=r"prefork-no\.such\.module exited 1, saying: ModuleNotFoundError"
    ):
        processes.wait_forked(Deadline.after(20))
    processes.stop(grace_s=0)


def test_stop_during_fork_leaves_no_process(run_dir: RunDirectory, pids: dict[str, int]) -> None:
    processes = ChildProcesses(run_dir)
    processes.start_all((agent(run_dir, server), pid) for server, pid in pids.items())
    processes.stop(grace_s=0)
    kill_marked(run_dir.name)
    assert marked_pids(run_dir.name) == []


def test_netlink_batch_sets_addresses_neighbours_and_state(pids: dict[str, int]) -> None:
    def configure() -> list[dict[str, object]]:
        run(["ip", "link", "add", "name", "a", "type", "veth", "peer", "name", "b"])
        index = json.loads(run(["ip", "-j", "link", "show", "a"]))[0]["ifindex"]
        many = [
            netlink.address("s0/host", index, f"10.0.{n // 250}.{n % 250 + 1}/8")
            for n in range(500)
        ]
        entry = netlink.neighbour("s0/host", index, "10.9.9.9", "02:00:0a:00:01:01")
        netlink.execute([netlink.link_up("s0/host", index), *many, entry])
        assert "UP" in json.loads(run(["ip", "-j", "link", "show", "a"]))[0]["flags"]
        (neighbour,) = json.loads(run(["ip", "-j", "neigh", "show", "dev", "a"]))
        assert (neighbour["dst"], neighbour["lladdr"], neighbour["state"]) == (
            "10.9.9.9",
            "02:00:0a:00:01:01",
            ["PERMANENT"],
        )
        return list(
            json.loads(run(["ip", "-j", "-4", "address", "show", "dev", "a"]))[0]["addr_info"]
        )

    addresses = run_inside(pids["s0"], configure)
    assert len(addresses) == 500
    assert (addresses[0]["local"], addresses[0]["prefixlen"]) == ("10.0.0.1", 8)


def test_netlink_batch_names_refused_request_and_executes_others(pids: dict[str, int]) -> None:
    def configure() -> None:
        requests = [
            netlink.link_up("s7/o1", 4711),
            netlink.ingress("s0", 1),
            netlink.ingress("s0", 1),
            netlink.link_up("s0", 1),
        ]
        with pytest.raises(FabricError, match=r"^s7/o1: up: No such device$"):
            netlink.execute(requests)
        assert "UP" in json.loads(run(["ip", "-j", "link", "show", "lo"]))[0]["flags"]

    run_inside(pids["s0"], configure)
