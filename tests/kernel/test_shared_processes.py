"""Controllers and OCSes of several regions that share processes, in a fabric with real packets."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial

import pytest

from moefabric import EmulatedFabric, Lab
from moefabric.controller.client import ControllerClient
from moefabric.emulator.fabric import lifecycle
from moefabric.runtime.failure_log import read_failure_log
from moefabric.runtime.waiting import Deadline
from tests.support.namespaces import own_machine

pytestmark = [pytest.mark.timeout(180)]
REGIONS = lifecycle.MOST_OWN_PROCESSES + 1
CIRCUITS = [f"s{2 * region}/o0~s{2 * region + 1}/o0" for region in range(REGIONS)]
PING_S = 0.05


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A fabric of one region more than have processes of their own; all circuits are lit."""
    fabric = EmulatedFabric(
        fabric="shared",
        gpus_per_server=1,
        nic_rate="100Gb/s",
        nics={"optical": 1, "electrical": 1},
        regions=[{"count": REGIONS, "servers": 2, "ocs": {"settle": "25ms"}}],
        scale={"bytes": 20000},
    )
    # As on a machine of two cores.
    with pytest.MonkeyPatch.context() as patch, own_machine():
        patch.setattr(lifecycle, "usable_cores", lambda: 2)
        with fabric.up() as started:
            for circuit in CIRCUITS:
                started.light(circuit)
            yield started


def pids_of(lab: Lab) -> dict[str, int]:
    """The processes of OCSes by name."""
    processes = lab.inspect()["processes"]
    return {one["name"]: one["pid"] for one in processes if one["name"].startswith("ocs")}


def ping(lab: Lab, region: int) -> "subprocess.Popen[str]":
    """Send packets between the two servers of a region until SIGINT."""
    words = "ping", "-q", "-i", str(PING_S), lab.address(f"s{2 * region + 1}")
    return lab.popen(f"s{2 * region}", words, stdout=subprocess.PIPE, text=True)


def lost(pinging: "subprocess.Popen[str]") -> int:
    """End a ping, and return how many of its packets got no answer."""
    pinging.send_signal(signal.SIGINT)
    counts = pinging.communicate(timeout=20)[0].split(" packets transmitted, ")
    return int(counts[0].split()[-1]) - int(counts[1].split()[0])


def test_large_fabric_has_a_process_for_each_core(lab: Lab) -> None:
    assert [*pids_of(lab)] == ["ocs0-ocs4", "ocs5-ocs8"]
    groups = [[region.name for region in group] for group in lab.wiring.region_groups]
    assert [(group[0], group[-1]) for group in groups] == [("r0", "r4"), ("r5", "r8")]
    shown = lab.inspect()
    names = [*(f"r{i}" for i in range(REGIONS)), "eps"]
    assert [one["region"] for one in shown["controllers"]] == names
    assert [one["name"] for one in shown["ocs"]] == [f"ocs{i}" for i in range(REGIONS)]


def test_each_region_has_logs_of_its_own(lab: Lab) -> None:
    for region in lab.fabric.regions:
        assert region.ocs is not None
        for process, said in (
            (f"controller-{region.name}", "listening for switches"),
            (region.ocs.name, "changed"),
        ):
            text = (lab.run_directory.log_folder / f"{process}.jsonl").read_text()
            lines = [json.loads(line) for line in text.splitlines()]
            assert {line["process"] for line in lines} == {process}
            assert any(line["message"].startswith(said) for line in lines)
            if process.startswith("controller"):
                assert {line["region"] for line in lines} == {region.name}


def test_killed_controllers_return_and_other_processes_go_on(lab: Lab) -> None:
    other = lab.fabric.regions[-1]
    pinging = [ping(lab, region) for region in range(REGIONS)]
    with ControllerClient.of_region(lab.wiring, other, run_dir=lab.run_directory) as client:
        started_s = time.monotonic()
        hit = lab.fault("controller", "r0").failure.what
        assert hit == ("r0", "r1", "r2", "r3", "r4")
        # The same connection goes on, while the killed controllers are away.
        client.light([])
        assert client.light(CIRCUITS[-1:])["circuits_after"] == CIRCUITS[-1:]

        def recovered() -> bool:
            log = read_failure_log(lab.run_directory)
            phases = {(event.phase, name) for event in log for name in event.what}
            return {("recovered", name) for name in hit} <= phases

        Deadline.after(60).wait_for(recovered, "the killed controllers")
        assert client.health()["ready"]
    assert lab.circuits() == CIRCUITS
    assert time.monotonic() - started_s < 60
    # Traffic of the other regions moved to the EPS and back; that of the killed ones stayed.
    assert [lost(one) for one in pinging[: len(hit)]] == [0] * len(hit)
    for one in pinging[len(hit) :]:
        lost(one)
    [injected] = [one for one in read_failure_log(lab.run_directory) if one.phase == "inject"]
    assert injected.what == hit


def test_reboot_of_a_switch_is_that_of_no_other(lab: Lab) -> None:
    lab.ocs_fault("reboot", ocs="ocs0")
    for other in (CIRCUITS[1], CIRCUITS[-1]):
        region = lab.fabric.regions[CIRCUITS.index(other)].name
        assert lab.dark(other).circuits_after == []
        assert lab.light(other, region=region).circuits_after == [other]
    Deadline.after(30).wait_for(lambda: bool(lab.ocs("ocs0")["ports"]), "the rebooted OCS")
    events = {(event["ocs"], event["kind"]) for event in lab.events()}
    assert {ocs for ocs, kind in events if kind == "reboot"} == {"ocs0"}


def test_ended_process_of_switches_returns_and_their_light_stays(lab: Lab) -> None:
    before = pids_of(lab)
    pinging = [ping(lab, region) for region in range(1, REGIONS)]
    os.kill(before["ocs0-ocs4"], signal.SIGKILL)

    def restarted() -> bool:
        now = pids_of(lab)
        assert now["ocs5-ocs8"] == before["ocs5-ocs8"]
        return now.get("ocs0-ocs4", before["ocs0-ocs4"]) != before["ocs0-ocs4"]

    Deadline.after(30).wait_for(restarted, "another process")
    for region, circuit in enumerate(CIRCUITS[1:5], start=1):
        ocs = f"ocs{region}"
        Deadline.after(30).wait_for(partial(answers, lab, ocs), ocs)
        assert lab.circuits(f"r{region}") == [circuit]
    assert [lost(one) for one in pinging] == [0] * len(pinging)
    assert lab.inspect()["faults"] == []


def answers(lab: Lab, ocs: str) -> bool:
    return len(lab.ocs(ocs)["ports"]) == 4
