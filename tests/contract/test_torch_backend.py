"""The PyTorch backend against gloo: ranks as processes, agents as processes, on loopback."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.rank_lab import Agents, ExchangeLoop, Ranks, error_of, ranks_on

pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")

from tests.support import rank_functions as functions

DTYPES = ["float32", "bfloat16", "float16", "float64"]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(240)]


@dataclass
class Job:
    agents: Agents
    loop: ExchangeLoop
    ranks: Ranks


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Four ranks on two servers. The last test of this file ends some of them."""
    agents = Agents(tmp_path_factory.mktemp("agents"), ["s0", "s1"])
    loop = ExchangeLoop(agents.fleet)
    loop.start()
    try:
        with ranks_on([agents.rank_socket(server) for server in ("s0", "s0", "s1", "s1")]) as ranks:
            ranks.run(functions.init)
            yield Job(agents, loop, ranks)
    finally:
        loop.stop()
        agents.close()


def test_results_equal_those_of_gloo(job: Job) -> None:
    exchanges = len(job.loop.exchanges)
    for seed in range(3):
        assert sum(job.ranks.run(functions.compare, seed, 12, DTYPES)) > 0
    assert len(job.loop.exchanges) == exchanges + 36
    job.ranks.run(functions.compare_without_lists, 9, 5, ["int32", "int64", "uint8"])
    assert len(job.loop.exchanges) == exchanges + 36  # integers go by gloo
    assert job.loop.failures == []


def test_groups_of_some_ranks_equal_gloo(job: Job) -> None:
    for members in ([0, 2], [3, 1, 0], [2, 3]):
        name = f"of {members}"
        job.ranks.run(functions.add_groups, members, 60.0, name)
        exchanges = len(job.loop.exchanges)
        job.ranks.run(functions.compare, 5, 8, DTYPES, name)
        came = job.loop.exchanges[exchanges:]
        assert [exchange.number for exchange in came] == list(range(8))
        assert {exchange.group for exchange in came} == {tuple(sorted(members))}
        if members == [2, 3]:  # of one server
            assert [exchange.owed for exchange in came] == [{}] * 8


def test_many_collectives_never_lock_each_other(job: Job) -> None:
    job.ranks.run(functions.many_collectives, 600)


def test_bytes_and_servers_of_an_exchange(job: Job) -> None:
    job.ranks.run(functions.exchange, 2)
    last = job.loop.exchanges[-1]
    assert (last.group, last.dtype) == ((0, 1, 2, 3), "float32")
    assert last.servers == ("s0", "s0", "s1", "s1")
    assert last.sends == ((24,) * 4,) * 4
    assert last.owed == {("s0", "s1"): 96, ("s1", "s0"): 96}
    assert last.tokens is None


def test_token_counts_are_announced(job: Job) -> None:
    counts = job.ranks.run(functions.announced_tokens, 8, 5)
    forward, backward = job.loop.exchanges[-2:]
    assert forward.tokens == tuple(map(tuple, counts))
    assert backward.tokens is None


def test_several_outstanding_exchanges(job: Job) -> None:
    assert job.ranks.run(functions.several_outstanding) == [[True] * 5] * 4


def test_gradients_equal_those_of_gloo(job: Job) -> None:
    assert job.ranks.run(functions.gradients) == [2] * 4


def test_data_parallel_step_equals_gloo(job: Job) -> None:
    job.ranks.run(functions.train_step)


def test_other_collectives_work(job: Job) -> None:
    job.ranks.run(functions.other_collectives)


@pytest.mark.parametrize(
    "kind",
    [
        "input that is not contiguous",
        "wrong sum of splits",
        "wrong number of splits",
        "different types",
    ],
)
def test_wrong_arguments_raise_as_gloo_does(job: Job, kind: str) -> None:
    ours = job.ranks.errors(functions.wrong_arguments, kind)
    assert ours == job.ranks.errors(functions.wrong_arguments, kind, "gloo")
    assert "no error" not in ours[0]


@pytest.mark.parametrize(("receiver", "whom"), [(1, "rank 1, which"), (0, "itself, but")])
def test_ranks_that_disagree_learn_who(job: Job, receiver: int, whom: str) -> None:
    why = f"rank 0 sends 8 bytes to {whom} expects 12; compare their split sizes"
    assert all(why in error for error in job.ranks.errors(functions.disagree, receiver))
    job.ranks.run(functions.exchange)


def test_timeout_names_missing_ranks(job: Job) -> None:
    job.ranks.run(functions.add_groups, [0, 1, 2, 3], 0.5, "hasty")
    errors = job.ranks.errors(functions.exchange_unless, 2, "hasty")
    why = "timed out after 0.5 s: rank 2 has not called it"
    assert [why in error for error in errors] == [True, True, False, True]
    assert why in job.ranks.errors(functions.exchange_unless, 0, "hasty")[2]
    job.ranks.run(functions.exchange)  # other groups go on


def test_job_starts_again_in_the_same_processes(job: Job) -> None:
    job.ranks.run(functions.destroy)
    job.ranks.run(functions.init)
    job.ranks.run(functions.compare, 7, 3, DTYPES)
    assert job.loop.exchanges[-1].number == 2


def test_without_an_agent_gloo_does_all(job: Job) -> None:
    with ranks_on(["", ""]) as ranks:
        ranks.run(functions.init)
        exchanges = len(job.loop.exchanges)
        assert sum(ranks.run(functions.compare_without_lists, 1, 6, DTYPES)) > 0
        ranks.run(functions.gradients)
        assert len(job.loop.exchanges) == exchanges


def test_missing_agent_is_named(tmp_path: Path) -> None:
    with ranks_on([str(tmp_path / "nobody"), ""]) as ranks:
        error = error_of_init(ranks)
    assert f"MOEFABRIC_AGENT: no agent answers at {tmp_path / 'nobody'}" in error
    assert "moefabric torchrun" in error


def error_of_init(ranks: Ranks) -> str:
    for process in ranks.processes:
        process.start(functions.init, "moefabric", 2.0)
    return error_of(ranks.processes[0])


def test_losses_end_the_exchanges_of_all_others(job: Job) -> None:
    """A rank that is killed, and then an agent."""
    ranks = job.ranks.processes
    for process in ranks[:3]:
        process.start(functions.exchange, 1000)
    os.kill(ranks[3].process.pid, signal.SIGKILL)
    errors = [error_of(process) for process in ranks[:3]]
    assert all("rank 3 on s1 has ended" in error for error in errors), errors
    assert job.agents.fleet.lost_ranks() == {3: "rank 3 on s1 has ended"}
    job.agents.processes["s1"].kill()
    ranks[2].start(functions.exchange)
    assert "the agent of this server has ended" in error_of(ranks[2])
