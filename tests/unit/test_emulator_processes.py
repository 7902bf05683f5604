"""Processes and what is said about them: where they run, how they are marked, what `up` tells the fabric process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.command import Line, batch, run
from emulator.order import Order
from emulator.processes import Crew, Process, Role, end_marked, entering, mark, marked
from emulator.waiting import Beside, Deadline
from moefabric.errors import CommandFailedError, FabricError
from moefabric.management import Management, RunDir, Wiring
from moefabric.topology import Fabric, Region

WIRING = Wiring(
    Fabric("f", (Region("r0", 0, ("s0", "s1"), None),), 1, 0, 1, 1e9, None), Management("198.18.0.0/24")
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir(tmp_path / f"test-{os.getpid()}")
    made.log("any").parent.mkdir(parents=True)
    yield made
    end_marked(made.name)


def test_an_order_arrives_as_it_was_given() -> None:
    processes = (
        Process("agent-s0", "s0", ("agent", "--name", "s0"), {"A": "b"}, Role.AGENT),
        Process("x", "outer", ("x",)),
    )
    order = Order(WIRING, "mf0", processes, frozenset({"x"}), 20.0)
    assert Order.from_line(order.to_line()) == order
    assert order.to_line().count("\n") == 1
    assert [process.name for process in order.having(Role.AGENT)] == ["agent-s0"]


def test_a_program_enters_a_namespace_by_its_path_or_by_a_process() -> None:
    assert entering("/proc/7/fd/3", ["x"]) == ["nsenter", "--net=/proc/7/fd/3", "--", "x"]
    assert entering(7, ["x", "y"]) == [
        "nsenter",
        "-t",
        "7",
        "-n",
        "-m",
        f"--wdns={Path.cwd()}",
        "--",
        "x",
        "y",
    ]


def test_every_process_of_a_fabric_is_found_by_its_mark_and_no_other_is(run_dir: RunDir) -> None:
    mine = Crew(run_dir).start("mine", ["sleep", "60"])
    other = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, **mark(run_dir.name), "MOEFABRIC_RUN_DIR": "/another"}
    )
    try:
        assert marked(run_dir.name) == [mine.pid]
        assert end_marked(run_dir.name) == 1
        assert mine.popen.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_crew_tells_who_ended_how_and_with_which_words(run_dir: RunDir) -> None:
    crew = Crew(run_dir)
    assert crew.check()
    crew.start(
        "talker", [sys.executable, "-S", "-c", "print('one'); print('two'); raise SystemExit(3)"]
    ).popen.wait(10)
    with pytest.raises(FabricError, match="talker exited 3, saying: two"):
        crew.check()
    crew.stop(grace_s=0)


def test_who_does_not_listen_is_ended_all_the_same(run_dir: RunDir) -> None:
    crew = Crew(run_dir)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    crew.start("deaf", [sys.executable, "-S", "-c", deaf])
    Deadline.after(10).until(lambda: "deaf" in run_dir.log("deaf").read_text(), "deaf")
    began = time.monotonic()
    crew.stop(grace_s=0.1)
    assert time.monotonic() - began < 5
    assert marked(run_dir.name) == []


def test_a_program_that_is_not_there_is_named(run_dir: RunDir) -> None:
    with pytest.raises(FabricError, match="x: can't run no-such-program: No such file or directory"):
        Crew(run_dir).start("x", ["no-such-program"])


def test_a_failed_command_tells_its_whole_story() -> None:
    with pytest.raises(
        CommandFailedError, match=r"ls /no/such/place exited 2, saying: .*No such file or directory"
    ):
        run(["ls", "/no/such/place"])


def test_a_command_that_lasts_too_long_is_ended() -> None:
    with pytest.raises(CommandFailedError, match=r"sleep 60 exited -1, saying: no end within 0\.1 s"):
        run(["sleep", "60"], timeout_s=0.1)


def test_the_line_of_a_batch_that_fails_is_told_with_its_place() -> None:
    lines = [Line("s0/o0", "link show dev lo"), Line("s0/o1", "link show dev no-such")]
    with pytest.raises(
        FabricError, match=r's0/o1: ip link show dev no-such: Device "no-such" does not exist'
    ):
        batch(["ip"], lines)


def test_a_wait_ends_when_the_thing_is_there_or_the_time_is_over() -> None:
    there = threading.Event()
    threading.Timer(0.05, there.set).start()
    Deadline.after(5).until(there.is_set, "thing")
    with pytest.raises(FabricError, match="other thing was not ready in time"):
        Deadline.after(0.05).until(lambda: False, "other thing")


def test_what_is_done_beside_is_waited_for_with_its_fault_and_its_time() -> None:
    on = threading.Event()
    waits = Beside("painting", lambda: on.wait(10))
    with pytest.raises(FabricError, match="painting was not ready in time"):
        waits.done(Deadline.after(0.05))
    on.set()
    waits.done(Deadline.after(5))

    def fail() -> None:
        raise FabricError("no paint")

    with pytest.raises(FabricError, match="no paint"):
        Beside("painting", fail).done(Deadline.after(5))
