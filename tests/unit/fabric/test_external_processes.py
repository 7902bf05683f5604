"""Limits of processes that others start for a fabric."""

from types import SimpleNamespace
from typing import Any

import pytest

from moefabric.emulator.fabric.hardware import Hardware
from moefabric.emulator.linux.processes import ProcessRole
from moefabric.runtime.waiting import Deadline


@pytest.mark.parametrize(
    ("external", "limit_s"), [({"ocs"}, 60), (set(), 240), ({"controller"}, 240)]
)
def test_processes_of_others_have_a_minute(external: set[str], limit_s: float) -> None:
    hardware: Any = object.__new__(Hardware)  # without namespaces
    hardware.deadline = Deadline.after(240)
    hardware.request = SimpleNamespace(external=external)
    remaining_s = hardware._deadline_of(ProcessRole.OCS).remaining_s
    assert limit_s - 5 < remaining_s <= limit_s
