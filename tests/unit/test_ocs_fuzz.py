"""Whatever comes in by SCPI: the switch goes on, and its cross-connects are as they were."""

from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.ocs.scpi import Scpi
from emulator.ocs.scpi_status import ERRORS_KEPT
from tests.ocs_fuzz import inputs, wrong_inputs
from tests.ocs_lab import Bench
from tests.ocs_unharmed import joined, unharmed


def goes_on(bench: Bench) -> None:
    unharmed(bench)
    client = bench.client("scpi")
    said = client.told(b":syst:err:coun?\n")
    assert 0 <= int(said) <= ERRORS_KEPT
    assert client.told(b":oxc:swit:size?\n") == b"12,12\n"


@settings(max_examples=300)
@given(st.lists(wrong_inputs(), max_size=6))
def test_what_is_no_command_changes_nothing_and_breaks_nothing(said: list[bytes]) -> None:
    bench = joined("scpi", Scpi)
    client = bench.client("scpi")
    for data in said:
        client.session.heard(data)
    client.session.gone()
    goes_on(bench)


def test_neither_do_thousands_of_them_from_one_client() -> None:
    bench = joined("scpi", Scpi)
    client = bench.client("scpi")
    for data in inputs(seed=1, number=5000):
        client.session.heard(data)
        bench.timers.pass_ns(1_000)
        client.wire.taken()
    goes_on(bench)
