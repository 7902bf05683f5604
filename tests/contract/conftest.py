"""Fixtures: a switch whose agent is running, and a controller that it has greeted."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.openflow_bench import Bench, RecordingDatapath, bench_of
from tests.support.openflow_lab import Peer


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as undo:
        yield bench_of(RecordingDatapath(), undo)


@pytest.fixture
def peer(bench: Bench) -> Peer:
    return bench.greeted()
