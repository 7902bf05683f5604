"""Light that goes away unasked: noticed within a second, avoided, and lit again."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from moefabric import Lab, load_fabric
from moefabric.api.measurements import calibrate_ocses
from moefabric.api.running_fabrics import running_fabrics
from moefabric.controller.client import ControllerClient
from moefabric.core.errors import SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.units import NS_PER_S
from moefabric.results.journal import JournalReader
from moefabric.runtime.failure_log import read_failure_log
from moefabric.runtime.waiting import Deadline
from tests.support.attempts import measurements
from tests.support.namespaces import own_machine
from tests.support.paths import EXAMPLES
from tests.support.slow_machines import finished_run

A, B = "s0/o0~s1/o0", "s2/o0~s3/o0"
SCPI_PORT = 5025
EXPERIMENT = f"""
experiment: taken
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 4, sequence: 4096, micro_batch: 8, iterations: 24}}
gating: {{matrix: {EXAMPLES}/data/gating-8x8.json}}
wiring: {{nic_rate: 100Gb/s, regions: [{{servers: 4}}]}}
fabrics: [{{name: static, optical: 3, electrical: 1, policy: static}}]
scale: {{bytes: 1000, dilation: 2}}
"""


@contextmanager
def running(name: str, *settings: str) -> Iterator[Lab]:
    """Yield a running fabric of the example with these settings."""
    fabric = load_fabric(EXAMPLES / "fabric.yaml", settings, fabric=name, scale={"bytes": 2000})
    with fabric.up() as lab:
        yield lab


@pytest.fixture(scope="module")
def machine() -> Iterator[None]:
    with own_machine():
        yield


@pytest.fixture(scope="module")
def lab(machine: None) -> Iterator[Lab]:
    with running("lost") as lab:
        yield lab


def command(lab: Lab, line: str) -> str:
    """Command the OCS as any program of the machine does."""
    region = lab.fabric.regions[0]
    address = lab.wiring.management.ocs_address(region)
    with socket.create_connection((address, SCPI_PORT), 5) as ocs, ocs.makefile("rw") as lines:
        lines.write(f"{line};*opc?\n")
        lines.flush()
        return lines.readline().strip()


def controller(lab: Lab) -> ControllerClient:
    return ControllerClient.of_region(lab.wiring, lab.fabric.regions[0])


def losses(lab: Lab) -> list[tuple[int, str]]:
    """Return when the controller has noticed that each circuit had lost its light."""
    with controller(lab) as client:
        reports = client.failures()["failures"]
    return [(r["detected_ns"], r["what"]) for r in reports if r["kind"] == FailureKind.LIGHT]


def wait_lit(lab: Lab, *circuits: str) -> None:
    with controller(lab) as client:
        lit = lambda: sorted(map(str, client.circuits())) == sorted(circuits)  # noqa: E731
        Deadline.after(20).wait_for(lit, f"light of {circuits}")


def lose_all(lab: Lab) -> float:
    """Disconnect everything at the OCS; return the seconds until the controller has noticed."""
    wait_lit(lab, A, B)
    known, before_ns = len(losses(lab)), time.monotonic_ns()
    assert command(lab, ":oxc:swit:disc:all") == "1"
    Deadline.after(20).wait_for(lambda: len(losses(lab)) >= known + 2, "the loss of light")
    return max(at_ns - before_ns for at_ns, _ in losses(lab)[known:]) / NS_PER_S


def test_disconnected_light_is_noticed_within_a_second_and_returns(lab: Lab) -> None:
    lab.light(A, B)
    assert min(measurements(lambda: lose_all(lab), lambda seconds: seconds < 1)) < 1
    wait_lit(lab, A, B)
    assert lab.exec("s0", f"ping -c 3 -i 0.02 {lab.address('s1')}").returncode == 0
    events = [event for event in read_failure_log(lab.run_directory) if A in event.what]
    assert [event.phase for event in events][:2] == ["lost", "clear"]
    assert "the OCS doesn't connect it" in events[0].why


def test_traffic_goes_on_while_light_is_taken_again_and_again(lab: Lab) -> None:
    lab.light(A, B)
    wait_lit(lab, A, B)
    stop = threading.Event()

    def take() -> None:
        while not stop.is_set():
            command(lab, ":oxc:swit:disc:all")
            stop.wait(3)

    with closing(StoppedThread(threading.Thread(target=take), stop)):
        # Each loss costs the packets of less than a second, of which 10 s hold four.
        ping = lab.exec("s0", f"ping -q -c 100 -i 0.1 {lab.address('s1')}")
    received = int(ping.stdout.split(" packets transmitted, ")[1].split()[0])
    assert received >= 50


class StoppedThread:
    """A thread that is told to end, and awaited."""

    def __init__(self, thread: threading.Thread, stop: threading.Event) -> None:
        self._thread, self._stop = thread, stop
        thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)


def test_pulled_fibre_leaves_its_pair_on_the_eps_until_it_is_back(lab: Lab) -> None:
    lab.light(A, B)
    wait_lit(lab, A, B)
    lab.ocs_fault("loss", A, db=60.0)
    try:
        wait_lit(lab, B)
        [ocs] = lab.inspect()["ocs"]
        assert ocs["dark"] == [A.split("~")]
        assert lab.exec("s0", f"ping -c 3 -i 0.02 {lab.address('s1')}").returncode == 0
    finally:
        lab.ocs_clear()
    wait_lit(lab, A, B)


def test_light_of_others_stays_only_if_the_controller_has_none_of_its_own(lab: Lab) -> None:
    """As `docs/device-commands.md` says."""
    lab.light(A, B)
    wait_lit(lab, A, B)
    known, before = len(losses(lab)), command(lab, ":oxc:swit:conn:stat?")
    theirs = "(@1,8),(@20,13)"  # s0/o0 and s2/o1, of three NICs each
    command(lab, f":oxc:swit:conn:only {theirs}")
    Deadline.after(20).wait_for(lambda: len(losses(lab)) >= known + 2, "the loss of light")
    wait_lit(lab, A, B)
    assert command(lab, ":oxc:swit:conn:stat?") == before
    lab.dark()
    command(lab, f":oxc:swit:conn:only {theirs}")
    time.sleep(2)  # nothing happens, of which no event tells: several checks of light
    assert command(lab, ":oxc:swit:conn:stat?") == f"{theirs};1"
    lab.dark()
    assert command(lab, ":oxc:swit:conn:stat?") == "(@),(@);1"


@pytest.mark.parametrize("verify", ["light", "read-back"])
def test_light_stays_away_where_the_fabric_says_so_and_check_names_it(
    machine: None, verify: str
) -> None:
    ocs = f"{{settle: 25ms, relight: false, verify: {verify}}}"
    with running("dark", f"regions=[{{servers: 4, ocs: {ocs}}}]") as lab:
        lab.light(A, B)
        assert next(lab.check().lines()) == "before the check: 2 of 2 circuits carried packets"
        lose_all(lab)
        [shown] = lab.inspect()["ocs"]
        assert (shown["circuits"], shown["dark"]) == ([], [A.split("~"), B.split("~")])
        check = lab.check()
        assert (check.passed, check.lost) == (False, (A, B))
        assert lab.check().passed  # it has asked for them again


def test_check_sees_lost_light_that_no_controller_looks_for(machine: None) -> None:
    ocs = "{settle: 25ms, light_check: 0s}"
    with running("unseen", f"regions=[{{servers: 4, ocs: {ocs}}}]") as lab:
        lab.light(A, B)
        command(lab, ":oxc:swit:disc:all")
        assert lab.check().lost == (A, B)


def test_own_reconfigurations_are_no_lost_light(lab: Lab) -> None:
    lab.light(A, B)
    known, deadline = len(losses(lab)), Deadline.after(4)
    while deadline.remaining_s:
        lab.light("s0/o0~s2/o0", "s1/o0~s3/o0")
        lab.light(A, B)
    assert len(losses(lab)) == known


def has_iterations(journal: Path) -> bool:
    with suppress(SpecError):  # its first line is being written
        return journal.exists() and bool(JournalReader(journal).iterations("static"))
    return False


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_run_whose_light_is_taken_says_so_and_loses_no_byte(machine: None, tmp_path: Path) -> None:
    experiment, file = tmp_path / "taken.yaml", tmp_path / "run.json"
    experiment.write_text(EXPERIMENT)
    words = ["run", str(experiment), "--json", str(file)]
    argv = [str(Path(sys.executable).with_name("moefabric")), *words]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        journal = file.with_suffix(".jsonl")
        Deadline.after(120).wait_for(lambda: has_iterations(journal), "an iteration")
        [name] = [name for name in running_fabrics() if name.startswith("taken-")]
        assert command(Lab(name), ":oxc:swit:disc:all") == "1"
        _, errors = process.communicate(timeout=240)
    run = finished_run(file, process.returncode, errors, "circuits lost their light .+")
    [result] = run["results"]
    [reason] = [r for r in result["fidelity"]["reasons"] if "lost their light" in r]
    assert reason.startswith("circuits lost their light 6 times")
    lost = [failure for failure in result["failures"] if failure["kind"] == "light"]
    assert len(lost) == 6
    assert all(f["ok"] and f["detected_s"] is not None and f["cleared_s"] for f in lost)
    assert result["integrity"]["lost_transfers"] == result["integrity"]["corrupt"] == 0


def test_calibration_of_a_running_fabric_is_no_lost_light(lab: Lab) -> None:
    lab.light(A, B)
    known = len(losses(lab))
    calibrate_ocses(lab.name, 60, 100_000)
    assert len(losses(lab)) == known
    wait_lit(lab, A, B)
