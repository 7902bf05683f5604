"""A small fabric with real packets: two servers, an optical and an electrical NIC each, one leaf, one OCS."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from emulator import lifecycle, namespaces, shaping
from emulator.light import Light
from emulator.mirrors import taken_over
from emulator.order import NODES
from emulator.plan import bridge
from emulator.plant import connected, receive
from emulator.processes import Process, Role, marked
from emulator.waiting import Deadline
from moefabric.errors import FabricError
from moefabric.experiment.programs import processes
from moefabric.management import RunDir, Wiring, root
from moefabric.topology import Eps, Fabric, Ocs, Region

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.ovs,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(
        shutil.which("ovs-vswitchd") is None, reason="needs Open vSwitch: apt install openvswitch-switch"
    ),
]
T = TypeVar("T")
RATE_BPS = 50e6
GOODPUT = 1448 / 1514
RECEIVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5201)) as server:
    print("listening", flush=True)
    flow, _ = server.accept()
    got, began = len(flow.recv(1 << 20)), time.monotonic()
    while part := flow.recv(1 << 20):
        got += len(part)
    print(got * 8 / (time.monotonic() - began))
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5201), 5) as flow:
    flow.settimeout(15)
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    flow.setsockopt(socket.SOL_SOCKET, 47, int(sys.argv[2]))  # SO_MAX_PACING_RATE, bytes a second
    flow.sendall(bytes(8_000_000))
"""
REPOSITORY = Path(__file__).resolve().parents[2]


def wired(name: str, rate_bps: float = RATE_BPS, servers: tuple[str, ...] = ("s0", "s1")) -> Fabric:
    ocs = Ocs("ocs0", ports=len(servers))
    return Fabric(name, (Region("r0", 0, servers, ocs),), 2, 1, 1, rate_bps, Eps(servers_per_leaf=4))


def nothing_else(_wiring: Wiring, _run_dir: RunDir) -> list[Process]:
    return []


def sleeper(where: str, name: str = "sleeper", role: Role = Role.OTHER) -> Process:
    return Process(name, where, ("sleep", "600"), role=role)


class Lab:
    """A network namespace that stands for the machine, and a folder that stands for /run/moefabric."""

    def __init__(self, outer: int, folder: Path) -> None:
        self.outer, self.folder = outer, folder

    def elsewhere(self) -> bool:
        return Path(namespaces.of(self.outer)).readlink() != Path("/proc/self/ns/net").readlink()

    def here(self, do: Callable[[], T]) -> T:
        return namespaces.within(namespaces.of(self.outer), do, timeout_s=60)

    def up(
        self, fabric: Fabric, processes: Callable[[Wiring, RunDir], list[Process]] = nothing_else
    ) -> Wiring:
        return self.here(partial(lifecycle.up, fabric, processes))

    def down(self, name: str) -> bool:
        return self.here(partial(lifecycle.down, name))

    def on(
        self, name: str, server: str, *cmd: str, timeout_s: float = 20
    ) -> subprocess.CompletedProcess[str]:
        argv = lifecycle.argv_on(name, server, cmd)
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)

    def links(self) -> set[str]:
        shown = self.here(
            lambda: subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
        )
        return {link["ifname"] for link in json.loads(shown)}

    def rules(self, fabric: Fabric, switch: str, *rules: str) -> None:
        """Have a switch follow exactly these rules."""
        socket = RunDir.named(fabric.name).switches / f"{bridge(switch, fabric)}.mgmt"
        words = ["replace-flows", f"unix:{socket}", "-"] if rules else ["del-flows", f"unix:{socket}"]
        given = "\n".join(rules)
        subprocess.run(
            ["ovs-ofctl", "-O", "OpenFlow13", *words], input=given, text=True, check=True, timeout=10
        )

    def by(self, fabric: Fabric, path: str) -> None:
        """Rules that send everything between the two servers by one path."""
        fields = (("ip", "nw_dst"), ("arp", "arp_tpa"))
        for here in fabric.servers:
            ports = fabric.ports(here)
            own, out = fabric.prefix(here), ports[f"{here}/{path}"]
            home = [
                f"priority=2,{protocol},{field}={own},actions=output:{ports['host']}"
                for protocol, field in fields
            ]
            self.rules(fabric, here, *home, f"priority=1,actions=output:{out}")
        leaf = fabric.ports("leaf0")
        towards = [
            f"{protocol},{field}={fabric.prefix(server)},actions=output:{leaf[f'{server}/e0']}"
            for server in fabric.servers
            for protocol, field in fields
        ]
        self.rules(fabric, "leaf0", *towards)

    def goodput_bps(self, fabric: Fabric) -> float:
        """What one TCP flow from s0 to s1 gets, from the first byte that arrives to the last."""
        to = fabric.addresses("s1")[0]
        receive = lifecycle.argv_on(fabric.name, "s1", [sys.executable, "-c", RECEIVER, to])
        with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
            try:
                assert receiver.stdout is not None
                assert receiver.stdout.readline() == "listening\n"
                sent = self.on(
                    fabric.name, "s0", sys.executable, "-c", SENDER, to, str(int(RATE_BPS / 8 * 1.03))
                )
                assert sent.returncode == 0, sent.stderr
                return float(receiver.stdout.readline())
            finally:
                receiver.kill()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="mf", dir="/tmp"))  # unix sockets want short paths
    before = os.environ.get("MOEFABRIC_RUN_DIR")
    os.environ["MOEFABRIC_RUN_DIR"] = str(folder)
    with subprocess.Popen(["unshare", "-n", "sleep", "600"]) as outer:
        lab = Lab(outer.pid, folder)
        Deadline.after(5).until(lab.elsewhere, "namespace")
        try:
            yield lab
        finally:
            for left in list(root().iterdir()):
                lab.down(left.name)
            outer.kill()
            shutil.rmtree(folder)
            if before is None:
                del os.environ["MOEFABRIC_RUN_DIR"]
            else:
                os.environ["MOEFABRIC_RUN_DIR"] = before


@pytest.fixture(scope="module")
def fabric(lab: Lab) -> Iterator[Fabric]:
    fabric = wired("small")
    lab.up(fabric)
    yield fabric
    lab.down(fabric.name)


def ping(lab: Lab, fabric: Fabric, within_s: int = 8) -> bool:
    words = ["ping", "-c", "1", "-i", "0.2", "-w", str(within_s), fabric.addresses("s1")[1]]
    return lab.on(fabric.name, "s0", *words).returncode == 0


def shares_of_a_nic(lab: Lab, fabric: Fabric) -> list[float]:
    """What flows got, one after the other until one has the whole of it; on a machine that others use, some get less."""
    shares: list[float] = []
    while len(shares) < 5 and (not shares or shares[-1] < 0.95):
        shares.append(lab.goodput_bps(fabric) / RATE_BPS / GOODPUT)
        assert shares[-1] < 1.03
    return shares


def test_nothing_passes_a_switch_without_rules_and_all_does_with_them(lab: Lab, fabric: Fabric) -> None:
    for switch in fabric.switches:
        lab.rules(fabric, switch)
    assert not ping(lab, fabric, within_s=1)
    lab.by(fabric, "e0")
    assert ping(lab, fabric)


def test_a_flow_over_the_eps_gets_the_rate_of_a_nic(lab: Lab, fabric: Fabric) -> None:
    lab.by(fabric, "e0")
    assert max(shares_of_a_nic(lab, fabric)) > 0.9


def test_light_carries_a_flow_at_the_rate_of_a_nic_and_darkness_carries_nothing(
    lab: Lab, fabric: Fabric
) -> None:
    lab.by(fabric, "o0")
    with connected(RunDir.named(fabric.name).plant(fabric.regions[0]), 5) as plant:
        facts, (mirrors, *listeners) = receive(plant)
        for listener in listeners:
            os.close(listener)
        crossbar = taken_over(facts, mirrors)
        assert not ping(lab, fabric, within_s=1)
        crossbar.load({1: Light(4, 0), 2: Light(3, 0)})
        assert ping(lab, fabric)
        assert max(shares_of_a_nic(lab, fabric)) > 0.9
        crossbar.load({})
        assert not ping(lab, fabric, within_s=1)


def test_a_link_that_lost_its_shape_is_named(lab: Lab, fabric: Fabric) -> None:
    switching = next(
        p["pid"]
        for p in lifecycle.inspect(fabric.name)["processes"]
        if p["name"] in {"ovs-vswitchd", "switches"}
    )
    shape = shaping.Shape("s0/e0", "s0-e0", RATE_BPS, 1500)
    here = partial(namespaces.within, namespaces.of(switching))
    here(partial(shaping.verify, [shape]))
    here(lambda: subprocess.run(["tc", "qdisc", "del", "dev", "s0-e0", "root"], check=True))
    with pytest.raises(FabricError, match="s0/e0: s0-e0 has qdisc noqueue where htb was set"):
        here(partial(shaping.verify, [shape]))
    here(partial(shaping.shape, [shape]))
    here(partial(shaping.verify, [shape]))


def test_inspect_tells_of_servers_nics_and_the_ocs(lab: Lab, fabric: Fabric) -> None:
    told = lifecycle.inspect(fabric.name)
    assert told["servers"][1]["addresses"] == ["10.0.1.1", "10.0.1.2"]
    assert told["servers"][1]["nics"] == [
        {"name": "s1/o0", "kind": "optical", "rate_bps": 5e7, "carrier": True},
        {"name": "s1/e0", "kind": "electrical", "rate_bps": 5e7, "carrier": True},
    ]
    assert told["ocs"][0] | {"management": ""} == {
        "name": "ocs0", "region": "r0", "management": "", "scpi_port": 5025, "ports": 2, "circuits": [],
    }  # fmt: skip
    assert {process["name"] for process in told["processes"]} in (
        {"ovsdb-server", "ovs-vswitchd"},
        {"switches"},
    )
    assert told["faults"] == []


def ocs_process(_wiring: Wiring, run_dir: RunDir) -> list[Process]:
    plant = str(run_dir.path / "ocs0.plant")
    return [Process("ocs0", "outer", (sys.executable, "-m", "emulator.ocs", "--plant", plant), role=Role.OCS)]


SCPI = """
import socket, sys
with socket.create_connection((sys.argv[1], 5025), 3) as ocs:
    for words in ("*idn?", ":oxc:swit:conn:only (@1,2),(@4,3); *opc?", ":syst:err?"):
        ocs.sendall(words.encode() + b"\\n")
        print(ocs.recv(200).decode().strip())
"""


def test_an_ocs_process_lights_a_circuit_by_scpi_over_the_management_network(lab: Lab) -> None:
    fabric = wired("lit")
    management = lab.up(fabric, ocs_process).management
    lab.by(fabric, "o0")
    assert not ping(lab, fabric, within_s=1)
    words = [sys.executable, "-c", SCPI, management.ocs(fabric.regions[0])]
    said = lab.here(
        partial(subprocess.run, words, capture_output=True, text=True, timeout=10)
    ).stdout.splitlines()
    assert (said[-2], said[-1].split(",")[0].lstrip("+")) == ("1", "0")
    assert ping(lab, fabric)
    assert lab.down("lit")


def test_up_twice_is_one_fabric_and_another_spec_is_refused(lab: Lab, fabric: Fabric) -> None:
    pids = lifecycle.inspect(fabric.name)["processes"]
    assert lab.up(fabric).fabric == fabric
    assert lifecycle.inspect(fabric.name)["processes"] == pids
    with pytest.raises(FabricError, match="small: a fabric of this name runs with another spec"):
        lab.up(wired("small", rate_bps=20e6))


def test_two_fabrics_live_side_by_side(lab: Lab, fabric: Fabric) -> None:
    other = wired("other")
    subnets = {lab.up(fabric).management.subnet, lab.up(other).management.subnet}
    assert len(subnets) == 2
    assert {"other", "small"} <= set(lifecycle.running())
    assert lab.down("other")
    assert "other" not in lifecycle.running()
    lab.by(fabric, "e0")
    assert ping(lab, fabric)


def test_down_leaves_a_fabric_of_the_same_name_in_another_folder_alone(lab: Lab, fabric: Fabric) -> None:
    before = lab.links()
    os.environ["MOEFABRIC_RUN_DIR"] = str(lab.folder / "elsewhere")
    try:
        assert not lab.down(fabric.name)
    finally:
        os.environ["MOEFABRIC_RUN_DIR"] = str(lab.folder)
    assert lab.links() == before
    assert lifecycle.inspect(fabric.name)["faults"] == []


def test_an_address_that_somebody_listens_on_is_not_taken(lab: Lab) -> None:
    with lab.here(socket.socket) as left:
        left.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND: its interface is gone
        left.bind(("198.18.0.1", 6654))
        left.listen()
        subnet = lab.up(wired("beside")).management.subnet
    assert subnet != "198.18.0.0/24"
    assert lab.down("beside")


def test_down_leaves_nothing_and_twice_is_a_no_op(lab: Lab) -> None:
    before = lab.links()
    lab.up(wired("gone"), lambda *_: [sleeper("s0"), sleeper("outer", "outside")])
    assert len(marked("gone")) > 4
    assert lab.down("gone")
    assert (marked("gone"), lab.links(), RunDir.named("gone").path.exists()) == ([], before, False)
    assert not lab.down("gone")


def test_down_finds_everything_after_the_fabric_process_was_killed(lab: Lab) -> None:
    before = lab.links()
    lab.up(wired("killed"), lambda *_: [sleeper("s0"), sleeper("outer", "outside")])
    fabric_process = next(
        pid for pid in marked("killed") if "emulator.fabricd" in Path(f"/proc/{pid}/cmdline").read_text()
    )
    os.kill(fabric_process, signal.SIGKILL)
    assert lab.down("killed")
    assert (marked("killed"), lab.links(), RunDir.named("killed").path.exists()) == ([], before, False)


def agents(wiring: Wiring, run_dir: RunDir) -> list[Process]:
    return [one for one in processes(wiring, run_dir) if one.role is Role.AGENT]


def test_an_agent_that_dies_is_named_and_all_others_go_with_the_fabric_however_that_ends(lab: Lab) -> None:
    before = lab.links()
    lab.up(wired("crash"), agents)
    pids = {one["name"]: one["pid"] for one in lifecycle.inspect("crash")["processes"]}
    assert Path(f"/proc/{pids['agent-s1']}/ns/net").samefile(
        f"/proc/{json.loads((RunDir.named('crash').path / NODES).read_text())['s1']}/ns/net"
    )
    os.kill(pids["agent-s0"], signal.SIGKILL)
    Deadline.after(5).until(lambda: bool(lifecycle.inspect("crash")["faults"]), "fault")
    assert lifecycle.inspect("crash")["faults"] == ["agent-s0 exited -9, saying: nothing"]
    os.kill(
        next(
            pid for pid in marked("crash") if "emulator.fabricd" in Path(f"/proc/{pid}/cmdline").read_text()
        ),
        signal.SIGKILL,
    )
    assert lab.down("crash")
    assert (marked("crash"), lab.links(), RunDir.named("crash").path.exists()) == ([], before, False)


def test_up_mends_a_fabric_that_lost_a_process(lab: Lab) -> None:
    fabric = wired("half")
    lab.up(fabric, lambda *_: [sleeper("s0")])
    os.kill(
        next(p["pid"] for p in lifecycle.inspect("half")["processes"] if p["name"] == "sleeper"),
        signal.SIGKILL,
    )
    Deadline.after(5).until(lambda: bool(lifecycle.inspect("half")["faults"]), "fault")
    lab.up(fabric, lambda *_: [sleeper("s0")])
    assert lifecycle.inspect("half")["faults"] == []
    assert lab.down("half")


def failing(where: str, says: str) -> Process:
    return Process(
        "faulty", where, (sys.executable, "-c", f"print('{says}'); raise SystemExit(3)"), role=Role.AGENT
    )


@pytest.mark.parametrize("where", ["outer", "s1"])
def test_a_process_that_ends_at_once_fails_up_with_its_last_words_and_leaves_nothing(
    lab: Lab, where: str
) -> None:
    before = lab.links()
    with pytest.raises(FabricError, match="faulty exited 3, saying: no port for me"):
        lab.up(wired("early"), lambda *_: [failing(where, "no port for me")])
    assert (marked("early"), lab.links(), RunDir.named("early").path.exists()) == ([], before, False)


def test_a_controller_that_never_listens_fails_up_in_time(lab: Lab) -> None:
    start = partial(
        lifecycle.up, wired("deaf"), lambda *_: [sleeper("outer", role=Role.CONTROLLER)], timeout_s=3
    )
    with pytest.raises(FabricError, match=r"a controller at 198\.18\..*:6653.* was not ready in time"):
        lab.here(start)
    assert (marked("deaf"), RunDir.named("deaf").path.exists()) == ([], False)


@pytest.mark.parametrize("stage", ["management network", "servers", "optics", "controllers"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_an_up_that_is_interrupted_leaves_nothing(lab: Lab, stage: str, number: signal.Signals) -> None:
    before = lab.links()
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_fabric import *\n"
        "lifecycle.up(wired('cut'), lambda *_: [sleeper('outer', role=Role.CONTROLLER)], say=lambda s: print(s, flush=True))"
    )
    argv = [sys.executable, "-c", script, str(Path(__file__).parent)]
    start = partial(
        subprocess.Popen, argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=REPOSITORY
    )
    started: Any = lab.here(start)
    with started as up:
        next(line for line in up.stdout if line.strip() == stage)
        up.send_signal(number)
        up.wait(timeout=20)
    assert up.returncode != 0
    Deadline.after(10).until(lambda: marked("cut") == [], "end of all processes")
    assert lab.links() == before
    assert number is signal.SIGKILL or not RunDir.named("cut").path.exists()


def test_what_this_machine_cannot_shape_is_refused_before_anything_is_made(lab: Lab) -> None:
    with pytest.raises(FabricError, match="s0/o0: 50000 b/s is too slow to shape"):
        lab.up(wired("slow", rate_bps=50e3))
    assert not RunDir.named("slow").path.exists()


def test_an_ocs_process_that_others_start_is_waited_for(lab: Lab) -> None:
    fabric = wired("apart")
    argv = [
        sys.executable,
        "-m",
        "emulator.ocs",
        "--plant",
        str(RunDir.named("apart").path / "ocs0.plant"),
        "--deadline",
        "30",
    ]
    with subprocess.Popen(argv, cwd=REPOSITORY) as apart:
        lab.here(partial(lifecycle.up, fabric, ocs_process, external=frozenset({"ocs0"})))
        assert "ocs0" not in {process["name"] for process in lifecycle.inspect("apart")["processes"]}
        assert apart.poll() is None
        assert lab.down("apart")
        assert apart.wait(timeout=10) == 0


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden"])
def test_a_name_that_leads_elsewhere_is_refused(lab: Lab, name: str) -> None:
    with pytest.raises(FabricError, match="can't be a fabric's name"):
        lab.down(name)


def test_a_directory_of_somebody_else_is_left_alone(lab: Lab) -> None:
    theirs = RunDir.named("theirs").path / "letter"
    theirs.parent.mkdir()
    theirs.write_text("dear")
    for act in (partial(lab.up, wired("theirs")), partial(lab.down, "theirs")):
        with pytest.raises(FabricError, match="not a fabric's, and not empty"):
            act()
    assert theirs.read_text() == "dear"
    shutil.rmtree(theirs.parent)


def test_a_process_for_a_server_that_is_not_there_is_refused(lab: Lab) -> None:
    with pytest.raises(FabricError, match="sleeper: processes run on outer, s0, s1, ocs0"):
        lab.up(wired("lost"), lambda *_: [sleeper("s7")])
    assert not RunDir.named("lost").path.exists()
