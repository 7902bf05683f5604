"""The event simulation shares links max-min fairly; 1F1B orders passes."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.simulator.event_simulation import (
    Step,
    StepTimes,
    simulate,
    simulate_iterations,
    simulate_streams,
)
from moefabric.simulator.fair_sharing import Stream, max_min_rates
from moefabric.workload.iterations.pipeline import (
    BACKWARD,
    FORWARD,
    StagePass,
    one_forward_one_backward,
)

depths = st.integers(1, 8).flatmap(
    lambda stages: st.tuples(st.just(stages), st.integers(0, stages - 1))
)


def words(order: tuple[StagePass, ...]) -> str:
    return " ".join(f"{one.direction[0]}{one.micro_batch}" for one in order)


@pytest.mark.parametrize(
    ("stages", "stage", "expected"),
    [
        pytest.param(1, 0, "f0 b0 f1 b1 f2 b2 f3 b3", id="no-pipeline"),
        pytest.param(2, 0, "f0 f1 b0 f2 b1 f3 b2 b3", id="first-of-two"),
        pytest.param(2, 1, "f0 b0 f1 b1 f2 b2 f3 b3", id="last-of-two"),
        pytest.param(4, 0, "f0 f1 f2 f3 b0 b1 b2 b3", id="first-of-four"),
        pytest.param(6, 0, "f0 f1 f2 f3 b0 b1 b2 b3", id="more-stages-than-micro-batches"),
        pytest.param(4, 2, "f0 f1 b0 f2 b1 f3 b2 b3", id="third-of-four"),
    ],
)
def test_one_forward_one_backward_order(stages: int, stage: int, expected: str) -> None:
    assert words(one_forward_one_backward(stages, stage, 4)) == expected


@given(depths, st.integers(1, 12))
def test_each_micro_batch_passes_forward_then_backward_once(
    where: tuple[int, int], micro_batches: int
) -> None:
    stages, stage = where
    order = one_forward_one_backward(stages, stage, micro_batches)
    assert len(order) == len(set(order)) == 2 * micro_batches
    for number in range(micro_batches):
        assert order.index(StagePass(FORWARD, number)) < order.index(StagePass(BACKWARD, number))


@given(depths, st.integers(1, 12))
def test_stage_holds_no_more_micro_batches_than_stages_to_the_end(
    where: tuple[int, int], micro_batches: int
) -> None:
    stages, stage = where
    held = most = 0
    for one in one_forward_one_backward(stages, stage, micro_batches):
        held += 1 if one.direction == FORWARD else -1
        most = max(most, held)
    assert most == min(stages - stage, micro_batches)
    assert held == 0


GIGA = 8e9
"""A link of one gigabyte a second."""
A, B = ("s0/e0", "leaf0"), ("leaf0", "s1/e0")
ROOM = {A: GIGA, B: 2 * GIGA}


def test_steps_start_after_their_predecessors_and_bytes_take_time() -> None:
    steps = [
        Step(seconds=2.0),
        Step(after=(0,), streams=(Stream(3e9, (A, B)),)),
        Step(after=(0, 1), seconds=1.0),
        Step(seconds=0.5, not_before_s=4.0),
    ]
    assert simulate(steps, ROOM) == [
        StepTimes(0, 2),
        StepTimes(2, 5, (5,)),
        StepTimes(5, 6),
        StepTimes(4, 4.5),
    ]


@pytest.mark.parametrize(
    ("streams", "ends"),
    [
        pytest.param([Stream(1e9, (A,)), Stream(1e9, (A,))], [2, 2], id="two-share"),
        pytest.param(
            [Stream(1e9, (A,)), Stream(3e9, (A,))], [2, 4], id="the-second-gets-all-once-alone"
        ),
        pytest.param(
            [Stream(1e9, (A, B)), Stream(3e9, (B,))], [1, 2], id="what-one-can't-use-the-other-has"
        ),
        pytest.param([Stream(1e9, (A,), 0.25 * GIGA), Stream(1e9, (A,))], [4, 4 / 3], id="paced"),
        pytest.param([Stream(1e9, (A,), 0.25 * GIGA)], [4], id="paced-though-alone"),
        pytest.param([Stream(0, (A,))], [0], id="nothing"),
        pytest.param(
            [Stream(3e9, (A,)), Stream(1e9, (A,), after_s=1.0)], [4, 3], id="one-starts-late"
        ),
        pytest.param([Stream(1e9, (A,), after_s=2.0)], [3], id="late-though-alone"),
        pytest.param([Stream(0, (A,), after_s=2.0)], [2], id="nothing-late"),
    ],
)
def test_streams_share_a_link(streams: list[Stream], ends: list[float]) -> None:
    times = simulate([Step(streams=(stream,)) for stream in streams], ROOM)
    assert [step.end_s for step in times] == pytest.approx(ends)


def test_steps_of_a_lane_follow_one_another_in_the_order_in_which_they_could_start() -> None:
    link = ("s0/e0", "leaf0")
    late = Step(not_before_s=0.5, streams=(Stream(1e9, (link,)),), lane="connection")
    early = Step(streams=(Stream(1e9, (link,)),), lane="connection")
    last = Step(streams=(Stream(1e9, (link,)),), lane="connection", after=(1,))
    times = simulate([late, early, last], {link: 8e9})
    assert [(t.start_s, t.end_s) for t in times] == [(1.0, 2.0), (0.0, 1.0), (2.0, 3.0)]
    free = [replace(step, lane=None) for step in (late, early)]
    assert [t.end_s for t in simulate(free, {link: 8e9})] == [2.0, 1.5]


def test_step_ends_with_its_last_stream() -> None:
    streams = Stream(1e9, (A,)), Stream(5e9, (B,)), Stream(1e9, (A,), after_s=0.5)
    [times] = simulate([Step(streams=streams)], ROOM)
    assert times == StepTimes(0, 2.5, (1.5, 2.5, 2.0))


def test_rates_are_recorded_from_each_change_on() -> None:
    streams = Stream(1e9, (A,)), Stream(3e9, (A,)), Stream(0, (A,)), Stream(1e9, (B,))
    [times] = simulate([Step(streams=streams)], ROOM, recorded={A})
    assert times.stream_rates == {0: [(0, GIGA / 2)], 1: [(0, GIGA / 2), (2, GIGA)]}


def test_short_streams_end_at_their_own_instants() -> None:
    gap_s = 5e-10
    streams = Stream(1e6, (A,)), Stream(2e6 + 2e9 * gap_s, (B,))
    first_s, second_s = simulate_streams(streams, ROOM)
    assert second_s - first_s == pytest.approx(gap_s, rel=1e-3)


def test_rates_that_differ_by_rounding_are_one_rate() -> None:
    """The stream over B alone has what A can't carry, while those over both links end."""
    streams = *(Stream(n * 1e9, (A, B)) for n in range(1, 7)), Stream(9e10, (B,))
    [times] = simulate([Step(streams=streams)], {A: 1e9 / 3, B: 2e9}, recorded={B})
    assert [len(times.stream_rates[number]) for number in range(7)] == [1, 2, 3, 4, 5, 6, 1]


@pytest.mark.parametrize(
    "steps", [[Step(after=(0,))], [Step(after=(1,)), Step()], [Step(streams=(Stream(1, ()),))]]
)
def test_simulate_refuses_steps_that_can_never_end(steps: list[Step]) -> None:
    with pytest.raises(ValueError, match="step 0"):
        simulate(steps, ROOM)


@st.composite
def crossings(draw: st.DrawFn) -> tuple[list[list[int]], list[float], list[float]]:
    """Streams over links, a pace of each, room of each link; the last link stands for none."""
    links = draw(st.integers(1, 5))
    crossed = draw(
        st.lists(st.lists(st.integers(0, links), min_size=3, max_size=3), min_size=1, max_size=8)
    )
    crossed = [[hops[0] % links, *hops[1:]] for hops in crossed]
    pace = draw(st.lists(st.floats(0.1, 10), min_size=len(crossed), max_size=len(crossed)))
    return crossed, pace, [*draw(st.lists(st.floats(0.5, 10), min_size=links, max_size=links)), inf]


@given(crossings())
def test_shares_are_max_min_fair(drawn: tuple[list[list[int]], list[float], list[float]]) -> None:
    """Each stream has its greatest rate, or crosses a full link on which no other is faster."""
    crossed, pace, room = drawn
    rates = max_min_rates(np.array(crossed), np.array(pace), np.array(room))
    on = {
        link: [n for n, links in enumerate(crossed) if link in links]
        for link in range(len(room) - 1)
    }
    load = {
        link: sum(rates[n] * crossed[n].count(link) for n in streams)
        for link, streams in on.items()
    }
    assert all(load[link] <= room[link] * (1 + 1e-6) for link in load)
    for number, rate in enumerate(rates):
        full = [k for k in set(crossed[number]) & on.keys() if load[k] >= room[k] * (1 - 1e-6)]
        stopped = any(rate >= max(rates[n] for n in on[k]) * (1 - 1e-6) for k in full)
        assert rate >= pace[number] * (1 - 1e-6) or stopped


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2e9), st.booleans()), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_shared_link_is_never_faster_than_its_rate(
    drawn: list[tuple[float, float, bool]],
    random: "st.random.Random",  # type: ignore[name-defined]
) -> None:
    steps = []
    for number, (seconds, size, waits) in enumerate(drawn):
        after = (random.randrange(number),) if waits and number else ()
        steps.append(Step(after, seconds, (Stream(size, (A,)),)))
    times = simulate(steps, ROOM)
    for step, own in zip(steps, times, strict=True):
        assert own.seconds >= max(step.seconds, step.streams[0].bytes / 1e9) - 1e-6
        assert all(own.start_s >= times[before].end_s for before in step.after)
    assert max(own.end_s for own in times) >= sum(size for _, size, _ in drawn) / 1e9 - 1e-6


def test_iteration_begins_when_all_steps_of_the_one_before_have_ended() -> None:
    iteration = [Step(seconds=3.0), Step(seconds=1.0)]
    other = [[Step(seconds=0.5), Step(after=(0,), seconds=0.5)]] * 2
    first, second = simulate_iterations([[iteration, iteration], other], {})
    assert first == [[StepTimes(0, 3), StepTimes(0, 1)], [StepTimes(3, 6), StepTimes(3, 4)]]
    assert second == [
        [StepTimes(0, 0.5), StepTimes(0.5, 1)],
        [StepTimes(1, 1.5), StepTimes(1.5, 2)],
    ]
