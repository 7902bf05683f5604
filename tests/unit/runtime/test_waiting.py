"""Deadlines and background tasks."""

import threading

import pytest

from moefabric.core.errors import FabricError
from moefabric.runtime.waiting import BackgroundTask, Deadline


def test_deadline_waits_for_condition_or_raises() -> None:
    event = threading.Event()
    threading.Timer(0.05, event.set).start()
    Deadline.after(5).wait_for(event.is_set, "thing")
    with pytest.raises(FabricError, match="other thing was not ready in time"):
        Deadline.after(0.05).wait_for(lambda: False, "other thing")


def test_background_task_returns_result_or_raises_its_error_or_times_out() -> None:
    event = threading.Event()
    task = BackgroundTask("painting", lambda: event.wait(10))
    with pytest.raises(FabricError, match="painting was not ready in time"):
        task.result(Deadline.after(0.05))
    event.set()
    assert task.result(Deadline.after(5))

    def fail() -> None:
        raise FabricError("no paint")

    with pytest.raises(FabricError, match="no paint"):
        BackgroundTask("painting", fail).result(Deadline.after(5))
