"""A switch of ours with its agent at work, and a controller that it has greeted."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.openflow_bench import Bench, Watched, bench_of
from tests.openflow_lab import Peer


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as undo:
        yield bench_of(Watched(), undo)


@pytest.fixture
def peer(bench: Bench) -> Peer:
    return bench.greeted()
