"""Delivery of NIC events: when it is put off in a dilated run."""

import pytest

from moefabric.controller.recovery.failure_events import NicEventDispatcher
from moefabric.controller.recovery.failure_state import NicEvent
from moefabric.controller.southbound.openflow import green
from moefabric.core.errors import ControlError

LONG_AGO_NS = 0
DILATION = 100.0
"""Puts work on rules off by half a second."""


@pytest.mark.parametrize("starting", [True, False])
def test_events_are_put_off_unless_the_controller_starts(starting: bool) -> None:
    """A controller that adopted circuits first would probe those of NICs that are out."""
    came, delivered = green.GreenEvent(), list[NicEvent]()

    def handle(some: list[NicEvent]) -> bool:
        delivered.extend(some)
        came.set()
        return False

    events = NicEventDispatcher(
        None, DILATION, lambda: starting, handle, lambda: False, lambda: None, lambda: LONG_AGO_NS
    )
    events.port_changed("s0", "s0/o0", False)
    assert came.wait(0.1) is starting
    assert came.wait(10)
    assert [str(event.nic) for event in delivered] == ["s0/o0"]


def test_circuits_are_lit_again_after_each_failure_and_after_a_device_that_failed() -> None:
    lit, faults = [green.GreenEvent(), green.GreenEvent()], [ControlError("no answer")]
    waiting = iter(lit)

    def relight() -> None:
        if faults:
            raise faults.pop()
        next(waiting).set()

    events = NicEventDispatcher(
        None, 1.0, lambda: False, lambda _: True, lambda: True, relight, lambda: LONG_AGO_NS
    )
    for again in lit:
        events.port_changed("s0", "s0/o0", False)
        assert again.wait(10)
