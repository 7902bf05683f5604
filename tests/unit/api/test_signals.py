"""Graceful shutdown of commands."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from moefabric.api.signals import graceful_shutdown

SIGNALS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def default_dispositions() -> Iterator[None]:
    """Use the default dispositions, also if the tests run under nohup, which ignores SIGHUP."""
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_graceful_shutdown_turns_signal_into_interrupt(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), graceful_shutdown():
        signal.raise_signal(number)


def test_graceful_shutdown_restores_dispositions() -> None:
    with graceful_shutdown():
        assert all(signal.getsignal(number) is not signal.SIG_DFL for number in SIGNALS)
    assert all(signal.getsignal(number) is signal.SIG_DFL for number in SIGNALS)


def test_graceful_shutdown_keeps_ignoring_hangup_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with graceful_shutdown():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_graceful_shutdown_leaves_handlers_of_the_program() -> None:
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    with graceful_shutdown():
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_graceful_shutdown_changes_nothing_in_other_threads() -> None:
    def inside() -> list[object]:
        with graceful_shutdown():
            return [signal.getsignal(number) for number in SIGNALS]

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(inside).result() == [signal.SIG_DFL, signal.SIG_DFL]
