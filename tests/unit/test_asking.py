"""Controllers asked in the background, in memory: when their light is expected, and what is done with what they say."""

import pytest

from controller.planner.mixnet import MIXNET
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import ControlError
from moefabric.experiment.asking import OWES, Answer, Asking
from moefabric.experiment.memory import InTime, MemoryLight, VirtualClock
from moefabric.experiment.runs import Moved
from tests.fabrics import fabric

MS = 1_000_000
FABRIC = fabric(1, 1, regions=(2,))
OWED = DemandMatrix(FABRIC.servers, [[0.0, 1e9], [0.0, 0.0]])


class Late:
    """Light that settles in 25 ms, told of so much later; or a controller that says why not."""

    def __init__(self, clock: VirtualClock, late_ns: int, fault: str = "") -> None:
        self.clock, self.late_ns, self.fault = clock, late_ns, fault
        self.light = MemoryLight(FABRIC, MIXNET, clock)

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        moved = self.light.reconfigure(demand)
        self.clock.sleep_until(self.clock.now_ns() + self.late_ns)
        if self.fault:
            raise ControlError(self.fault)
        return moved


class Bench:
    """One region's controller, and what it has said so far."""

    def __init__(self, late_ns: int, fault: str = "") -> None:
        self.clock, own = VirtualClock(), VirtualClock()
        self.asking = Asking(
            FABRIC, {"r0": Late(own, late_ns, fault)}, CircuitSet(), self.clock, InTime(self.clock, own), 0.1,
            self.clock.at, lambda: None,
        )  # fmt: skip
        self.said: list[Answer] = []

    def ask(self) -> None:
        self.asking.ask("r0", OWED, self.said.append)

    def wait(self, until_ms: int) -> None:
        self.clock.sleep_until(until_ms * MS)
        self.asking.answered()

    @property
    def whys(self) -> list[str]:
        return [answer.moved.why for answer in self.said]


def test_light_is_expected_to_take_what_its_optics_need_and_what_controlling_it_took_before() -> None:
    bench = Bench(10 * MS)
    assert bench.asking.expected_s("r0", 6 * MS) == pytest.approx(0.031)
    bench.ask()
    assert bench.asking.expected_s("r0", 6 * MS) is None, "nobody can be asked"
    bench.wait(35)
    assert bench.asking.expected_s("r0", 6 * MS) == pytest.approx(0.041)
    assert bench.asking.expected_s("r1", 6 * MS) is None


def test_an_answer_says_what_is_lit_and_for_how_long_it_was_dark() -> None:
    bench = Bench(10 * MS)
    bench.ask()
    bench.wait(34)
    assert (bench.said, bench.asking.owed) == ([], True)
    bench.wait(35)
    [answer] = bench.said
    assert (answer.start_ns, answer.end_ns, answer.settled_s) == (0, 35 * MS, 0.025)
    assert [str(circuit) for circuit in bench.asking.lit["r0"]] == ["s0/o0~s1/o0"]
    assert [bench.asking.dark_ns("r0") for _ in range(2)] == [25 * MS, 0]


def test_one_that_is_silent_is_waited_for_as_long_as_there_is_patience_and_heard_when_it_speaks() -> None:
    """Patience is 100 ms and twice the 25 that light needs."""
    bench = Bench(300 * MS)
    bench.ask()
    bench.wait(149)
    assert bench.whys == []
    bench.wait(150)
    assert bench.whys == ["its controller didn't answer within 0.1 s"]
    bench.ask()
    assert bench.whys[1:] == [OWES]
    assert not bench.asking.lit["r0"]
    bench.wait(325)
    assert bench.asking.lit["r0"]
    assert (len(bench.said), bench.asking.owed, bench.asking.dark_ns("r0")) == (2, False, 0)


def test_one_that_refuses_leaves_its_region_without_light() -> None:
    bench = Bench(0, "connection refused")
    bench.ask()
    bench.wait(25)
    assert bench.whys == ["connection refused"]
    assert not bench.said[0].changed
    assert not bench.asking.lit["r0"]
