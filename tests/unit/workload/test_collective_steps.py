from moefabric.workload.collectives.schedule import Extent
from moefabric.workload.collectives.steps import RankSteps

WHOLE = Extent("output", 0, 8)
FRONT, BACK = Extent("output", 0, 4), Extent("output", 4, 4)


def waits(steps: RankSteps) -> list[tuple[int, ...]]:
    return [step.after for step in steps.steps]


def test_reads_wait_for_the_last_write_of_their_bytes() -> None:
    steps = RankSteps()
    steps.receive(1, FRONT)
    steps.receive(1, BACK)
    steps.send(2, FRONT)
    steps.send(2, WHOLE)
    steps.send(3, Extent("input", 0, 8))
    assert waits(steps) == [(), (), (0,), (0, 1), ()]


def test_writes_wait_for_earlier_reads_and_writes() -> None:
    steps = RankSteps()
    steps.send(1, WHOLE)
    steps.send(2, BACK)
    steps.receive(1, FRONT)
    steps.receive(2, BACK)
    steps.receive(3, FRONT)
    assert waits(steps) == [(), (), (0,), (0, 1), (2,)]


def test_additions_commute_and_wait_for_what_came_before_all_of_them() -> None:
    steps = RankSteps()
    steps.receive(1, WHOLE)
    steps.receive_add(2, WHOLE)
    steps.receive_add(3, FRONT)
    steps.send(4, WHOLE)
    steps.receive_add(5, WHOLE)
    steps.receive(6, BACK)
    assert waits(steps) == [(), (0,), (0,), (1, 2), (1, 2, 3), (4,)]


def test_copies_read_one_range_and_write_the_other() -> None:
    steps = RankSteps()
    steps.receive(1, FRONT)
    steps.send(2, BACK)
    steps.copy(FRONT, BACK)
    steps.send(3, BACK)
    assert waits(steps) == [(), (), (0, 1), (2,)]


def test_empty_ranges_have_no_step_and_hand_on_what_they_wait_for() -> None:
    steps = RankSteps()
    first = steps.send(1, FRONT)
    skipped = steps.receive(1, Extent("output", 4, 0), after=first)
    steps.send(2, BACK, after=skipped)
    assert first == skipped == (0,)
    assert waits(steps) == [(), (0,)]
