"""Instants on the clocks of agents."""

from moefabric.agents.fleet.clocks import ClockOffset, FleetClocks, clock_offset


def test_instants_are_converted_by_the_last_measured_offset() -> None:
    clocks = FleetClocks([], frozenset())
    clocks.offsets = {"s0": ClockOffset(), "s1": ClockOffset(offset_ns=5, round_trip_ns=8)}
    assert [clocks.their_time(name, 100) for name in ("s0", "s1")] == [100, 105]
    assert [clocks.our_time(name, 100) for name in ("s0", "s1")] == [100, 95]
    assert clocks.our_time("s1", None) == 0
    assert clocks.max_round_trip_ns(["s0", "s1"]) == 8


def test_fastest_exchange_gives_the_offset() -> None:
    offset = clock_offset([(0, 1_050, 100), (200, 1_205, 210)])
    assert (offset, offset.uncertainty_ns) == (ClockOffset(1_000, 10), 5)
