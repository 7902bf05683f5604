"""Controllers that misbehave in the way that the variable MOEFABRIC_TEST_SABOTAGE names.

They are started in the place of a fabric's controllers: `python -m tests.sabotage.bad_controller`.
"""

import os
import sys
import time
from dataclasses import replace
from typing import Any

from moefabric.controller.__main__ import main
from moefabric.controller.service import controller
from moefabric.core.circuits import CircuitSet
from moefabric.planner.plan import Plan
from moefabric.planner.plan import plan as honest_plan

VARIABLE = "MOEFABRIC_TEST_SABOTAGE"
SLOW_S = 0.5
"""About twenty times as long as an honest request takes."""


def keep_circuits(*arguments: Any) -> Plan:
    """Keep the circuits that are lit, whatever the demand, once there are any."""
    chosen, lit = honest_plan(*arguments), arguments[4]
    assert isinstance(lit, CircuitSet)
    return replace(chosen, circuits=lit) if lit.circuits else chosen


def slow_down(*arguments: Any) -> Plan:
    """Plan as any controller does, but slowly."""
    time.sleep(SLOW_S)
    return honest_plan(*arguments)


BEHAVIOURS = {function.__name__: function for function in (keep_circuits, slow_down)}

if __name__ == "__main__":
    controller.plan = BEHAVIOURS[os.environ[VARIABLE]]  # type: ignore[assignment, attr-defined]
    sys.exit(main(sys.argv[1:]))
