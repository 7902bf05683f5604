"""The command line on emulated fabrics: a fabric that stays up, its servers, and experiments."""

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import IO

import pytest

from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.runtime.waiting import Deadline
from tests.support import faulty_policies
from tests.support.command_home import EXPERIMENT, FABRIC, NEEDS, Home
from tests.support.fabrics import MESH
from tests.support.packages import DIALECT_PACKAGE, POLICY_PACKAGE, install_package
from tests.support.paths import REPOSITORY
from tests.support.slow_machines import finished_run

pytestmark = [*NEEDS, pytest.mark.slow]

FORWARDING = """
fabric: {name}
gpus_per_server: 8
nic_rate: 100Gb/s
nics: {{optical: 3, electrical: 1, forwarding: {forwarding}}}
regions:
  - servers: 4
    ocs: {{settle: 25ms}}
scale: {{bytes: 2000}}
"""
STRANGERS = """
experiment: strangers
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 4, sequence: 4096, micro_batch: 8, iterations: 1}}
gating: {{matrix: {repository}/examples/data/gating-8x8.json}}
wiring:
  nic_rate: 100Gb/s
  regions:
    - servers: 4
      ocs: {{settle: 25ms, driver: "strange_parts:Driver"}}
fabrics:
  - {{name: sound, optical: 3, electrical: 1, policy: best-pairs}}
  - {{name: raising, optical: 3, electrical: 1, policy: "strange_parts:Raising"}}
  - {{name: once, optical: 3, electrical: 1, policy: "strange_parts:RaisingOnce"}}
scale: {{bytes: 1000, dilation: 2}}
transport: "strange_parts:GENTLE"
"""
STRANGE_PARTS = """
from pathlib import Path
from best_pairs import BestPairs
from moefabric.controller.southbound.ocs.scpi import Scpi
from moefabric.core.transport import TcpTransport

GENTLE = TcpTransport("gentle", "reno", paced=True)

class Driver(Scpi):
    def open(self, settings):
        Path(__file__).with_suffix(".opened").touch()
        return super().open(settings)

class Raising(BestPairs):
    def circuits(self, *_):
        raise RuntimeError("no idea")

class RaisingOnce(Raising):
    def __init__(self):
        super().__init__(reconfigures=False)
"""
REGIONS = """
experiment: regions
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 2, sequence: 4096, micro_batch: 8, iterations: 1}}
gating: {{matrix: {repository}/examples/data/gating-8x8.json, noise: 0.1}}
wiring:
  nic_rate: 100Gb/s
  regions:
    - {{count: 2, servers: 2, ocs: {{settle: 25ms}}}}
fabrics:
  - {{name: spill, optical: 2, electrical: 1, policy: spill}}
scale: {{bytes: 1000, dilation: 2}}
"""


def test_light_names_the_fault_of_a_policy(lab: Home) -> None:
    demand = lab.write("some.json", "[[0, 9e9], [0, 0]]")
    spill = lab.must("light", "--demand", demand, "--policy", "spill")
    assert "lit: s0/o0~s1/o0" in spill
    lab.write("failing.py", Path(faulty_policies.__file__).read_text())
    reference = "failing:Raising"
    refused = lab.call("light", "--demand", demand, "--policy", reference)
    assert refused.returncode == 1
    assert "lit: no circuits" in refused.stdout
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"moefabric: policy {reference} failed: ValueError: no idea, ")


def test_programs_on_servers_get_the_variables_that_commands_name(
    lab: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "unguessed")
    monkeypatch.setenv("OWN", "of the shell")
    for command, program in ("exec", ("s0", "--", "env")), ("torchrun", ("--no-python", "env")):
        printed = lab.must(command, "--env", "OWN", "--env", "A=1", *program).splitlines()
        assert {"OWN=of the shell", "A=1"} <= set(printed)
        assert not [line for line in printed if "unguessed" in line]
    refused = lab.call("exec", "--env", "NONE_OF_THIS", "s0", "--", "env")
    assert refused.returncode == 2
    assert "'NONE_OF_THIS' is not NAME=VALUE, nor a variable of this shell" in refused.stderr


def test_ctrl_c_of_a_terminal_ends_the_ranks(lab: Home) -> None:
    """A terminal signals the command alone: its ranks have sessions of their own."""
    mark = f"sleep {1e6 + os.getpid()}"
    program = ("--no-python", "sh", "-c", f"echo up; exec {mark}")
    terminal, side = pty.openpty()
    words = ["setsid", "--ctty", *lab.argv("torchrun", *program)]
    with subprocess.Popen(words, env=lab.env, stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        shown = b""
        while shown.count(b"up\r\n") < 2:
            shown += os.read(terminal, 1024)
        os.write(terminal, b"\x03")
        assert process.wait(30) == 130
    shown += os.read(terminal, 1024)
    os.close(terminal)
    assert b"interrupted; nothing that this command started runs on" in shown
    assert subprocess.run(["pgrep", "-fx", mark], check=False).returncode == 1


def rules_used(home: Home, forwarding: str) -> set[str]:
    """Return the rules by which pings leave and pass servers on a fabric with or without trees."""
    text = FORWARDING.format(name=f"cli-{forwarding}", forwarding=forwarding)
    home.must("up", home.write("forwarding.yaml", text))
    try:
        home.must("light", *MESH[:2], *MESH[3:])  # s0 and s1 have no circuit to each other
        before = packets_by_rule(home)
        for address in ("10.0.1.1", "10.0.2.1"):
            home.must("exec", "s0", "--", "ping", "-c", "20", "-i", "0.02", address)
        after = packets_by_rule(home)
    finally:
        home.must("down", f"cli-{forwarding}")
    return {rule for rule, packets in after.items() if packets - before.get(rule, 0) >= 20}


def packets_by_rule(home: Home) -> dict[str, int]:
    """Return the packets that each rule of a server switch has carried."""
    return {
        rule["rule"]: rule["packets"]
        for controller in json.loads(home.must("inspect", "--json"))["controllers"]
        for switch, rules in controller["counters"].items()
        for rule in rules
        if switch[0] == "s"
    }


@pytest.mark.nightly
def test_programs_take_the_same_route_with_relay_trees_and_without(home: Home) -> None:
    without, with_trees = (rules_used(home, forwarding) for forwarding in ("none", "switch"))
    assert without == with_trees
    assert "s0: to s2 by s0/o1 (light)" in without
    assert any(rule.startswith("s0: to ") and "by s0/e0" in rule for rule in without)


def test_inspect_has_contractual_fields(lab: Home) -> None:
    lab.must("light", "s0/o1~s1/o0")
    inspection = json.loads(lab.must("inspect", "--json"))
    assert inspection["fabric"] == "cli"
    assert [server["name"] for server in inspection["servers"]] == ["s0", "s1"]
    first = inspection["servers"][0]
    assert first["region"] == "r0"
    assert first["addresses"] == [f"10.0.0.{gpu}" for gpu in range(1, 9)]
    assert [nic["name"] for nic in first["nics"]] == ["s0/o0", "s0/o1", "s0/e0"]
    assert {nic["kind"] for nic in first["nics"]} == {"optical", "electrical"}
    assert all(nic["carrier"] for nic in first["nics"])
    assert inspection["ocs"][0]["circuits"] == [["s0/o1", "s1/o0"]]
    assert inspection["ocs"][0]["scpi_port"] == 5025
    assert {controller["region"] for controller in inspection["controllers"]} == {"r0", "eps"}
    assert {"openflow", "northbound"} <= set(inspection["controllers"][0])
    assert all(Path(f"/proc/{process['pid']}").exists() for process in inspection["processes"])


def test_light_sets_circuits_for_demand(lab: Home) -> None:
    demand = lab.write("demand.json", json.dumps([[0, 5e9], [1e9, 0]]))
    reply = json.loads(lab.must("light", "--demand", demand, "--json"))
    assert reply["circuits_after"] == ["s0/o0~s1/o0", "s0/o1~s1/o1"], "two NICs a server, one pair"
    assert lab.call("light", "--demand", lab.write("bad.json", "[[0, -1], [1, 0]]")).returncode == 1


def test_interrupted_capture_reports_its_frames(lab: Home) -> None:
    from scapy.layers.inet import ICMP
    from scapy.utils import rdpcap

    lab.must("light", "s0~s1")
    file = lab.folder / "light.pcap"
    argv = lab.argv("capture", "s0/o0", "-w", str(file), "--name", "cli")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=lab.env, text=True, stdout=pipe, stderr=pipe) as capture:
        assert capture.stderr is not None
        assert capture.stderr.readline() == f"s0/o0: to {file}\n"
        lab.must("exec", "s0", "--", "ping", "-c", "4", "-i", "0.02", "10.0.1.1")
        capture.send_signal(signal.SIGINT)
        output, errors = capture.communicate(timeout=20)
    assert (capture.returncode, errors) == (0, "")
    frames = rdpcap(str(file))
    assert output == f"s0/o0: {len(frames)} frames in {file}\n"
    assert sum(ICMP in frame for frame in frames) == 8  # others look whether the circuit has light
    refused = lab.call("capture", "s0/o9")
    assert refused.returncode == 1
    assert refused.stderr.startswith("moefabric: s0/o9: cli has no such place; it has the NICs")


def test_light_refuses_impossible_circuit_in_one_line(lab: Home) -> None:
    for circuit in ("s0/o9~s1/o0", "s0/e0~s1/o0", "s0/o0~s0/o1", "nonsense"):
        result = lab.call("light", circuit)
        assert result.returncode in (1, 2)
        assert len(result.stderr.strip().splitlines()) <= 4
        assert "Traceback" not in result.stderr
        assert circuit.split("~")[0] in result.stderr
    assert lab.call("exec", "s9", "--", "true").returncode == 1


def test_regions_run_at_once_with_their_own_controllers(home: Home) -> None:
    spec = home.write("regions.yaml", REGIONS.format(repository=REPOSITORY))
    file, stored = home.folder / "result.json", home.folder / "stored.json"
    process = home.call("run", spec, "--json", str(file), "--store", str(stored), timeout_s=200)
    (result,) = finished_run(file, process.returncode, process.stderr)["results"]
    (kept,) = json.loads(stored.read_text())["results"]
    assert kept["fidelity"]["verdict"] == result["fidelity"]["verdict"]
    assert "collectives" not in kept
    assert [c["region"] for c in result["collectives"]] == ["r0", "r1"] * 4
    assert len({c["bytes"] for c in result["collectives"]}) == 2, "each region has its own noise"
    assert all(c["bytes_by_light"] > 0 for c in result["collectives"])
    circuits = {r["region"]: r["circuits_after"] for r in result["reconfigurations"]}
    assert circuits == {"r0": ["s0/o0~s1/o0", "s0/o1~s1/o1"], "r1": ["s2/o0~s3/o0", "s2/o1~s3/o1"]}
    assert result["integrity"]["bytes_sent"] == result["integrity"]["bytes_received"] > 0
    assert home.remains() == []


def fabric_that_comes_up(errors: IO[str]) -> str:
    """Return the name of the first fabric that a run brings up."""
    line = next(line for line in errors if "bringing" in line)  # "eps: bringing NAME up"
    return line.split()[-2]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, marks=pytest.mark.nightly),
    ],
    ids=lambda number: number.name,
)
def test_interrupted_run_removes_its_fabrics(home: Home, number: signal.Signals) -> None:
    spec = home.write("small.yaml", EXPERIMENT.format(iterations=50, repository=REPOSITORY))
    # The tests may run with signals ignored, as under nohup.
    running = subprocess.Popen(
        ["env", "--default-signal=INT,TERM,HUP", *home.argv("run", spec)],
        env=home.env,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    name = fabric_that_comes_up(running.stderr)
    running.send_signal(number)
    _, errors = running.communicate(timeout=100)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert marked_pids(name) == []
    assert home.remains() == []


def test_down_leaves_fabric_of_live_run_which_goes_when_the_run_is_killed(
    home: Home, tmp_path: Path
) -> None:
    spec = home.write("small.yaml", EXPERIMENT.format(iterations=50, repository=REPOSITORY))
    running = subprocess.Popen(
        home.argv("run", spec),
        env={**home.env, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    with running:
        assert running.stderr is not None
        name = fabric_that_comes_up(running.stderr)
        holder = home.folder / "run" / name / "holder"
        Deadline.after(30).wait_for(
            lambda: holder.exists() and bool(holder.read_text()), "the run's fabric"
        )
        refused = home.call("down")
        assert refused.returncode == 1
        assert f"{name} (of process {running.pid}) is up: left to the run" in refused.stderr
        running.kill()
        running.wait(10)
    Deadline.after(30).wait_for(
        lambda: home.remains() == [] and not marked_pids(name), "the end of the fabric"
    )
    assert list(tmp_path.iterdir()) == []


def test_run_takes_parts_of_other_packages_and_survives_their_faults(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install_package(POLICY_PACKAGE, home.folder)
    (site / "strange_parts.py").write_text(STRANGE_PARTS)
    monkeypatch.setenv("PYTHONPATH", str(site))
    spec = home.write("strangers.yaml", STRANGERS.format(repository=REPOSITORY))
    file = home.folder / "result.json"
    process = home.call("run", spec, "--json", str(file), "--plugins", "any", timeout_s=200)
    fault = r".*policy strange_parts:\w+ failed: RuntimeError: no idea, .*strange_parts.py:\d+\)?"
    refused = r"r0: none of \d+ requests for circuits was granted: .*"
    run = finished_run(file, process.returncode, process.stderr, fault, refused)
    assert run["manifest"]["transport"] == "strange_parts:GENTLE"
    assert run["manifest"]["congestion_control"] == "reno"
    assert (site / "strange_parts.opened").exists(), "the controller has opened the driver"
    sound, raising, once = run["results"]
    assert sum(part["bytes_by_light"] for part in sound["collectives"]) > 0
    assert not any(change["error"] for change in sound["reconfigurations"])
    assert sum(part["bytes_by_light"] for part in raising["collectives"]) == 0
    assert sum(part["bytes_by_eps"] for part in raising["collectives"]) > 0
    assert raising["fidelity"]["verdict"] == "invalid", "a policy without any light is no result"
    fault = "policy strange_parts:Raising failed: RuntimeError: no idea"
    assert f"(r0: {fault}" in raising["fidelity"]["reasons"][0]
    (error,) = {change["error"] for change in raising["reconfigurations"]}
    assert error.startswith(fault)
    fault = "r0: policy strange_parts:RaisingOnce failed: RuntimeError: no idea"
    assert once["fidelity"]["reasons"][0].startswith(fault)
    assert [line for line in process.stderr.splitlines() if f"verdict degraded; {fault}" in line]
    assert sum(part["bytes_by_light"] for part in once["collectives"]) == 0


@pytest.mark.nightly
def test_fabric_speaks_a_dialect_of_another_package(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install_package(DIALECT_PACKAGE, home.folder)))
    profile = home.write("line.yaml", 'line: {separator: "-"}\n')
    ocs = f"ocs: {{settle: 25ms, driver: line, profile: {profile}}}"
    fabric = FABRIC.format(name="lines").replace("ocs: {settle: 25ms}", ocs)
    home.must("up", home.write("lines.yaml", fabric))
    home.must("light", "s0/o0~s1/o1", "--name", "lines")
    (described,) = json.loads(home.must("inspect", "--json"))["ocs"]
    assert described["circuits"] == [["s0/o0", "s1/o1"]]
    home.must("down", "lines")


def test_run_refuses_unwritable_report_before_start(home: Home) -> None:
    spec = home.write("small.yaml", EXPERIMENT.format(iterations=1, repository=REPOSITORY))
    result = home.call("run", spec, "--report", "/proc/nowhere/report.html")
    assert result.returncode == 2
    assert "/proc/nowhere" in result.stderr
