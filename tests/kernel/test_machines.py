"""One fabric on two machines: its parts, the links between them, and commands from the head."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from moefabric.core.machines import Machine
from moefabric.runtime.waiting import Deadline
from tests.support.machine_namespaces import NamespaceMachine, machine_namespaces
from tests.support.placed_fabrics import RATE_BPS, PlacedFabric, machine_service, placed_fabric

Machines = dict[str, NamespaceMachine]
NAME = "machines-two"
WAIT_S = 60.0
RECEIVE = """
import socket, time
with socket.create_server(("", 5201)) as server:
    flow, _ = server.accept()
    flow.recv(1)
    start, received = time.monotonic(), 0
    while part := flow.recv(1 << 20):
        received += len(part)
    print(8 * received / (time.monotonic() - start))
"""
SEND = """
import socket, sys, time
while True:
    try:
        flow = socket.create_connection((sys.argv[1], 5201))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
flow.sendall(bytes(2_500_000))
"""

WATCH = "import sys; from tests.support.dashboard_client import watch; watch(*sys.argv[1:])"


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with machine_namespaces(["head", "m1"]) as both:
        yield both


@pytest.fixture(scope="module")
def other(machines: Machines) -> Iterator[Machine]:
    with machine_service(machines["m1"]) as machine:
        yield machine


@pytest.fixture(scope="module")
def fabric(machines: Machines, other: Machine) -> Iterator[PlacedFabric]:
    with placed_fabric(NAME, machines, other) as placed:
        yield placed


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [("s0", "s2"), pytest.param("s2", "s3", marks=pytest.mark.nightly), ("s3", "s1")],
)
def test_servers_of_both_machines_reach_each_other(
    fabric: PlacedFabric, sender: str, receiver: str
) -> None:
    fabric.exec(sender, "ping", "-c", "1", "-w", "30", fabric.address(receiver))


def test_servers_reach_servers_of_other_machines_but_no_controller_by_management(
    fabric: PlacedFabric,
) -> None:
    fabric.exec("s3", "ping", "-c", "1", "-w", "30", "s0-management")
    assert fabric.exec("s3", "ping", "-c", "1", "-w", "1", "management", check=False).returncode


def test_inspection_has_the_hardware_of_both_machines(fabric: PlacedFabric) -> None:
    shown = json.loads(fabric.command("inspect", "--json").stdout)
    assert [server["name"] for server in shown["servers"]] == ["s0", "s1", "s2", "s3"]
    assert [ocs["name"] for ocs in shown["ocs"]] == ["ocs0", "ocs1"]
    assert {one.get("machine") for one in shown["processes"]} == {None, "m1"}
    assert shown["faults"] == []


def test_program_on_another_machine_has_input_output_and_status(fabric: PlacedFabric) -> None:
    script = "cat; hostname; echo problem >&2; exit 7"
    ended = fabric.exec("s2", "sh", "-c", script, text="given\n", check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "given\ns2\n", "problem\n")


def test_program_on_another_machine_ends_with_its_caller(
    fabric: PlacedFabric, machines: Machines
) -> None:
    def runs() -> bool:
        return "sleep 4242" in machines["m1"].processes()

    with fabric.start("s2", "sleep", "4242", stdin=subprocess.PIPE):
        Deadline.after(WAIT_S).wait_for(runs, "the program")
        machines["head"].run("sh", "-c", "kill -KILL $(pgrep -f '[c]luster.command')")
    Deadline.after(WAIT_S).wait_for(lambda: not runs(), "the program's end")


def test_light_moves_on_another_machine(fabric: PlacedFabric) -> None:
    fabric.command("light", "s2/o0~s3/o0")  # a frame has proved the circuit when this ends
    before = fabric.light_bytes("s2/o0")
    fabric.exec("s2", "ping", "-c", "3", "-i", "0.2", fabric.address("s3"))
    assert fabric.light_bytes("s2/o0") >= before + 3 * 98


def test_link_between_machines_has_the_rate_of_its_nic(fabric: PlacedFabric) -> None:
    program = [sys.executable, "-c"]
    with fabric.start("s0", *program, RECEIVE, stdout=subprocess.PIPE) as receiver:
        fabric.exec("s2", *program, SEND, fabric.address("s0"))
        assert receiver.stdout is not None
        share = float(receiver.stdout.read()) / (RATE_BPS * 1448 / 1514)
    assert 0.5 < share < 1.05


def test_failed_nic_is_down_at_both_ends_of_its_tunnel(fabric: PlacedFabric) -> None:
    far = f"leaf0-p{fabric.fabric.openflow.ports('leaf0')['s2/e0']}"
    ends = [("m1", "s2-e0"), ("head", far)]
    fabric.command("fault", "nic", "s2/e0")
    assert [fabric.is_up(*end) for end in ends] == [False, False]
    fabric.command("fault", "nic", "--clear")
    assert [fabric.is_up(*end) for end in ends] == [True, True]


@pytest.mark.nightly
def test_suspended_server_of_another_machine_is_no_deviation(fabric: PlacedFabric) -> None:
    fabric.command("fault", "server", "s3")
    shown = json.loads(fabric.command("fault", "list", "--json").stdout)
    assert [one["what"] for one in shown] == [["s3"]]
    assert fabric.deviations() == []
    fabric.command("fault", "server", "--clear")
    fabric.exec("s3", "ping", "-c", "1", "-w", "30", fabric.address("s0"))


@pytest.mark.nightly
def test_capture_on_another_machine_arrives_here(fabric: PlacedFabric) -> None:
    head = fabric.machines["head"]
    file = str(head.folder / "s2.pcapng")
    words = ["capture", "s2/e0", "--until", "4frames", "--write", file]
    with fabric.start_command(*words, stderr=subprocess.PIPE) as capture:
        assert capture.stderr is not None
        assert "to " in capture.stderr.readline()  # it has begun
        fabric.exec("s2", "ping", "-c", "4", "-i", "0.2", fabric.address("s0"))
        assert capture.wait(WAIT_S) == 0
    assert int(head.run("stat", "-c", "%s", file).stdout) > 4 * 98


def test_check_passes_packets_between_all_servers_and_through_all_ocses(
    fabric: PlacedFabric,
) -> None:
    found = json.loads(fabric.command("check", "--json").stdout)
    assert found["passed"], found
    assert (found["servers"], found["pairs"]) == (4, 12)
    assert (found["regions"], found["circuits"]) == (2, 4)


@pytest.mark.nightly
def test_metrics_have_the_hardware_and_processes_of_both_machines(fabric: PlacedFabric) -> None:
    fabric.exec("s2", "ping", "-c", "3", "-i", "0.2", fabric.address("s0"))
    metrics = _metrics(fabric)
    assert metrics['nic_transmit_bytes_total{nic="s2/e0",server="s2"}'] >= 3 * 98
    assert metrics['machine_up{machine="m1"}'] == 1
    for machine, ocs, server in (("", "ocs0", "s0"), ("m1", "ocs1", "s2")):
        assert f'ocs_changes_total{{ocs="{ocs}"}}' in metrics
        assert metrics[f'switch_rules{{switch="{server}"}}'] > 0
        for process in ("fabric", "switches", ocs, "agents-0"):
            labels = f'machine="{machine}",process="{process}"'
            assert metrics[f"process_resident_memory_bytes{{{labels}}}"] > 0
    assert {value for name, value in metrics.items() if name.startswith("scrape_success")} == {1}


def _metrics(fabric: PlacedFabric) -> dict[str, float]:
    """Return the metrics of the fabric, named without prefix and fabric."""
    text = fabric.command("metrics", NAME, "--once").stdout.replace(f'fabric="{NAME}",', "")
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("moefabric_"): float(value) for name, _, value in lines}


@pytest.mark.nightly
def test_dashboard_shows_both_machines_and_reaches_their_nics(fabric: PlacedFabric) -> None:
    words = NAME, "s2/e0", "s2", fabric.address("s0")
    fabric.command("light", "s2/o0~s3/o0")
    inspected = json.loads(fabric.command("inspect", "--json").stdout)
    shown = json.loads(fabric.machines["head"].run(sys.executable, "-c", WATCH, *words).stdout)
    hardware = shown["first"]["hardware"]
    assert all(nic.pop("far") for server in inspected["servers"] for nic in server["nics"])
    assert hardware["servers"] == inspected["servers"], "but for far ends, which never change"
    assert hardware["processes"] == inspected["processes"]
    assert shown["first"]["circuits"] == {
        ocs["region"]: {"lit": ["~".join(ends) for ends in ocs["circuits"]], "dark": []}
        for ocs in inspected["ocs"]
    }
    assert shown["load"]["s2/e0"] > 0
    assert [(one["kind"], one["what"]) for one in shown["failures"]] == [("nic", ["s2/e0"])]


def test_mininets_command_line_reaches_nodes_of_both_machines(fabric: PlacedFabric) -> None:
    script = "s2 hostname\nsw-s2 ip -br link show s2-o0\npy s2.cmd('echo $((6 * 7))').strip()\n"
    script += "pingall\n"
    ended = fabric.command("mininet", NAME, text=script)
    host, switch, answer, *pings = ended.stderr.splitlines()
    assert (host, answer) == ("s2", "42")
    assert switch.startswith("s2-o0@")
    assert pings[-1] == "*** Results: 0% dropped (12/12 received)"


def test_nothing_is_left_on_any_machine_after_down(fabric: PlacedFabric) -> None:
    fabric.command("down", NAME)
    assert fabric.remains("head") == ""
    assert fabric.remains("m1") == ""
