"""Laws of the flow simulation: bounds, conservation, monotony, linear programs, known figures."""

from collections import defaultdict
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow
from moefabric.core.routes import Link, route
from moefabric.simulator.event_simulation import simulate_streams
from moefabric.simulator.fair_sharing import Floats, Ints, Stream, max_min_rates
from moefabric.simulator.fluid import goodput_bps, predict, route_latency_s
from tests.support.fabrics import fabric

LINKS: tuple[Link, ...] = tuple((f"n{k}", f"n{k + 1}") for k in range(5))
MICROSECOND = 1e-6


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Stream], dict[Link, float]]:
    """Streams with starts and paces of their own, and the rate of each link."""
    rates = {link: draw(st.floats(1, 20)) for link in LINKS}
    streams = draw(
        st.lists(
            st.builds(
                Stream,
                bytes=st.floats(0.5, 50),
                links=st.lists(st.sampled_from(LINKS), min_size=1, max_size=3, unique=True).map(
                    tuple
                ),
                max_rate_bps=st.floats(0.5, 20) | st.just(inf),
                after_s=st.just(0.0) | st.floats(0, 30),
            ),
            min_size=1,
            max_size=8,
        )
    )
    return streams, rates


@given(networks())
def test_no_stream_is_faster_than_its_pace_and_no_link_faster_than_its_rate(
    network: tuple[list[Stream], dict[Link, float]],
) -> None:
    streams, rates = network
    ends = simulate_streams(streams, rates)
    for stream, end in zip(streams, ends, strict=True):
        fastest = min(stream.max_rate_bps, *(rates[link] for link in stream.links))
        assert end >= stream.after_s + 8 * stream.bytes / fastest * (1 - 1e-6)
    for link, rate in rates.items():
        own = [(s, end) for s, end in zip(streams, ends, strict=True) if link in s.links]
        for start in {stream.after_s for stream, _ in own}:
            late = [(stream, end) for stream, end in own if stream.after_s >= start]
            owed = sum(8 * stream.bytes for stream, _ in late)
            assert max(end for _, end in late) >= start + owed / rate * (1 - 1e-6)


@given(networks())
def test_link_without_paces_is_busy_until_all_its_bytes_are_carried(
    network: tuple[list[Stream], dict[Link, float]],
) -> None:
    link = LINKS[0]
    streams = [replace(s, links=(link,), max_rate_bps=inf, after_s=0.0) for s in network[0]]
    rate = network[1][link]
    assert max(simulate_streams(streams, {link: rate})) == pytest.approx(
        sum(8 * stream.bytes for stream in streams) / rate
    )


@given(networks(), st.floats(1, 10))
def test_times_shrink_as_rates_grow(
    network: tuple[list[Stream], dict[Link, float]], factor: float
) -> None:
    """A single greater link may slow some streams down; greater links and paces slow none."""
    streams, rates = network
    faster = [
        replace(s, max_rate_bps=s.max_rate_bps * factor, after_s=s.after_s / factor)
        for s in streams
    ]
    assert simulate_streams(
        faster, {link: rate * factor for link, rate in rates.items()}
    ) == pytest.approx([end / factor for end in simulate_streams(streams, rates)])


@given(networks())
def test_latency_delays_each_stream_by_its_own(
    network: tuple[list[Stream], dict[Link, float]],
) -> None:
    streams, rates = network
    distant = [replace(stream, latency_s=n / 8) for n, stream in enumerate(streams)]
    assert simulate_streams(distant, rates) == pytest.approx(
        [end + n / 8 for n, end in enumerate(simulate_streams(streams, rates))]
    )


def arrays(network: tuple[list[Stream], dict[Link, float]]) -> tuple[Ints, Floats, Floats]:
    streams, rates = network
    links = np.full((len(streams), 3), len(LINKS))
    for number, stream in enumerate(streams):
        links[number, : len(stream.links)] = [LINKS.index(link) for link in stream.links]
    paces = np.array([stream.max_rate_bps for stream in streams])
    return links, paces, np.array([*rates.values(), inf])


def rates_by_linear_programs(links: Ints, paces: Floats, capacity: Floats) -> Floats:
    """Raise the least rate as far as possible; fix the streams that can't rise more."""
    count, fixed = len(paces), dict[int, float]()
    crosses = np.array([[k in row for row in links] for k in range(len(LINKS))], dtype=float)
    for_all = np.hstack([crosses, np.zeros((len(LINKS), 1))])

    def best(objective: Floats, floor: float) -> tuple[float, Floats]:
        free = [n for n in range(count) if n not in fixed]
        above = np.zeros((len(free), count + 1))
        above[range(len(free)), free] = -1
        above[:, -1] = 1
        bounds = [(fixed[n],) * 2 if n in fixed else (0, min(paces[n], 1e3)) for n in range(count)]
        solved = linprog(
            -objective,
            np.vstack([for_all, above]),
            np.concatenate([capacity[:-1], np.zeros(len(free))]),
            bounds=[*bounds, (floor, None)],
        )
        return -solved.fun, solved.x

    while len(fixed) < count:
        level, _ = best(np.eye(count + 1)[count], 0.0)
        level *= 1 - 1e-9
        stuck = {}
        for number in set(range(count)) - fixed.keys():
            most, _ = best(np.eye(count + 1)[number], level)
            if most <= level * (1 + 1e-6):
                stuck[number] = level
        fixed |= stuck
    return np.array([fixed[n] for n in range(count)])


@given(networks())
def test_shares_equal_those_of_linear_programs(
    network: tuple[list[Stream], dict[Link, float]],
) -> None:
    drawn = arrays(network)
    assert max_min_rates(*drawn) == pytest.approx(rates_by_linear_programs(*drawn), rel=1e-4)


def ends_by_brute_force(streams: list[Stream], rates: dict[Link, float]) -> list[float]:
    """Share all links anew whenever a stream starts or ends."""
    links, paces, capacity = arrays((streams, rates))
    left = [8 * stream.bytes for stream in streams]
    ends, now = [0.0] * len(streams), 0.0
    while waiting := [n for n in range(len(streams)) if left[n] > 1e-9]:
        active = [n for n in waiting if streams[n].after_s <= now]
        starts = [streams[n].after_s - now for n in waiting if streams[n].after_s > now]
        shares = max_min_rates(links[active], paces[active], capacity)
        step = min([*starts, *(left[n] / share for n, share in zip(active, shares, strict=True))])
        now += step
        for n, share in zip(active, shares, strict=True):
            left[n], ends[n] = left[n] - share * step, now
    return ends


@given(networks())
def test_ends_equal_those_with_all_links_shared_anew_at_each_event(
    network: tuple[list[Stream], dict[Link, float]],
) -> None:
    streams, rates = network
    assert simulate_streams(streams, rates) == pytest.approx(
        ends_by_brute_force(streams, rates), rel=1e-6
    )


@given(networks(), st.integers(0, len(LINKS) - 1), st.floats(1, 4))
def test_least_share_never_falls_when_a_link_grows(
    network: tuple[list[Stream], dict[Link, float]], number: int, factor: float
) -> None:
    links, paces, capacity = arrays(network)
    greater = capacity.copy()
    greater[number] *= factor
    least = max_min_rates(links, paces, capacity).min()
    assert max_min_rates(links, paces, greater).min() >= least * (1 - 1e-9)


@given(st.lists(st.floats(1e3, 1e9), min_size=12, max_size=12))
def test_flows_at_their_planned_pace_end_when_the_fluid_model_says(sizes: list[float]) -> None:
    wired, none = fabric(0, 1), CircuitSet()
    pairs = [(a, b) for a in wired.servers for b in wired.servers if a != b]
    flows = [Flow(a, b, "e0", size) for (a, b), size in zip(pairs, sizes, strict=True)]
    planned = predict(wired, none, flows)
    streams = [
        Stream(flow.bytes, route(wired, none, flow), rate)
        for flow, rate in zip(flows, planned.rates_bps, strict=True)
    ]
    rates = {link: goodput_bps(wired, link) for link in planned.load}
    assert simulate_streams(streams, rates) == pytest.approx([planned.seconds] * len(streams))


def test_all_to_all_of_four_ends_when_simgrid_says() -> None:
    """SimGrid's CM02 model: all-to-all-v, 60 MB out of one port of 12.5 GB/s, links of 1 us."""
    servers = range(4)
    owed = {(a, b): 20e6 if a == 0 else 5e6 for a in servers for b in servers if a != b}
    latency_s = route_latency_s(2, MICROSECOND)
    streams = [
        Stream(size, ((f"{a}", "eps"), ("eps", f"{b}")), latency_s=latency_s)
        for (a, b), size in owed.items()
    ]
    ends = simulate_streams(streams, defaultdict(lambda: 8 * 12.5e9))
    assert max(ends) == pytest.approx(4.802e-3)


def test_route_latency_adds_a_frame_for_each_node_in_between() -> None:
    assert route_latency_s(2, MICROSECOND) == pytest.approx(2e-6)
    assert route_latency_s(4, MICROSECOND, 9014, 100e9) == pytest.approx(4e-6 + 3 * 721.12e-9)
