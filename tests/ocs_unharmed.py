"""A switch with two cross-connects, which nothing that comes in by a language may change."""

from emulator.ocs.frontend import Language
from tests.ocs_lab import Bench

JOINED = [(1, 13), (2, 14)]


def joined(name: str, language: Language) -> Bench:
    """A switch of 12 x 12 that speaks this language alone, its light settled."""
    bench = Bench(12, languages={name: language})
    bench.store.add(JOINED)
    bench.timers.pass_ns(1_000_000_000)
    return bench


def unharmed(bench: Bench) -> None:
    """Its cross-connects and its light are as they were, once all that was asked for has had its time."""
    bench.timers.pass_ns(30_000_000_000)
    assert list(bench.store.connects) == JOINED
    assert {p: light.out_port for p, light in bench.crossbar.show().items()} == dict(JOINED)
