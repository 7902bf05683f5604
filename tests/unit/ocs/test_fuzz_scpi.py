"""Invalid input by SCPI: the switch goes on, and its cross-connects are as they were."""

from hypothesis import given, settings
from hypothesis import strategies as st

from moefabric.emulator.ocs.scpi.status import QUEUE_LENGTH
from tests.support.ocs_fuzz import scpi_inputs, scpi_strategy
from tests.support.ocs_lab import OcsBench, check_unharmed, connected_bench


def check_alive(bench: OcsBench) -> None:
    """Assert that the switch is unharmed and serves a new client."""
    check_unharmed(bench)
    client = bench.client("scpi")
    errors = client.send(b":syst:err:coun?\n")
    assert 0 <= int(errors) <= QUEUE_LENGTH
    assert client.send(b":oxc:swit:size?\n") == b"12,12\n"


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(scpi_strategy(), max_size=6))
def test_invalid_input_changes_nothing_and_breaks_nothing(inputs: list[bytes]) -> None:
    bench = connected_bench("scpi")
    client = bench.client("scpi")
    for data in inputs:
        client.session.receive(data)
    client.session.end()
    check_alive(bench)


def test_thousands_of_invalid_inputs_change_nothing() -> None:
    bench = connected_bench("scpi")
    client = bench.client("scpi")
    for data in scpi_inputs(seed=1, number=5000):
        client.session.receive(data)
        bench.timers.advance_ns(1_000)
        client.connection.take()
    check_alive(bench)
