"""What one can see of a running fabric: the logs of its processes, its metrics, its packets."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric import FabricError, Lab, load_fabric
from moefabric.runtime.waiting import Deadline
from moefabric.ui.cli.main import main
from tests.support.metric_samples import Scrape
from tests.support.paths import EXAMPLES, REPOSITORY

DASHBOARD = REPOSITORY / "packaging/grafana-dashboard.json"

pytestmark = [pytest.mark.usefixtures("own_machine")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with load_fabric(EXAMPLES / "fabric.yaml", fabric="seen", scale={"bytes": 2000}).up() as lab:
        yield lab


def output(*words: str) -> str:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_logs_show_a_reconfiguration_in_controller_and_ocs(lab: Lab) -> None:
    lab.light("s0~s1")
    # The controller writes its line after its reply.
    deadline = Deadline.after(10)
    deadline.wait_for(lambda: "lit: s0/o0~s1/o0" in output("logs", "--json"), "log line")
    lines = [json.loads(line) for line in output("logs", "--json").splitlines()]
    lit = next(line for line in lines if line["message"].startswith("lit: s0/o0~s1/o0"))
    one = output("logs", "--reconfiguration", lit["reconfiguration"], "--process", "controller-*")
    steps = [line.split()[3:5] for line in one.splitlines()]
    assert steps == [["ocs0:", "disconnect"], ["lit:", "s0/o0~s1/o0;"]]
    ocs = [line["message"] for line in lines if line["process"] == "ocs0"]
    assert ocs[-2:] == ["changed", "settled"]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)


def test_metrics_of_all_parts_are_read_anew_for_each_scrape(lab: Lab) -> None:
    lab.light("s0~s1", "s2~s3")
    before = Scrape(output("metrics", "seen", "--once"))
    lab.light("s0~s2")
    lab.exec("s0", f"ping -c 3 -i 0.02 {lab.address('s2')}", check=True)
    after = Scrape(output("metrics", "seen", "--once"))

    def change(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    read = [sample for sample in after.samples if sample.name == "moefabric_scrape_success"]
    assert [sample.labels["part"] for sample in read if not sample.value] == []
    assert change("ocs_changes_total", ocs="ocs0") > 0
    assert (after.value("ocs_cross_connects"), after.value("ocs_ports", state="tuned")) == (2, 4)
    assert after.value("controller_circuits", controller="r0", state="lit") == 1
    assert change("nic_transmit_packets_total", nic="s0/o0") >= 3
    assert change("controller_requests_total", path="/light", status="200") == 1
    assert all(after.value("agent_up", server=server) for server in lab.servers)
    queried = set(re.findall(r"moefabric_\w+", DASHBOARD.read_text()))
    of_runs = {name for name in queried if name.startswith("moefabric_run_")}
    assert queried - of_runs <= after.names


def test_captured_frames_name_the_circuit_that_was_lit(lab: Lab, tmp_path: Path) -> None:
    lab.light("s0/o0~s1/o0")
    ping = f"ping -c 3 -i 0.02 {lab.address('s1')}"
    lab.exec("s0", ping, check=True)
    with lab.capture("s0/o0~s1/o0", tmp_path / "light.pcap", most_frames=12) as capture:
        lab.exec("s0", ping, check=True)
        lab.dark()
        lab.exec("s0", ping, check=True)  # over the EPS
        lab.light("s0/o0~s1/o0")
        lab.exec("s0", ping, check=True)
        capture.wait_full()
    from scapy.layers.inet import ICMP  # scapy takes half a second to import
    from scapy.utils import rdpcap

    frames = [frame for frame in rdpcap(str(capture.path)) if ICMP in frame]
    assert {frame.comment for frame in frames} == {b"s0/o0~s1/o0"}
    assert {frame.sniffed_on for frame in frames} == {"s0/o0", "s1/o0"}


def test_capture_ends_with_a_reconfiguration_and_shows_its_commands(
    lab: Lab, tmp_path: Path
) -> None:
    lab.light("s0~s1")
    program = "from moefabric.ui.cli.main import main; main()"
    words = "capture", "ocs0", "-w", str(tmp_path / "ocs.pcap"), "--until", "reconfiguration"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words, "--summary"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as capture:
        assert capture.stderr is not None
        assert capture.stderr.readline().startswith("ocs0: to ")
        lab.light("s0~s2")
        shown, errors = capture.communicate(timeout=60)
    assert (capture.returncode, errors) == (0, "")
    assert "controllers -> ocs0" in shown
    assert "control  SCPI :oxc:swit:conn:add" in shown
    # The last command is answered once there is light.
    [answered] = [line for line in shown.splitlines() if "SCPI reply" in line]
    assert int(answered.split()[-1]) >= 3


def test_capture_to_a_full_disk_says_so_in_one_line(lab: Lab) -> None:
    with pytest.raises(FabricError) as error, lab.capture("s0/o0", Path("/dev/full")):
        pass
    remedy = "No space left on device; free some room, or write to another file system"
    assert str(error.value) == f"s0/o0: the capture to /dev/full failed: {remedy}"
