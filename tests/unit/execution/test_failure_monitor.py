"""Long polls of the controllers for servers that are cut off."""

import threading
from queue import Queue
from typing import Any

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.execution.failure_monitor import FailureWatch, cut_off_servers

S3 = {"what": "s3", "kind": "server", "cleared_ns": None}


def reply(version: int, *failures: dict[str, Any]) -> dict[str, Any]:
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
def test_server_is_cut_off_while_none_of_its_nics_works(
    failures: list[dict[str, Any]], servers: set[str]
) -> None:
    assert cut_off_servers(reply(1, *failures)) == servers


class ScriptedReporter:
    """A controller whose replies, or errors, a test gives one by one.

    `versions` are those that its calls wait for.
    """

    def __init__(self) -> None:
        self.answers: Queue[dict[str, Any] | ControlError] = Queue()
        self.versions: list[int | None] = []
        self.waiting = threading.Semaphore(0)

    def failures(self, after: int | None = None, wait_s: float = 30.0) -> dict[str, Any]:
        self.versions.append(after)
        self.waiting.release()
        answer = self.answers.get(timeout=10)
        if isinstance(answer, ControlError):
            raise answer
        return answer

    def hang_up(self) -> None:
        self.answers.put(ControlError("hung up"))

    def answer(self, answer: dict[str, Any] | ControlError) -> None:
        """Give a reply, and return when the next call waits."""
        self.waiting.acquire(timeout=10)
        self.answers.put(answer)
        self.waiting.acquire(timeout=10)
        self.waiting.release()


@pytest.fixture
def controller() -> ScriptedReporter:
    return ScriptedReporter()


def test_failure_watch_polls_for_later_versions(controller: ScriptedReporter) -> None:
    with FailureWatch({"r0": controller}) as lookout:
        controller.answer(reply(7, S3))
        assert lookout.unreachable("s3")
        assert not lookout.unreachable("s2")
        controller.answer(reply(8, S3 | {"cleared_ns": 1}))
        assert not lookout.unreachable("s3")
    assert controller.versions[:3] == [None, 7, 8]


def test_last_reply_holds_while_a_controller_is_away(controller: ScriptedReporter) -> None:
    with FailureWatch({"r0": controller}) as lookout:
        controller.answer(reply(7, S3))
        controller.answer(ControlError("gone"))
        assert lookout.unreachable("s3")
        controller.answer(reply(1))
        assert not lookout.unreachable("s3")
    assert controller.versions[:4] == [None, 7, None, 1]


def test_circuits_are_reported_before_servers_are_cut_off(controller: ScriptedReporter) -> None:
    woken = list[bool]()
    watch = FailureWatch({"r0": controller}, lambda: woken.append(watch.unreachable("s3")))
    with watch:
        controller.answer(reply(7) | {"circuits": ["s0/o0~s3/o0", "s1/o0~s2/o0"]})
        controller.answer(reply(8, S3) | {"circuits": ["s1/o0~s2/o0"]})
        controller.answer(reply(9, S3) | {"circuits": None})
    assert woken == [False, False], "a controller that starts reports none"
    assert watch.take_circuits() == {"r0": CircuitSet.of(["s1/o0~s2/o0"])}
    assert watch.take_circuits() == {}
