"""Invalid input by TL1: the switch goes on, and its cross-connects are as they were."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ocs_fuzz import TL1_COMMANDS, TL1_LOG_IN, mangle, tl1_inputs
from tests.support.ocs_lab import OcsBench, check_unharmed, connected_bench

INVALID = st.one_of(
    st.binary(max_size=100),
    st.builds(mangle, st.randoms(use_true_random=False), st.sampled_from(TL1_COMMANDS)),
    st.builds(
        lambda byte, length: byte * length,
        st.binary(min_size=1, max_size=1),
        st.integers(0, 40_000),
    ),
)


def check_alive(bench: OcsBench) -> None:
    """Assert that the switch is unharmed and serves a new client."""
    check_unharmed(bench)
    client = bench.client("tl1")
    assert b"M  1 COMPLD" in client.send(TL1_LOG_IN)
    assert b'   "1,13"\r\n   "2,14"\r\n;' in client.send(b"RTRV-PATCH:::2:;")


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(INVALID, max_size=6))
def test_invalid_input_changes_nothing_and_breaks_nothing(inputs: list[bytes]) -> None:
    bench = connected_bench("tl1")
    client = bench.client("tl1")
    client.send(TL1_LOG_IN)
    for data in inputs:
        client.send(data)
    client.session.end()
    check_alive(bench)


def test_thousands_of_invalid_inputs_change_nothing() -> None:
    bench = connected_bench("tl1")
    client = bench.client("tl1")
    for data in tl1_inputs(seed=1, number=5000):
        client.send(data)
        bench.timers.advance_ns(1_000_000)
    check_alive(bench)
