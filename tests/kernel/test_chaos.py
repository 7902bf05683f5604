"""A few random faults: `make chaos` has hundreds."""

from random import Random

import pytest

from tests.chaos.rounds import Chaos
from tests.kernel.fabric_lab import isolated_machine

pytestmark = [pytest.mark.ovs, pytest.mark.nightly]
FAULTS = 12


def test_random_faults_leave_nothing_and_nothing_hangs() -> None:
    with isolated_machine() as machine:
        chaos = Chaos(machine, Random(1))
        faults = 0
        while faults < FAULTS:
            faults += chaos.round()
    assert sum(chaos.counts.values()) >= FAULTS
