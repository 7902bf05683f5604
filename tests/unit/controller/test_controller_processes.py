"""Supervision of controller processes, with processes that stand for controllers."""

import fcntl
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from moefabric.controller.client import ControllerClient
from moefabric.controller.service import controller_processes
from moefabric.controller.service.controller_processes import (
    Beat,
    Beats,
    ControllerProcesses,
    Regions,
)
from moefabric.core.topology import Region
from moefabric.runtime import failure_log
from moefabric.runtime.failure_log import read_failure_log
from moefabric.runtime.processes import Restarts, wait_ended
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.runtime.waiting import Deadline
from tests.support.fabrics import fabric

WIRING = FabricWiring(fabric(2, 2), ManagementNetwork("127.9.9.0/24"))
SHARED = replace(WIRING, fabric=fabric(2, 2, regions=(2, 2, 2)), region_processes=2)


@dataclass
class Supervisor:
    """The processes of a fabric with one region and an EPS, or of another one.

    Attributes:
        doings: What the region's controller does in each of its lives; the last goes on.
    """

    run: RunDirectory
    doings: list[str] = field(default_factory=lambda: ["work"])
    wiring: FabricWiring = WIRING

    def __post_init__(self) -> None:
        self.lives = Counter[str]()
        self.processes = ControllerProcesses(self._control)

    def _control(
        self, _run: RunDirectory, _wiring: FabricWiring, regions: Regions, beat: Beat
    ) -> int:
        lives = self.lives[controller_processes.process_name(regions)]
        doing = self.doings[min(lives, len(self.doings) - 1)] if any(regions) else "work"
        if doing == "fail":
            return 3
        beat()
        if doing == "beat, then fail":
            for _ in range(1 << 17):  # more bytes than a pipe holds
                beat()
        if doing.endswith("then fail"):
            return 3
        if doing == "ignore SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if doing == "loop":
            while True:
                pass
        threading.Event().wait()
        return 0

    def step(self) -> int:
        """Do what the supervisor does repeatedly."""
        status = self.processes.reap()
        before = dict(self.pids)
        self.processes.start_missing(self.run, self.wiring)
        for name, pid in self.pids.items():
            if before.get(name) != pid:
                self.lives[name] += 1
        return status

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for (_, name), process in self.processes.running.items()}

    def until_lives(self, number: int, name: str = "r0") -> None:
        def begun() -> bool:
            assert self.step() == 0
            work = self.processes.running.keys() <= self.processes.proven
            return self.lives[name] == number and work

        Deadline.after(30).wait_for(begun, f"life {number} of the controller")

    def notes(self) -> list[tuple[str, str]]:
        return [(event.phase, event.why) for event in read_failure_log(self.run)]


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    run = RunDirectory(tmp_path / "f")
    run.path.mkdir()
    run.make_token()
    run.wiring_file.write_text(WIRING.to_json())
    one = Supervisor(run)
    yield one
    one.processes.stop()


def test_end_of_a_controller_restarts_that_one_only(supervisor: Supervisor) -> None:
    supervisor.doings = ["work, then fail", "work"]
    supervisor.until_lives(2)
    assert supervisor.lives == {"r0": 2, "eps": 1}
    assert supervisor.notes() == [("detected", "its process ended (3)")]
    assert supervisor.run.controller_pid_file(WIRING.fabric.regions[0]).read_text() == (
        f"{supervisor.pids['r0']}\n"
    )


def test_controllers_of_an_earlier_supervisor_recover(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = supervisor.run.controller_pid_file(WIRING.fabric.regions[0])
    file.parent.mkdir()
    file.write_text("7\n")  # it was killed with its controllers
    monkeypatch.setattr(controller_processes, "_is_ready", lambda *_: False)
    supervisor.until_lives(1)
    supervisor.processes.check_restarted(supervisor.run, WIRING)
    assert supervisor.notes() == [("detected", "the process controllers ended")]
    monkeypatch.setattr(controller_processes, "_is_ready", lambda *_: True)
    for _ in range(2):
        supervisor.processes.check_restarted(supervisor.run, WIRING)
    assert supervisor.notes()[1:] == [
        ("recovered", "started again, lit circuits adopted"),
        ("clear", "started again"),
    ]


def test_end_of_a_shared_process_is_that_of_its_controllers(supervisor: Supervisor) -> None:
    supervisor.wiring = SHARED
    supervisor.until_lives(1, "r0-r1")
    first = supervisor.pids
    assert first.keys() == {"r0-r1", "r2", "eps"}
    files = [*map(supervisor.run.controller_pid_file, (*SHARED.fabric.regions, None))]
    expected = [first[name] for name in ("r0-r1", "r0-r1", "r2", "eps")]
    assert [int(file.read_text()) for file in files] == expected
    os.kill(first["r0-r1"], signal.SIGKILL)
    supervisor.until_lives(2, "r0-r1")
    [event] = read_failure_log(supervisor.run)
    assert (event.phase, event.what) == ("detected", ("r0", "r1"))
    assert {name: supervisor.pids[name] == pid for name, pid in first.items()} == {
        "r0-r1": False,
        "r2": True,
        "eps": True,
    }
    hung_s = {name: one.heartbeat.hung_s for (_, name), one in supervisor.processes.running.items()}
    assert hung_s == {"r0-r1": 120.0, "r2": 60.0, "eps": 60.0}


def test_restarted_controllers_of_a_process_recover_one_by_one(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = {"r1"}

    def is_ready(_run: RunDirectory, _wiring: FabricWiring, region: Region) -> bool:
        return region.name in ready

    monkeypatch.setattr(controller_processes, "_is_ready", is_ready)
    supervisor.wiring = SHARED
    supervisor.until_lives(1, "r0-r1")
    os.kill(supervisor.pids["r0-r1"], signal.SIGKILL)
    supervisor.until_lives(2, "r0-r1")

    def recovered() -> set[tuple[str, ...]]:
        supervisor.processes.check_restarted(supervisor.run, SHARED)
        log = read_failure_log(supervisor.run)
        return {event.what for event in log if event.phase == "recovered"}

    Deadline.after(30).wait_for(lambda: recovered() == {("r1",)}, "r1, though r0 isn't ready")
    ready.add("r0")
    Deadline.after(30).wait_for(lambda: recovered() == {("r1",), ("r0",)}, "r0")
    assert supervisor.processes.ended == {}


def test_controllers_recover_only_once_their_own_process_runs_again(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_processes, "_is_ready", lambda *_: True)
    supervisor.until_lives(1)
    os.kill(supervisor.pids["r0"], signal.SIGKILL)

    def has_ended() -> bool:
        supervisor.processes.reap()
        return bool(supervisor.processes.ended)

    def phases(checked: RunDirectory) -> list[str]:
        supervisor.processes.check_restarted(checked, WIRING)
        return [phase for phase, _ in supervisor.notes()]

    Deadline.after(30).wait_for(has_ended, "the end of the controller")
    assert phases(supervisor.run) == ["detected"]
    supervisor.until_lives(2)
    assert phases(RunDirectory(supervisor.run.path.parent / "other")) == ["detected"]
    assert phases(supervisor.run) == ["detected", "recovered"]


def test_process_beats_while_all_its_controllers_answer() -> None:
    beats = list[str]()
    answers = Beats(("r0", "r1"), lambda: beats.append("beat"))
    for name in ("r0", "r0", "r0", "r1"):
        assert beats == []
        answers.answered(name)
    assert beats == ["beat"]
    answers.answered("r1")
    assert beats == ["beat"]
    answers.answered("r0")
    assert beats == ["beat", "beat"]


def test_controller_goes_on_though_nobody_reads_its_beats(supervisor: Supervisor) -> None:
    supervisor.doings = ["beat, then fail"]
    supervisor.step()
    r0 = supervisor.processes.running[supervisor.run, "r0"]
    assert wait_ended([r0.pidfd], Deadline.after(10)) == set()


def test_controller_that_does_not_answer_itself_does_not_beat() -> None:
    def end(_seconds: float) -> None:
        raise EOFError

    beats = list[str]()
    with ControllerClient(("127.0.0.1", 1), "token") as client, pytest.raises(EOFError):
        Beats(["r0"], lambda: beats.append("beat")).ask("r0", client, end)
    assert beats == []


def test_controller_that_fails_at_its_start_is_reported(supervisor: Supervisor) -> None:
    supervisor.doings = ["fail"]
    Deadline.after(30).wait_for(lambda: supervisor.step() == 3, "the exit status")


def test_watched_folder_goes_on_after_a_failed_start(supervisor: Supervisor) -> None:
    supervisor.processes.reports_failed_start = False
    supervisor.doings = ["fail", "fail", "work"]
    supervisor.until_lives(3)


def test_restarts_slow_down_and_become_immediate_again() -> None:
    restarts, delays = Restarts(), []
    for now_s in range(12):
        restarts.started_s = now_s
        delays.append(restarts.note_end(now_s + 1.0))
    assert delays[:4] == [0.0, 0.2, 0.4, 0.8]
    assert delays[-1] == 30.0
    assert restarts.not_before_s == 12 + 30
    restarts.started_s = 100.0
    assert restarts.note_end(160.0) == 0.0


def test_full_file_system_ends_no_controller(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor.doings = ["work, then fail", "work"]
    monkeypatch.setattr(failure_log, "FAILURE_LOG", "/dev/full")
    pid_files = supervisor.run.controller_pid_file(None).parent
    pid_files.mkdir()
    for name in ("r0", "eps"):
        (pid_files / f"{name}.pid").symlink_to("/dev/full")
    supervisor.until_lives(2)
    assert supervisor.lives == {"r0": 2, "eps": 1}
    logged = [record.getMessage() for record in caplog.records]
    for what in ("process id", "failure log"):
        assert f"{what} of f not written: No space left on device" in logged


def test_controller_that_ignores_sigterm_is_killed_in_time(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_processes, "_STOP_S", 0.2)
    supervisor.doings = ["ignore SIGTERM"]
    supervisor.until_lives(1)
    pids = supervisor.pids.values()
    supervisor.processes.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("doing", ["loop", "work"], ids=["busy-loop", "stopped"])
def test_controller_that_hangs_is_killed_and_restarted(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    supervisor.doings = [doing, "work"]
    supervisor.until_lives(1)
    if doing == "work":
        os.kill(supervisor.pids["r0"], signal.SIGSTOP)
    eps = supervisor.processes.running[supervisor.run, "eps"]
    r0 = supervisor.processes.running[supervisor.run, "r0"]
    eps.heartbeat.at_s += 1e6  # the stand-ins beat once only
    r0.heartbeat.at_s -= 1000.0
    supervisor.until_lives(2)
    assert supervisor.lives == {"r0": 2, "eps": 1}
    [(_, hung), (_, ended)] = supervisor.notes()
    assert hung.startswith("it has not answered /health for 10")
    assert ended == "its process ended (-9)"


def test_controller_that_waits_for_a_processor_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = {"s": 5.0}
    monkeypatch.setattr(controller_processes, "processor_wait_s", lambda _pid: waited["s"])
    heartbeat = controller_processes.Heartbeat(os.getpid(), 0.0)
    heartbeat.beat(100.0)
    waited["s"] += 900.0
    assert not heartbeat.is_hung(1059.0), "it waited for 900 s of 959 s"
    assert heartbeat.is_hung(1060.0)


def test_controller_under_a_debugger_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = [True, False]
    monkeypatch.setattr(controller_processes, "is_traced", lambda _pid: traced[0])
    heartbeat = controller_processes.Heartbeat(os.getpid(), 0.0)
    assert not heartbeat.is_hung(1000.0)
    traced.pop(0)
    assert not heartbeat.is_hung(1059.0), "the time begins again when the debugger leaves"
    monkeypatch.setattr(controller_processes, "processor_wait_s", lambda _pid: heartbeat.waited_s)
    assert heartbeat.is_hung(1061.0)


def test_processor_wait_and_tracer_are_read_from_the_kernel() -> None:
    assert controller_processes.processor_wait_s(os.getpid()) > 0.0
    assert controller_processes.processor_wait_s(2**22 + 1) == 0.0
    assert not controller_processes.is_traced(os.getpid())


def test_controllers_of_a_fabric_whose_process_was_killed_are_ended(supervisor: Supervisor) -> None:
    supervisor.until_lives(1)
    with supervisor.run.life_file.open("w") as life:
        fcntl.flock(life, fcntl.LOCK_EX)
        supervisor.processes.stop_replaced(supervisor.run)
        assert len(supervisor.pids) == 2
    supervisor.processes.stop_replaced(supervisor.run)
    assert supervisor.pids == {}


def test_controllers_of_a_replaced_fabric_are_ended(supervisor: Supervisor) -> None:
    supervisor.until_lives(1)
    supervisor.processes.stop_replaced(supervisor.run)
    assert len(supervisor.pids) == 2
    supervisor.run.token_file.unlink()
    supervisor.run.make_token()
    supervisor.processes.stop_replaced(supervisor.run)
    assert supervisor.pids == {}
