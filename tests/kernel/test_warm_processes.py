"""What makes a large fabric quick to start, each by itself: keepers of namespaces, processes forked from a warm one, netlink in batches."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from agents.channel import Channel, local
from emulator import namespaces, netlink, nodes
from emulator.command import run
from emulator.keeping import Keeping
from emulator.plan import plan
from emulator.processes import Crew, Process, end_marked, marked, nursery
from emulator.waiting import Deadline
from moefabric.errors import FabricError
from moefabric.management import Management, RunDir
from moefabric.topology import Eps, Fabric, Region

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]
T = TypeVar("T")
AGENT = nursery("agents.engine.start", bare=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir(tmp_path / f"warm-{os.getpid()}")
    made.log("any").parent.mkdir(parents=True)
    yield made
    end_marked(made.name)


@pytest.fixture
def kept(run_dir: RunDir) -> Iterator[dict[str, int]]:
    with Keeping(("s0", "s1"), run_dir.name) as keeping:
        yield keeping.pids(Deadline.after(20))


def inside(pid: int, do: Callable[[], T]) -> T:
    return namespaces.within(namespaces.of(pid), do)


def agent(run_dir: RunDir, server: str) -> Process:
    return Process(
        f"agent-{server}", server, ("--name", server, "--control", socket_of(run_dir, server)), warm=AGENT
    )


def socket_of(run_dir: RunDir, server: str) -> str:
    return str(run_dir.path / f"{server}.sock")


def channel(run_dir: RunDir, server: str) -> Channel:
    return local(server, Path(socket_of(run_dir, server)))


def test_each_node_is_kept_in_namespaces_of_its_own_that_end_with_its_keeper(run_dir: RunDir) -> None:
    with Keeping(("s0", "s1"), run_dir.name) as keeping:
        pids = keeping.pids(Deadline.after(20))
        places = {
            Path(f"/proc/{pid}/ns/{kind}").readlink()
            for pid in (*pids.values(), os.getpid())
            for kind in ("net", "mnt")
        }
        assert len(places) == 6
        assert sorted(pids.values()) == marked(run_dir.name)
        seen = run(["nsenter", "-t", str(pids["s0"]), "-n", "-m", "ls", "/sys/class/net"]).split()
        assert seen == ["lo"], "/sys tells of the node's own interfaces"
    assert marked(run_dir.name) == []


def test_agents_are_forked_at_their_places_and_an_end_of_one_is_told_by_name(
    run_dir: RunDir, kept: dict[str, int]
) -> None:
    crew = Crew(run_dir)
    crew.start_all((agent(run_dir, server), pid) for server, pid in kept.items())
    crew.gather(Deadline.after(20))
    for server, pid in kept.items():
        with closing(channel(run_dir, server)):
            forked = crew.running[f"agent-{server}"]
            assert forked.ended is None
            for kind in ("net", "mnt"):
                assert Path(f"/proc/{forked.pid}/ns/{kind}").samefile(f"/proc/{pid}/ns/{kind}")
            assert os.getsid(forked.pid) == forked.pid
            assert forked.pid in marked(run_dir.name)
    assert crew.check()
    os.kill(crew.running["agent-s1"].pid, signal.SIGKILL)
    Deadline.after(5).until(lambda: crew.running["agent-s1"].ended == -signal.SIGKILL, "the end of an agent")
    with pytest.raises(FabricError, match="agent-s1 exited -9, saying: nothing"):
        crew.check()
    crew.stop(grace_s=1)
    assert marked(run_dir.name) == sorted(kept.values())


def test_a_forked_program_that_refuses_leaves_its_words(run_dir: RunDir, kept: dict[str, int]) -> None:
    crew = Crew(run_dir)
    crew.start_all(
        [(Process("lost", "s0", ("--name", "s0", "--control", "/no/such/place"), warm=AGENT), kept["s0"])]
    )
    crew.gather(Deadline.after(20))
    Deadline.after(5).until(lambda: crew.running["lost"].ended is not None, "its end")
    with pytest.raises(FabricError, match=r"lost exited 1, saying: agent s0: .*No such file or directory"):
        crew.check()
    crew.stop(grace_s=0)


def test_a_program_that_cannot_be_loaded_is_named(run_dir: RunDir, kept: dict[str, int]) -> None:
    crew = Crew(run_dir)
    crew.start_all([(Process("x", "s0", (), warm=nursery("no.such.module")), kept["s0"])])
    with pytest.raises(FabricError, match=r"nursery-no\.such\.module exited 1, saying: ModuleNotFoundError"):
        crew.gather(Deadline.after(20))
    crew.stop(grace_s=0)


def test_a_crew_that_stops_leaves_no_half_born_process(run_dir: RunDir, kept: dict[str, int]) -> None:
    crew = Crew(run_dir)
    crew.start_all((agent(run_dir, server), pid) for server, pid in kept.items())
    crew.stop(grace_s=0)
    end_marked(run_dir.name)
    assert marked(run_dir.name) == []


def test_a_batch_gives_addresses_neighbours_and_life(kept: dict[str, int]) -> None:
    def ask() -> list[dict[str, object]]:
        run(["ip", "link", "add", "name", "a", "type", "veth", "peer", "name", "b"])
        index = json.loads(run(["ip", "-j", "link", "show", "a"]))[0]["ifindex"]
        many = [netlink.address("s0/host", index, f"10.0.{n // 250}.{n % 250 + 1}/8") for n in range(500)]
        known = netlink.neighbour("s0/host", index, "10.9.9.9", "02:00:0a:00:01:01")
        netlink.ask([netlink.up("s0/host", index), *many, known])
        assert "UP" in json.loads(run(["ip", "-j", "link", "show", "a"]))[0]["flags"]
        (neighbour,) = json.loads(run(["ip", "-j", "neigh", "show", "dev", "a"]))
        assert (neighbour["dst"], neighbour["lladdr"], neighbour["state"]) == (
            "10.9.9.9",
            "02:00:0a:00:01:01",
            ["PERMANENT"],
        )
        return list(json.loads(run(["ip", "-j", "-4", "address", "show", "dev", "a"]))[0]["addr_info"])

    given = inside(kept["s0"], ask)
    assert len(given) == 500
    assert (given[0]["local"], given[0]["prefixlen"]) == ("10.0.0.1", 8)


def test_what_the_kernel_refuses_is_told_with_its_place_and_the_rest_is_done(kept: dict[str, int]) -> None:
    def ask() -> None:
        requests = [
            netlink.up("s7/o1", 4711),
            netlink.ingress("s0", 1),
            netlink.ingress("s0", 1),
            netlink.up("s0", 1),
        ]
        with pytest.raises(FabricError, match=r"^s7/o1: up: No such device$"):
            netlink.ask(requests)
        assert "UP" in json.loads(run(["ip", "-j", "link", "show", "lo"]))[0]["flags"]

    inside(kept["s0"], ask)


def test_a_mininet_node_has_a_shell_once_it_is_asked_something(run_dir: RunDir) -> None:
    servers = ("s0", "s1")
    wired = plan(
        Fabric("warm", (Region("r0", 0, servers, None),), 1, 0, 1, 1e9, Eps(2)), Management("198.18.0.0/24")
    )
    with Keeping(servers, run_dir.name) as keeping:
        pids = keeping.pids(Deadline.after(20))
        net = nodes.network(wired, pids)
        assert [net[server].shell for server in servers] == [None, None]
        assert (net["s0"].cmd("ls /sys/class/net").split(), net["s0"].pid) == (["lo"], pids["s0"])
        assert Path(f"/proc/{net['s0'].shell.pid}/ns/net").samefile(namespaces.of(pids["s0"]))
        assert net["s1"].shell is None
        with net["s1"].popen("ls", "/sys/class/net", text=True) as listing:
            assert listing.communicate()[0].split() == ["lo"]
        assert net["sw-s0"].cmd("readlink /proc/self/ns/net").strip() == str(
            Path("/proc/self/ns/net").readlink()
        )
        nodes.end_shells(net)
        for name in ("s0", "sw-s0"):
            net[name].cleanup()
