"""Whatever comes in by SCPI: the switch goes on, and its cross-connects are as they were."""

from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.ocs.scpi import Scpi
from emulator.ocs.scpi_commands import ERRORS_KEPT
from emulator.ocs.store import Store
from tests.ocs_fuzz import inputs, wrong_inputs
from tests.ocs_lab import Bench, Client

JOINED = [(1, 13), (2, 14)]


def joined() -> tuple[Bench, Scpi]:
    bench = Bench(12, languages={"scpi": Scpi})
    bench.store.add(JOINED)
    bench.timers.pass_all()
    scpi = bench.front_ends["scpi"]
    assert isinstance(scpi, Scpi)
    return bench, scpi


def unharmed(bench: Bench, store: Store) -> None:
    bench.timers.pass_all()
    assert list(store.connects) == JOINED
    assert {p: light.out_port for p, light in bench.crossbar.show().items()} == dict(JOINED)
    client = bench.client("scpi")
    said = client.told(b":syst:err:coun?\n")
    assert 0 <= int(said) <= ERRORS_KEPT
    assert client.told(b":oxc:swit:size?\n") == b"12,12\n"


@settings(max_examples=300)
@given(st.lists(wrong_inputs(), max_size=6))
def test_what_is_no_command_changes_nothing_and_breaks_nothing(said: list[bytes]) -> None:
    bench, scpi = joined()
    client = Client(scpi)
    for data in said:
        client.session.heard(data)
    client.session.gone()
    unharmed(bench, bench.store)


def test_neither_do_thousands_of_them_from_one_client() -> None:
    bench, scpi = joined()
    client = Client(scpi)
    for data in inputs(seed=1, number=5000):
        client.session.heard(data)
        bench.timers.pass_ns(1_000)
        client.wire.taken()
    unharmed(bench, bench.store)
