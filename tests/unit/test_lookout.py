"""What controllers say of servers that are cut off, heard as soon as they say it."""

import threading
from queue import Queue
from typing import Any

import pytest

from moefabric.errors import ControlError
from moefabric.experiment.lookout import Lookout, cut_off

S3 = {"what": "s3", "kind": "server", "cleared_ns": None}


def said(version: int, *failures: dict[str, Any]) -> dict[str, Any]:
    return {"version": version, "failures": list(failures)}


@pytest.mark.parametrize(
    ("failures", "servers"),
    [
        pytest.param([], set(), id="nothing"),
        pytest.param([S3], {"s3"}, id="all-its-nics"),
        pytest.param([S3 | {"cleared_ns": 5}], set(), id="they-are-back"),
        pytest.param([S3 | {"what": "s3/e0", "kind": "electrical-nic"}], set(), id="one-nic"),
        pytest.param([S3, S3 | {"what": "s1"}], {"s1", "s3"}, id="two"),
    ],
)
def test_a_server_is_cut_off_while_none_of_its_nics_works(
    failures: list[dict[str, Any]], servers: set[str]
) -> None:
    assert cut_off(said(1, *failures)) == servers


class Told:
    """A controller whose answers, or errors, a test gives one by one; `asked` are the versions it was asked after."""

    def __init__(self) -> None:
        self.answers: Queue[dict[str, Any] | ControlError] = Queue()
        self.asked: list[int | None] = []
        self.waiting = threading.Semaphore(0)

    def failures(self, after: int | None = None, wait_s: float = 30.0) -> dict[str, Any]:
        self.asked.append(after)
        self.waiting.release()
        answer = self.answers.get(timeout=10)
        if isinstance(answer, ControlError):
            raise answer
        return answer

    def hang_up(self) -> None:
        self.answers.put(ControlError("hung up"))

    def answer(self, answer: dict[str, Any] | ControlError) -> None:
        """Give it, and return when it has been heard and more is asked for."""
        self.waiting.acquire(timeout=10)
        self.answers.put(answer)
        self.waiting.acquire(timeout=10)
        self.waiting.release()


@pytest.fixture
def controller() -> Told:
    return Told()


def test_it_hears_what_is_new_and_asks_for_more(controller: Told) -> None:
    with Lookout({"r0": lambda: controller}) as lookout:
        controller.answer(said(7, S3))
        assert lookout.unreachable("s3")
        assert not lookout.unreachable("s2")
        controller.answer(said(8, S3 | {"cleared_ns": 1}))
        assert not lookout.unreachable("s3")
    assert controller.asked[:3] == [None, 7, 8]


def test_what_a_controller_said_last_holds_while_it_is_away_and_its_successor_is_asked_for_all(
    controller: Told,
) -> None:
    with Lookout({"r0": lambda: controller}) as lookout:
        controller.answer(said(7, S3))
        controller.answer(ControlError("gone"))
        assert lookout.unreachable("s3")
        controller.answer(said(1))
        assert not lookout.unreachable("s3")
    assert controller.asked[:4] == [None, 7, None, 1]
