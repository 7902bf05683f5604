"""Servers that are containers of an unmodified image, on a real engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moefabric import EmulatedFabric, FabricError, Lab
from moefabric.core.errors import RankFailedError
from moefabric.core.port_counts import SENT, counted_nics
from moefabric.emulator.fabric import node_commands
from moefabric.emulator.fabric.daemon_protocol import process_id
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.execution.programs.rank_jobs import Rank, RankJob, RankPlace
from moefabric.execution.programs.rank_processes import RankProcesses
from moefabric.runtime.failure_log import read_failure_log
from moefabric.runtime.run_directory import run_root
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.testbed import port_counters
from tests.support.namespaces import must, own_machine

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
MEMORY, CPUS = 300_000_000, 0.5
KEYS: dict[str, Any] = {
    "gpus_per_server": 2,
    "nic_rate": "100Gb/s",
    "nics": {"optical": 2, "electrical": 1},
    "regions": [{"servers": 4, "ocs": {"settle": "10ms"}}],
    "scale": {"bytes": 1000},
}
LIMITED = {
    "command": ["sleep", "infinity"],
    "cpus": CPUS,
    "memory": MEMORY,
    "environment": {"COLOUR": "blue"},
}
SIZE = 3_000_000
RECEIVER = """
use IO::Socket::INET;
$| = 1;
$listener = IO::Socket::INET->new(LocalPort => 5000, Listen => 1, ReuseAddr => 1) or die $!;
print "ready\\n";
$connection = $listener->accept;
$received += length while sysread $connection, $_, 65536;
print "$received\\n";
"""


@pytest.fixture(scope="module", autouse=True)
def machine() -> Iterator[None]:
    with own_machine():
        yield


@pytest.fixture(scope="module")
def peer(engine: docker.DockerClient, base: str) -> Iterator[Container]:
    """Container that is a server of `lab`."""
    with container_with_network(engine, base, "peer") as container:
        yield container


@pytest.fixture
def other(engine: docker.DockerClient, base: str) -> Iterator[Container]:
    """Container that is in no fabric yet."""
    with container_with_network(engine, base, "other") as container:
        yield container


@contextmanager
def container_with_network(
    engine: docker.DockerClient, base: str, name: str
) -> Iterator[Container]:
    """Yield a container with a network of its own: eth0, 172.30.0.2."""
    container = engine.containers.run(
        base,
        ["sleep", "infinity"],
        name=f"moefabric-test-{os.getpid()}-{name}",
        network_mode="none",
        init=True,
        detach=True,
    )
    try:
        container.reload()
        in_network(container, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "veth0")
        in_network(container, "ip", "address", "add", "172.30.0.2/16", "dev", "eth0")
        in_network(container, "ip", "link", "set", "eth0", "up")
        yield container
    finally:
        container.remove(force=True)


def in_network(container: Container, *words: str) -> str:
    """Run a program of this machine in a container's network."""
    pid = container.attrs["State"]["Pid"]
    return must("nsenter", "-t", str(pid), "-n", *words)


def network_state(container: Container) -> list[str]:
    """Return what a fabric changes in a container's network."""
    names = ("tcp_rmem", "tcp_congestion_control", "tcp_min_tso_segs")
    return [
        *in_network(container, "ip", "-brief", "address").splitlines(),
        *in_network(container, "ip", "route").splitlines(),
        *in_network(container, "sysctl", *(f"net.ipv4.{name}" for name in names)).splitlines(),
    ]


def fabric(base: str, peer: Container, name: str = "boxes") -> EmulatedFabric:
    servers = {"s0": {"container": {"image": base} | LIMITED}, "s1": {"container": peer.name}}
    return EmulatedFabric(fabric=name, servers=servers, **KEYS)


def containers_of(engine: docker.DockerClient, name: str) -> list[Container]:
    found: list[Container] = engine.containers.list(
        all=True, filters={"label": f"moefabric.fabric={name}"}
    )
    return found


@pytest.fixture(scope="module")
def lab(engine: docker.DockerClient, base: str, peer: Container) -> Iterator[Lab]:
    before = network_state(peer)
    with fabric(base, peer).up() as lab:
        assert len(containers_of(engine, "boxes")) == 1
        yield lab
    assert containers_of(engine, "boxes") == []
    assert marked_pids("boxes") == []
    assert not (run_root() / "boxes").exists()
    assert network_state(peer) == before
    peer.reload()
    assert peer.status == "running"


def sent_by(lab: Lab, sender: str, receiver: str) -> Mapping[str, int]:
    """Send SIZE bytes by the servers' own programs; return the bytes that left by each NIC."""
    nics = [str(nic) for nic in counted_nics(lab.fabric)]
    with port_counters(lab.fabric) as counters:
        before = counters.read()
        arguments: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
        with lab.popen(receiver, ["perl", "-e", RECEIVER], **arguments) as receiving:
            assert receiving.stdout is not None
            assert receiving.stdout.readline() == "ready\n"
            to = f"/dev/tcp/{lab.address(receiver)}/5000"
            send = ["bash", "-c", f"head -c {SIZE} /dev/zero > {to}"]
            lab.exec(sender, send, timeout_s=60, check=True)
            assert receiving.communicate(timeout=60)[0] == f"{SIZE}\n"
        sent = counters.read().payload_since(before)[:, SENT]
    return {nic: int(size) for nic, size in zip(nics, sent, strict=True) if size > SIZE / 2}


@pytest.mark.parametrize(("sender", "receiver"), [("s0", "s1"), ("s1", "s0"), ("s0", "s2")])
def test_programs_in_containers_reach_each_other_over_the_eps(
    lab: Lab, sender: str, receiver: str
) -> None:
    lab.dark()
    assert sent_by(lab, sender, receiver).keys() == {f"{sender}/e0"}


def test_programs_in_containers_follow_the_light(lab: Lab) -> None:
    lab.light("s0/o0~s1/o1", "s2/o0~s3/o0")
    assert sent_by(lab, "s0", "s1").keys() == {"s0/o0"}
    assert sent_by(lab, "s1", "s0").keys() == {"s1/o1"}


def test_agents_in_containers_carry_collectives(lab: Lab) -> None:
    (row,) = lab.perf("alltoall", 1_000_000, iterations=1, warm_up=0).rows
    assert row.wrong == 0


def test_capture_of_a_container_with_another_interface(lab: Lab, tmp_path: Path) -> None:
    with lab.capture("s1", tmp_path / "s1.pcap") as capture:
        sent_by(lab, "s0", "s1")
    assert capture.frames > 0


def test_commands_have_the_files_variables_and_status_of_the_container(lab: Lab) -> None:
    script = "echo $COLOUR; cat > /kept; hostname; echo wrong >&2; exit 7"
    completed = lab.exec("s0", ["sh", "-c", script], stdin="text")
    assert completed.returncode == 7
    assert completed.stdout.split() == ["blue", "s0"]
    assert completed.stderr == "wrong\n"
    assert lab.exec("s0", "cat /kept").stdout == "text"
    assert not Path("/kept").exists()
    assert lab.exec("s2", "cat /kept").returncode != 0


def test_names_of_servers_resolve_in_a_new_container(lab: Lab) -> None:
    address = lab.exec("s0", "getent ahostsv4 s3.r0").stdout.split()[0]
    assert address == lab.address("s3")


def test_much_output_arrives_in_full(lab: Lab) -> None:
    argv = lab.exec_argv("s0", ["head", "-c", "5000000", "/dev/zero"])
    assert len(subprocess.run(argv, capture_output=True, check=True).stdout) == 5_000_000


def test_signal_ends_the_command_in_the_container(lab: Lab) -> None:
    trap = "trap 'echo ending; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    with lab.popen("s1", ["sh", "-c", trap], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.terminate()
        assert program.communicate(timeout=20)[0] == "ending\n"
        assert program.returncode == 9


def test_ranks_run_in_containers_and_end_together(lab: Lab) -> None:
    lines, printed = list[str](), threading.Event()
    fails = "[ $RANK = 0 ] || { until [ -e /printed ]; do sleep 0.05; done; exit 4; }"
    launcher = partial(node_commands.exec_argv, "boxes")
    place = RankPlace(launcher, ("s0", "s1"), lab.address("s0"))
    job = RankJob(place, ("sh", "-c", f"echo $RANK $COLOUR; {fails}; exec sleep 600"))

    def take(rank: Rank, stream: str, line: str) -> None:
        lines.append(line)
        if len(lines) == len(job.ranks):
            printed.set()

    with RankProcesses(job, take) as ranks:
        assert printed.wait(60), lines
        lab.exec("s1", "touch /printed", check=True)
        with pytest.raises(RankFailedError, match="rank 1 on s1 exited 4"):
            ranks.wait(60)
        assert sorted(lines) == ["0 blue", "1"]


REACH_AGENT = """
use Socket;
socket(my $link, AF_UNIX, SOCK_SEQPACKET, 0) or die $!;
connect($link, pack_sockaddr_un("\\0" . substr $ARGV[0], 1)) or die $!;
print "connected\n";
"""


@pytest.mark.parametrize("server", ["s0", "s1"])
def test_ranks_in_containers_reach_the_agent_by_name(lab: Lab, server: str) -> None:
    address = lab.wiring.rank_address(server)
    completed = lab.exec(server, ["perl", "-e", REACH_AGENT, address])
    assert (completed.stdout, completed.stderr) == ("connected\n", "")


def test_programs_in_containers_see_no_file_or_process_of_the_fabric(lab: Lab) -> None:
    assert lab.exec("s0", ["ls", str(lab.run_directory.token_file)]).returncode
    commands = lab.exec("s0", ["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout
    assert "cmdline" in commands
    assert "moefabric" not in commands


def test_limits_hold_for_programs_and_the_agent(lab: Lab) -> None:
    agent = next(p["pid"] for p in lab.inspect()["processes"] if p["name"] == "agent-s0")
    container = next(s for s in lab.inspect()["servers"] if s["name"] == "s0")["container"]
    assert groups(agent) == groups(container["pid"])
    memory, cpus = limits(lab)
    assert memory == pytest.approx(MEMORY, abs=os.sysconf("SC_PAGE_SIZE"))
    assert cpus == pytest.approx(CPUS)


def groups(pid: int) -> list[str]:
    """Return the groups of a process that limit memory and CPU."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return sorted(
        line for line in lines if {*line.split(":")[1].split(",")} & {"", "memory", "cpu"}
    )


def limits(lab: Lab) -> tuple[int, float]:
    """Return the limits of s0 as its own programs see them: bytes and CPUs."""
    if lab.exec("s0", "test -e /sys/fs/cgroup/cgroup.controllers").returncode == 0:
        memory = lab.exec("s0", "cat /sys/fs/cgroup/memory.max").stdout
        quota, period = lab.exec("s0", "cat /sys/fs/cgroup/cpu.max").stdout.split()
    else:
        memory = lab.exec("s0", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes").stdout
        folder = "/sys/fs/cgroup/cpu"
        quota = lab.exec("s0", f"cat {folder}/cpu.cfs_quota_us").stdout
        period = lab.exec("s0", f"cat {folder}/cpu.cfs_period_us").stdout
    return int(memory), int(quota) / int(period)


def test_inspect_names_containers_and_interfaces(lab: Lab, peer: Container) -> None:
    servers = {server["name"]: server for server in lab.inspect()["servers"]}
    assert (servers["s0"]["interface"], servers["s1"]["interface"]) == ("eth0", "eth1")
    assert servers["s0"]["container"]["started_by_fabric"]
    assert servers["s1"]["container"]["id"] == peer.id
    assert not servers["s1"]["container"]["started_by_fabric"]
    assert "container" not in servers["s2"]


def test_failed_server_is_reachable_again_afterwards(lab: Lab) -> None:
    lab.dark()
    connect = ["timeout", "2", "bash", "-c", f": > /dev/tcp/{lab.address('s2')}/9"]
    with lab.fault("server", "s0"):
        assert lab.exec("s0", connect).returncode == 124  # nobody refuses the connection
    assert lab.exec("s0", connect).returncode == 1


def test_container_of_another_fabric_is_refused(lab: Lab, base: str, peer: Container) -> None:
    with pytest.raises(FabricError, match=f"s1: {peer.name} is a server of fabric boxes already"):
        fabric(base, peer, "second").up()


def test_up_finds_the_fabric_with_the_same_containers_only(
    lab: Lab, base: str, peer: Container
) -> None:
    assert fabric(base, peer).up().was_up
    with pytest.raises(FabricError, match="runs with another spec"):
        EmulatedFabric(fabric="boxes", **KEYS).up()


def test_container_that_ends_is_a_lost_server(
    engine: docker.DockerClient, base: str, other: Container
) -> None:
    with fabric(base, other, "loses").up() as lab:
        (container,) = containers_of(engine, "loses")
        container.kill()
        Deadline.after(20).wait_for(lambda: bool(lab.faults()), "loss of s0")
        Deadline.after(20).wait_for(lambda: bool(read_failure_log(lab.run_directory)), "its record")
        (event,) = read_failure_log(lab.run_directory)
        assert (event.kind, event.what) == ("server", ("s0",))
        inspection = lab.inspect()
        assert re.match(
            r"s0: its container moefabric-loses-s0-\w{8} has ended with status 137",
            inspection["faults"][0],
        )
        assert [nic["carrier"] for nic in inspection["servers"][0]["nics"]] == [False] * 3
        assert "agent-s0" not in {process["name"] for process in inspection["processes"]}
    assert containers_of(engine, "loses") == []


def test_down_after_kill_leaves_nothing(
    engine: docker.DockerClient, base: str, other: Container
) -> None:
    before = network_state(other)
    lab = fabric(base, other, "killed").up()
    program = lab.popen("s1", "sleep 600")
    pids = [process_id(lab.run_directory), *(p["pid"] for p in lab.inspect()["processes"])]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert len(containers_of(engine, "killed")) == 1
    assert lab.down()
    assert containers_of(engine, "killed") == []
    assert marked_pids("killed") == []
    assert network_state(other) == before
    assert program.wait(timeout=20) != 0
    other.reload()
    assert other.status == "running"


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ("no-such-container", "s0: no container no-such-container: start it before the fabric"),
        (
            {"image": "debian:bookworm-slim", "command": ["sh", "-c", "echo no licence; exit 3"]},
            r"s0: its container moefabric-fails-s0-\w{8} has ended with status 3, .*no licence",
        ),
        ({"image": "moefabric-no-such-image"}, "no image moefabric-no-such-image"),
    ],
    ids=["unknown", "ended", "image"],
)
def test_unusable_container_fails_up_and_leaves_nothing(
    engine: docker.DockerClient, base: str, container: Any, message: str
) -> None:
    servers = {"s0": {"container": container}}
    with pytest.raises(FabricError, match=message):
        EmulatedFabric(fabric="fails", servers=servers, **KEYS).up()
    assert containers_of(engine, "fails") == []
    assert not (run_root() / "fails").exists()


def test_container_in_the_fabrics_networks_is_refused(
    engine: docker.DockerClient, base: str, other: Container
) -> None:
    in_network(other, "ip", "address", "add", "10.0.9.1/24", "dev", "eth0")
    try:
        with pytest.raises(FabricError, match=r"has the network 10\.0\.9\.0/24 already"):
            fabric(base, other, "clash").up()
    finally:
        in_network(other, "ip", "address", "delete", "10.0.9.1/24", "dev", "eth0")
    assert containers_of(engine, "clash") == []
