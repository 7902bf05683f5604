"""Commands that are told to end."""

import signal
from collections.abc import Iterator

import pytest

from moefabric.commands.ending import ended_in_order

BOTH = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in BOTH}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", BOTH, ids=lambda it: it.name)
def test_a_signal_to_end_is_an_interruption(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), ended_in_order():
        signal.raise_signal(number)


def test_what_a_signal_did_before_it_does_again_afterwards() -> None:
    before = [signal.getsignal(number) for number in BOTH]
    with ended_in_order():
        assert [signal.getsignal(number) for number in BOTH] != before
    assert [signal.getsignal(number) for number in BOTH] == before


def test_a_terminal_whose_end_is_to_be_ignored_ends_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_in_order():
        signal.raise_signal(signal.SIGHUP)
