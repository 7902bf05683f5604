"""The Python interface on an emulated fabric: light, programs, captures, faults, and clean-up."""

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moefabric import EmulatedFabric, FabricError, Lab, SpecError, load_fabric
from moefabric.core.errors import ControlError
from moefabric.core.ocs import DeviceProfile
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.runtime.run_directory import run_root
from moefabric.runtime.waiting import Deadline
from tests.support.ocs_device import ocs_device
from tests.support.paths import EXAMPLES, REPOSITORY

pytestmark = [pytest.mark.usefixtures("own_machine")]
SCALE = {"bytes": 2000}
INTERRUPTED = """
    import sys
    import moefabric
    with moefabric.load_fabric(sys.argv[1], fabric="cut", scale={"bytes": 2000}).up() as lab:
        lab.popen("s0", "sleep 600")
        print("up", flush=True)
        lab.exec("s0", "sleep 600")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with load_fabric(EXAMPLES / "fabric.yaml", fabric="api", scale=SCALE).up() as lab:
        yield lab
    assert not run_root().joinpath("api").exists()
    assert marked_pids("api") == []


def wait_lit(lab: Lab, circuits: list[str]) -> None:
    Deadline.after(20).wait_for(lambda: lab.circuits() == circuits, f"light of {circuits}")


def test_light_by_pairs_of_servers_and_dark(lab: Lab) -> None:
    change = lab.light("s0~s1", "s2~s3")
    assert change.circuits_after == ["s0/o0~s1/o0", "s2/o0~s3/o0"] == lab.circuits()
    # Light begins to settle while the command is under way.
    assert change.phases.command_s + change.phases.settle_s > 0.025
    assert lab.dark("s1~s0").circuits_after == ["s2/o0~s3/o0"]
    with pytest.raises(SpecError, match=r"dark: s0~s1 is not lit; lit: s2/o0~s3/o0"):
        lab.dark("s0~s1")
    assert lab.dark().circuits_after == []


def test_circuit_that_failed_returns_though_another_is_removed_meanwhile(lab: Lab) -> None:
    lab.light("s0/o0~s2/o0", "s1/o0~s3/o0", "s0/o1~s3/o1")
    with lab.fault("ocs-port", "s0/o0"):
        wait_lit(lab, ["s0/o1~s3/o1", "s1/o0~s3/o0"])
        assert lab.dark("s1~s3").circuits_after == ["s0/o1~s3/o1"]
    wait_lit(lab, ["s0/o0~s2/o0", "s0/o1~s3/o1"])
    lab.light("s0/o0~s2/o0")
    with lab.fault("ocs-port", "s0/o0"):
        wait_lit(lab, [])
        lab.dark("s0~s2")
        with pytest.raises(SpecError, match="s0~s2 is not lit; lit: no circuits"):
            lab.dark("s0~s2")


def test_light_by_demand(lab: Lab) -> None:
    rows = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0]]
    change = lab.light(demand=rows, policy="mixnet")
    assert change.plan is not None
    assert set(change.circuits_after) == set(lab.circuits())
    with pytest.raises(SpecError, match=r"demand\[1\]: the matrix is not square"):
        lab.light(demand=[[0, 1, 1, 1], [0], [0] * 4, [0] * 4])


def test_capture_shows_that_packets_follow_the_light(lab: Lab, tmp_path: Path) -> None:
    lab.light("s0~s1")
    light = lab.capture("s0/o0", tmp_path / "light.pcap")
    eps = lab.capture("s0/e0", tmp_path / "eps.pcap")
    with light, eps:
        sent = lab.exec("s0", f"ping -c 5 -i 0.02 {lab.address('s1')}", check=True)
    assert "5 received" in sent.stdout
    assert light.dropped == eps.frames == 0
    from scapy.layers.inet import ICMP  # scapy takes half a second to import
    from scapy.utils import rdpcap

    captured = rdpcap(str(light.path))
    assert len(captured) == light.frames
    frames = [frame for frame in captured if ICMP in frame]  # others look for light
    assert [frame[ICMP].type for frame in frames] == [8, 0] * 5
    times = [float(frame.time) for frame in frames]
    assert times == sorted(times)
    with pytest.raises(FabricError, match="s0/o9: api has no such place; it has the NICs s0/o0"):
        lab.capture("s0/o9").__enter__()


def test_fault_ends_with_its_block(lab: Lab) -> None:
    lab.light("s0~s1")
    with pytest.raises(FabricError), lab.fault("nic", "s0/o0"):
        lab.exec("s9", "true")
    assert lab.faults() == []
    with lab.fault("nic", "s0/o0"):
        assert [(f["kind"], f["what"]) for f in lab.faults()] == [("nic", ["s0/o0"])]
    assert lab.faults() == []
    with lab.fault("gpu", "s1/3"), lab.fault("controller", "r0", mode="stop"):
        kinds = [fault["kind"] for fault in lab.faults()]
        assert kinds == ["gpu", "controller"]
    assert lab.faults() == []
    lab.fault("server", "s3")
    lab.ocs_fault("stuck", "s1/o0")
    assert len(lab.faults()) == 2
    assert lab.clear() == []
    with pytest.raises(SpecError, match="'link' is not one of nic, ocs-port"):
        lab.fault("link", "s0/o0")


def test_fault_of_an_ocs_ends_with_its_block(lab: Lab) -> None:
    with lab.ocs_fault("stuck", "s1/o0"), lab.ocs_fault("reject", times=2) as both:
        assert [fault["kind"] for fault in both["faults"]] == ["stuck", "reject"]
        with lab.ocs_fault("delay", "5ms"):
            assert len(lab.ocs_fault("list")["faults"]) == 3
        assert [fault["kind"] for fault in lab.ocs_fault(None)["faults"]] == ["stuck", "reject"]
    assert lab.ocs_fault("list")["faults"] == []
    with lab.ocs_fault("port", "s0/o0"), lab.ocs_fault("down") as dark:
        assert not dark["power"]
        assert {fault["kind"] for fault in lab.faults()} == {"ocs-port", "ocs"}
    assert lab.faults() == []
    with lab.fault("ocs-port", "s2/o1"):
        assert lab.faults()[0]["what"] == ["s2/o1"]
    with pytest.raises(SpecError, match=r"give ocs-port, or ocs_fault\('port', 's0/o0'\)"):
        lab.fault("ocs", "port", "s0/o0")


def test_programs_have_output_status_and_a_limit(lab: Lab) -> None:
    assert lab.exec("s0", ["cat"], stdin="text").stdout == "text"
    assert lab.exec("s0", "false").returncode == 1
    with pytest.raises(FabricError, match=r"s0: sleep 9 has not ended within 0\.1 s"):
        lab.exec("s0", "sleep 9", timeout_s=0.1)
    with pytest.raises(FabricError, match="s9: api has no such server"):
        lab.exec("s9", "true")


def test_lab_of_a_running_fabric_leaves_it_up(lab: Lab) -> None:
    with Lab.running("api") as other:
        assert other.inspect()["fabric"] == "api"
        program = other.popen("s0", "sleep 600")
    assert program.returncode == -signal.SIGKILL
    again = EmulatedFabric.load(EXAMPLES / "fabric.yaml", fabric="api", scale=SCALE).up()
    assert again.was_up
    elsewhere = EmulatedFabric.load(EXAMPLES / "fabric.yaml", fabric="api", scale=SCALE)
    with pytest.raises(FabricError, match="api runs on this machine, not on a cluster: `moefabric"):
        elsewhere.up(cluster="192.0.2.1:6379")
    assert next(event["kind"] for event in lab.events())


def test_up_says_soon_which_ocs_is_silent_and_keeps_the_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("moefabric.api.fabric.up_timeout_s", lambda _fabric: 6.0)
    real = {"driver": "scpi", "address": "127.0.0.1", "port": 9}
    absent = EmulatedFabric(
        fabric="absent",
        gpus_per_server=1,
        nic_rate="100Gb/s",
        nics={"optical": 1, "electrical": 1},
        regions=[{"servers": 2, "ocs": {"settle": "25ms", **real}}],
        scale={"bytes": 20000},
    )
    reason = "waits for ocs0 at 127.0.0.1:9: Connection refused"
    with pytest.raises(ControlError, match=f"not ready within .* s: {reason}; its logs") as failure:
        absent.up()
    assert capsys.readouterr().err == f"absent: {reason}\n"
    logs = Path(str(failure.value).rpartition(" ")[2])
    assert logs == run_root() / ".failed" / "absent"
    assert "Connection refused" in (logs / "controller-r0.jsonl").read_text()
    assert not run_root().joinpath("absent").exists()
    assert marked_pids("absent") == []


@pytest.mark.parametrize(
    ("driver", "control", "reason"),
    [
        ("scpi", {}, "ocs0: the device has 8 inputs and 8 outputs, not 2: set ocs.ports: 8"),
        (
            "tl1",
            {"ports": 8, "user": "root", "password_env": "OCS_PASSWORD"},
            "ocs0: no login as root: DENY .*: set ocs.user, or the password in OCS_PASSWORD",
        ),
    ],
)
def test_up_ends_at_once_if_the_ocs_is_another_one_or_refuses_the_login(
    driver: str, control: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCS_PASSWORD", "guess")
    with ocs_device(driver, 8, DeviceProfile()) as device:
        place = {"driver": driver, "address": device.address[0], "port": device.address[1]}
        other = EmulatedFabric(
            fabric="other",
            gpus_per_server=1,
            nic_rate="100Gb/s",
            nics={"optical": 1, "electrical": 1},
            regions=[{"servers": 2, "ocs": {"settle": "25ms", **place, **control}}],
            scale={"bytes": 20000},
        )
        started_s = time.monotonic()
        with pytest.raises(ControlError, match=f"^{reason}; its logs are in"):
            other.up()
        assert time.monotonic() - started_s < 60, "it waits four minutes for a silent device"
        assert device.cross_connects() == ()
    assert marked_pids("other") == []


def test_real_ocs_is_commanded_and_none_is_emulated_in_its_place(tmp_path: Path) -> None:
    with ocs_device("scpi", 8, DeviceProfile()) as device:
        place = {"driver": "scpi", "address": device.address[0], "port": device.address[1]}
        real = EmulatedFabric(
            fabric="real",
            gpus_per_server=1,
            nic_rate="100Gb/s",
            nics={"optical": 1, "electrical": 1},
            regions=[{"servers": 2, "ocs": {"ports": 8, "verify": "read-back", **place}}],
            scale={"bytes": 20000},
        )
        with real.up() as lab:
            assert lab.light("s0~s1").circuits_after == ["s0/o0~s1/o0"]
            assert device.cross_connects() == ((1, 10), (2, 9))
            names = {process["name"] for process in lab.inspect()["processes"]}
            assert names.isdisjoint({"ocs0"})
            assert (list(lab.events()), lab.faults()) == ([], [])
            with lab.capture("s0/o0", tmp_path / "real.pcap"):
                lab.exec("s0", f"ping -c 1 -W 1 {lab.address('s1')}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_interrupted_program_leaves_nothing(number: signal.Signals) -> None:
    script = textwrap.dedent(INTERRUPTED)
    argv = [sys.executable, "-c", script, str(EXAMPLES / "fabric.yaml")]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(number)
        assert program.wait(30) != 0
    assert marked_pids("cut") == []
    assert not run_root().joinpath("cut").exists()
