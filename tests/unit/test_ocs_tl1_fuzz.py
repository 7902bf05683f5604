"""Whatever comes in by TL1: the switch goes on, and its cross-connects are as they were."""

from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.ocs.tl1.front_end import Tl1
from tests.ocs_lab import Bench
from tests.ocs_unharmed import joined, unharmed
from tests.ocs_wrong_words import TL1_LOG_IN, TL1_WORDS, mangled, tl1_inputs

wrong = st.one_of(
    st.binary(max_size=100),
    st.builds(mangled, st.randoms(use_true_random=False), st.sampled_from(TL1_WORDS)),
    st.builds(lambda byte, length: byte * length, st.binary(min_size=1, max_size=1), st.integers(0, 40_000)),
)


def goes_on(bench: Bench) -> None:
    unharmed(bench)
    client = bench.client("tl1")
    assert b"M  1 COMPLD" in client.told(TL1_LOG_IN)
    assert b'   "1,13"\r\n   "2,14"\r\n;' in client.told(b"RTRV-PATCH:::2:;")


@settings(max_examples=200)
@given(st.lists(wrong, max_size=6))
def test_what_is_no_command_changes_nothing_and_breaks_nothing(said: list[bytes]) -> None:
    bench = joined("tl1", Tl1)
    client = bench.client("tl1")
    client.told(TL1_LOG_IN)
    for data in said:
        client.told(data)
    client.session.gone()
    goes_on(bench)


def test_neither_do_thousands_of_them_from_one_client() -> None:
    bench = joined("tl1", Tl1)
    client = bench.client("tl1")
    for data in tl1_inputs(seed=1, number=5000):
        client.told(data)
        bench.timers.pass_ns(1_000_000)
    goes_on(bench)
