"""Ranks of a job: their environment, their output, and how they end together."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from moefabric.core.errors import FabricError, RankFailedError
from moefabric.execution.programs.rank_jobs import Rank, RankJob, RankPlace
from moefabric.execution.programs.rank_processes import RankProcesses
from moefabric.runtime.waiting import Deadline

WAIT_S = 30.0


def here(_server: str, command: Sequence[str]) -> Sequence[str]:
    """Launch on servers that are this machine."""
    return command


class Lines(list[tuple[int, str, str]]):
    """What ranks print: (rank, stream, line)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def add(self, rank: Rank, stream: str, line: str) -> None:
        with self._changed:
            self.append((rank.number, stream, line))
            self._changed.notify()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self) >= count, WAIT_S), self


def job(*command: str, servers: int = 2, ranks_per_server: int = 2) -> RankJob:
    names = tuple(f"s{index}" for index in range(servers))
    return RankJob(RankPlace(here, names, "198.18.0.64"), command, ranks_per_server)


def shell(script: str, **options: int) -> RankJob:
    return job("sh", "-c", script, **options)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_environment_is_torchruns() -> None:
    place = RankPlace(here, ("s0", "s1", "s2"), "198.18.0.64", 1234, {"s1": {"B": "s1"}})
    three = RankJob(place, ("x",), 2, {"A": "all", "B": "all"})
    assert [(rank.number, rank.local, rank.server) for rank in three.ranks] == [
        (0, 0, "s0"),
        (1, 1, "s0"),
        (2, 0, "s1"),
        (3, 1, "s1"),
        (4, 0, "s2"),
        (5, 1, "s2"),
    ]
    variables = three.environment_of(three.ranks[3])
    assert {name: variables[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")} == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
    }
    sizes = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    assert [variables[name] for name in sizes] == ["6", "2", "3"]
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("198.18.0.64", "1234")
    assert (variables["A"], variables["B"]) == ("all", "s1")
    assert three.environment_of(three.ranks[4])["B"] == "all"


def test_every_line_arrives_in_order_with_its_rank_and_stream() -> None:
    script = 'i=0; while [ $i -lt 2000 ]; do echo "$RANK $i"; i=$((i+1)); done; printf end >&2'
    lines = Lines()
    with RankProcesses(shell(script), lines.add) as ranks:
        assert ranks.wait(WAIT_S)
    for rank in range(4):
        printed = [line for number, stream, line in lines if (number, stream) == (rank, "stdout")]
        assert printed == [f"{rank} {i}" for i in range(2000)]
    assert sorted(entry for entry in lines if entry[1] == "stderr") == [
        (rank, "stderr", "end") for rank in range(4)
    ]


def test_first_failure_ends_the_others_and_is_reported() -> None:
    script = 'if [ $RANK = 2 ]; then echo "no memory" >&2; exit 7; fi; exec sleep 600'
    calls: list[bool] = []
    with RankProcesses(shell(script), Lines().add, on_end=lambda: calls.append(True)) as ranks:
        with pytest.raises(RankFailedError) as failure:
            ranks.wait(WAIT_S)
        assert ranks.ended
    assert str(failure.value) == "rank 2 on s1 exited 7, saying: no memory"
    assert (failure.value.server, failure.value.status) == ("s1", 7)
    assert len(calls) == 2  # the failure, and the end of all


def test_rank_that_left_before_is_named_beside_the_one_that_failed(tmp_path: Path) -> None:
    """Gloo's error says only that some connection was closed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"""case $RANK in
        0) read pid < {pipe}; tail --pid=$pid -s 0.01 -f /dev/null  # until its status is taken
           echo Connection closed by peer >&2; exit 1 ;;
        3) echo $$ > {pipe} ;;
        *) exec sleep 60 ;;
    esac"""
    with RankProcesses(shell(script), Lines().add) as ranks, pytest.raises(RankFailedError) as end:
        ranks.wait(WAIT_S)
    said = "rank 0 on s0 exited 1, saying: Connection closed by peer"
    assert str(end.value) == f"{said}; before it, rank 3 on s1 exited 0"


@pytest.mark.parametrize(
    ("program", "is_unloadable", "names_remedy"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\")", True, True),
        ("raise SystemExit(\"[rank0]: ModuleNotFoundError: No module named 'torch'\")", True, True),
        ("import no_such_module", True, False),
        ("x =", True, False),
        ("1 / 0", False, False),
    ],
)
def test_a_program_that_cannot_be_loaded_is_told_from_one_that_fails(
    program: str, is_unloadable: bool, names_remedy: bool
) -> None:
    job = RankJob(RankPlace(here, ("s0",), "198.18.0.64"), (sys.executable, "-c", program))
    with RankProcesses(job, Lines().add) as ranks, pytest.raises(RankFailedError) as failure:
        ranks.wait(WAIT_S)
    assert failure.value.is_unloadable is is_unloadable
    assert ("pip install '.[fabric,torch]'" in str(failure.value)) is names_remedy


def test_ranks_have_ended_when_the_last_callback_is_called() -> None:
    """A thread that the callback wakes asks `ended` once, and waits forever if it is False."""
    started, ended = threading.Event(), list[bool]()

    def on_end() -> None:
        started.wait(WAIT_S)
        ended.append(ranks.ended)

    with RankProcesses(shell("true"), Lines().add, on_end=on_end) as ranks:
        started.set()
        assert ranks.wait(WAIT_S)
    assert ended == [True]


def test_end_writes_to_no_other_file_once_the_ranks_have_ended() -> None:
    """The pipe that wakes the thread is closed by then, and its number is that of another file."""
    started, files = threading.Event(), list[int]()

    def on_end() -> None:
        started.wait(WAIT_S)
        files.extend(os.memfd_create(f"file {number}") for number in range(8))
        ending = threading.Thread(target=ranks.end)
        ending.start()
        ending.join(WAIT_S)

    with RankProcesses(shell("true"), Lines().add, on_end=on_end) as ranks:
        started.set()
        assert ranks.wait(WAIT_S)
    sizes = [os.fstat(file).st_size for file in files]
    for file in files:
        os.close(file)
    assert sizes == [0] * 8


def test_last_callback_is_called_after_one_that_failed() -> None:
    """`moefabric torchrun ... | head -1` must end."""

    def break_pipe(_rank: Rank, _stream: str, _line: str) -> None:
        raise BrokenPipeError

    calls: list[bool] = []
    with (
        RankProcesses(
            shell("echo; exec sleep 600"), break_pipe, on_end=lambda: calls.append(True)
        ) as ranks,
        pytest.raises(BrokenPipeError),
    ):
        ranks.wait(WAIT_S)
    assert calls


def test_killed_rank_is_reported_with_its_signal() -> None:
    lines = Lines()
    with RankProcesses(shell("echo $$; exec sleep 600"), lines.add) as ranks:
        lines.wait_for(4)
        pid = next(int(line) for rank, _, line in lines if rank == 1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RankFailedError, match="rank 1 on s0 was ended by signal 9"):
            ranks.wait(WAIT_S)
    assert not any(is_running(int(line)) for _, _, line in lines)


def test_close_kills_ranks_that_ignore_sigterm_and_their_orphans() -> None:
    # The subshell leaves the rank's process group, so that only the guard knows it.
    script = "trap '' TERM; setsid sh -c 'echo $$; exec sleep 600' & echo $$; wait"
    lines = Lines()
    job_of_one = shell(script, servers=1, ranks_per_server=1)
    with RankProcesses(job_of_one, lines.add, grace_s=0.1) as ranks:
        lines.wait_for(2)
        assert not ranks.wait(0)
    assert ranks.failure is None
    assert not any(is_running(int(line)) for _, _, line in lines)


def test_ranks_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"""
from moefabric.execution.programs.rank_jobs import RankJob, RankPlace
from moefabric.execution.programs.rank_processes import RankProcesses

command = ("sh", "-c", "echo $$ >> {pids}; exec sleep 600")
place = RankPlace(lambda _, words: words, ("s0", "s1"), "127.0.0.1")
with RankProcesses(RankJob(place, command, 2), print) as ranks:
    ranks.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", program])
    Deadline.after(WAIT_S).wait_for(
        lambda: pids.exists() and pids.read_text().count("\n") == 4, "four ranks"
    )
    parent.kill()
    parent.wait()
    started = [int(pid) for pid in pids.read_text().split()]
    Deadline.after(WAIT_S).wait_for(
        lambda: not any(map(is_running, started)), "the end of the ranks"
    )


def test_missing_program_is_an_error_of_its_rank() -> None:
    with (
        RankProcesses(job("no-such-program"), Lines().add) as ranks,
        pytest.raises(RankFailedError, match=r"exited 127, saying: .*no-such-program"),
    ):
        ranks.wait(WAIT_S)


def test_failed_start_leaves_no_rank(tmp_path: Path) -> None:
    def elsewhere(server: str, command: Sequence[str]) -> Sequence[str]:
        return ["no-such-launcher"] if server == "s1" else command

    started = tmp_path / "pid"
    ranks = shell(f"echo $$ >> {started}; exec sleep 600")
    with pytest.raises(FabricError, match="rank 2 on s1: can't run no-such-launcher"):
        RankProcesses(replace(ranks, place=replace(ranks.place, launcher=elsewhere)), Lines().add)
    pids = started.read_text().split() if started.exists() else []
    assert not any(is_running(int(pid)) for pid in pids)


def test_error_of_the_callback_ends_the_ranks() -> None:
    def refuse(_rank: Rank, _stream: str, line: str) -> None:
        raise ValueError(line)

    with (
        RankProcesses(shell("echo hello; exec sleep 600"), refuse) as ranks,
        pytest.raises(ValueError, match="hello"),
    ):
        ranks.wait(WAIT_S)


def test_ranks_get_the_callers_folder_and_variables_of_a_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "SOME_PASSWORD"):
        monkeypatch.setenv(name, "unguessed")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.chdir(tmp_path)
    lines = Lines()
    script = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    one = job(sys.executable, "-c", script, servers=1, ranks_per_server=1)
    with RankProcesses(one, lines.add) as ranks:
        ranks.wait(WAIT_S)
    folder, variables = json.loads(lines[0][2])
    assert (folder, variables["NCCL_DEBUG"]) == (str(tmp_path), "INFO")
    assert "unguessed" not in variables.values()
