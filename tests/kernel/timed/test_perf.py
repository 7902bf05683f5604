"""Collectives on a fabric that is up: right results, right times, and nothing left behind."""

import json
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from moefabric.agents.fleet.channel import Channel, connect_local, request_all
from moefabric.agents.fleet.messages import Message
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline
from tests.support.attempts import measurements
from tests.support.command_home import NEEDS_COMMAND, Home, new_home

FABRIC = """
fabric: perfs
gpus_per_server: 2
nic_rate: 100Gb/s
nics: {optical: 1, electrical: 1}
regions:
  - servers: 2
    ocs: {settle: 25ms}
scale: {bytes: 1000}
"""

pytestmark = NEEDS_COMMAND


def row(home: Home, *words: str) -> dict[str, Any]:
    """Return the only row of a measurement, whose verdict the exit status agrees with."""
    run = home.call("perf", *words, "-n", "2", "-w", "1", "--json", "-")
    result = json.loads(run.stdout)
    assert run.returncode == (3 if result["verdict"] == "invalid" else 0), run.stderr
    assert result["reasons"] == [finding["text"] for finding in result["findings"]]
    assert not any("bytes by" in reason for reason in result["reasons"])
    (row,) = result["rows"]
    assert row["wrong"] == 0
    return dict(row)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with new_home() as home:
        home.must("up", home.write("fabric.yaml", FABRIC))
        home.must("light", "s0/o0~s1/o0")
        yield home
        home.must("down", "perfs")


@pytest.mark.parametrize(
    ("words", "light_share"),
    [
        pytest.param(("allreduce", "--algorithm", "ring"), 0.0, id="numbers-are-added"),
        pytest.param(("alltoall", "--via", "light"), 1.0, id="bytes-take-lit-circuits"),
        pytest.param(("alltoall", "--algorithm", "mixnet", "--via", "light"), 1.0, id="five-steps"),
    ],
)
def test_results_are_right_and_as_fast_as_the_model(
    home: Home, words: tuple[str, ...], light_share: float
) -> None:
    measure = partial(row, home, *words, "-b", "32M", "-e", "32M")
    rows = measurements(measure, lambda row: abs(row["error"]) < 0.05)
    assert -0.02 < rows[-1]["error"] < 0.05, [row["error"] for row in rows]
    # Replies over the EPS keep to it, though a circuit of their pair is lit.
    assert rows[-1]["light_share"] == pytest.approx(light_share, abs=0.01 if light_share else 1e-4)


def test_interrupted_measurement_leaves_nothing_at_the_agents(home: Home) -> None:
    words = home.argv("perf", "allreduce", "-b", "32M", "-e", "32M", "-n", "1000", "-w", "0")
    run_dir = RunDirectory(home.folder / "run" / "perfs")
    channels = [connect_local(server, run_dir.agent_socket(server)) for server in ("s0", "s1")]
    requests: dict[Channel, tuple[str, Message]] = dict.fromkeys(channels, ("stats", {}))

    def programs() -> list[int]:
        return [len(stats["programs"]) for stats in request_all(requests, 5).values()]

    with subprocess.Popen(words, env=home.env, text=True, stderr=subprocess.PIPE) as process:
        Deadline.after(30).wait_for(lambda: programs() == [1, 1], "a program is loaded")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    for stats in request_all(requests, 5).values():
        assert stats["programs"] == stats["connections"] == stats["armed"] == []
    for channel in channels:
        channel.close()
    assert row(home, "barrier")["time_us"] > 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("allreduce", "--algorithm", "pairwise"), "pairwise: it has no all_reduce, only all_to_"),
        (("alltoall", "--ranks", "3"), "3 ranks can't be spread evenly over 2 servers of 2 GPUs"),
        (("broadcast", "--root", "9"), "root: 9 is not one of 4 ranks"),
        (("alltoall", "--name", "other"), "other is not up: start it with"),
    ],
)
def test_impossible_measurement_is_an_error_of_one_line(
    home: Home, words: tuple[str, ...], error: str
) -> None:
    result = home.call("perf", *words)
    assert (result.returncode, result.stdout) == (1, "")
    assert error in result.stderr
    assert len(result.stderr.splitlines()) == 1
