"""Replies of region controllers as the runner reads them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from moefabric.config.policies import policy_named
from moefabric.controller.client import ControllerClient
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import flows
from moefabric.core.topology import Fabric
from moefabric.execution.region_controllers import ControllerSplits
from moefabric.planner.horizon import Horizon
from moefabric.planner.plan import plan
from moefabric.simulator.fluid import predict
from moefabric.testbed.testbed import HttpRegionController
from tests.support.fabrics import fabric

FABRIC = fabric(2, 2)
DEMAND = DemandMatrix(
    FABRIC.servers,
    [[0.0, 9e9, 3e9, 1e9], [2e9, 0.0, 7e9, 1e9], [1e9, 1e9, 0.0, 8e9], [5e9, 2e9, 1e9, 0.0]],
)


class PlanningClient(ControllerClient):
    """A controller that plans as the region's one does, and lights all of it but `dark`."""

    def __init__(self, wired: Fabric, dark: str = "") -> None:
        super().__init__(("127.0.0.1", 1), "")
        self.wired, self.unlit = wired, CircuitSet.of(dark.split())

    def demand(
        self,
        matrix: Any,
        policy: str = "mixnet",
        servers: Any = None,
        all_to_alls: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Return the reply to a demand, as JSON carries it."""
        self.all_to_alls = all_to_alls
        region = self.wired.regions[0]
        owed = DemandMatrix(servers or region.servers, matrix)
        planned = plan(self.wired, region, owed, policy_named(policy), CircuitSet())
        lit = CircuitSet(planned.circuits.circuits - self.unlit.circuits)
        reply = {
            "plan": planned.to_json(),
            "circuits_before": [],
            "circuits_after": [str(circuit) for circuit in lit],
            "dark": [str(circuit) for circuit in self.unlit],
            "phases": {},
        }
        return dict(json.loads(json.dumps(reply)))


def test_requests_carry_the_all_to_alls_to_come() -> None:
    client = PlanningClient(FABRIC)
    HttpRegionController(client, "joint").reconfigure(DEMAND, Horizon(2, 14))
    assert client.all_to_alls == {"alike": 2, "left": 14}
    HttpRegionController(client, "joint").reconfigure(DEMAND)
    assert client.all_to_alls is None


@pytest.mark.parametrize("name", ["mixnet", "spill", "joint", "matching"])
def test_controller_and_runner_agree_on_split_and_prediction(name: str) -> None:
    policy = policy_named(name)
    client = PlanningClient(FABRIC)
    change = HttpRegionController(client, name).reconfigure(DEMAND)
    assert change.split == policy.split(FABRIC, DEMAND, change.after)
    planned = flows(FABRIC, change.after, change.split)
    predicted_s = client.demand(DEMAND.array.tolist(), name)["plan"]["predicted_s"]
    assert predict(FABRIC, change.after, planned).seconds == pytest.approx(predicted_s)


def test_split_of_circuits_that_stay_dark_is_not_used() -> None:
    lit = HttpRegionController(PlanningClient(FABRIC), "spill").reconfigure(DEMAND).after
    dark = next(iter(lit))
    change = HttpRegionController(PlanningClient(FABRIC, str(dark)), "spill").reconfigure(DEMAND)
    assert dark not in change.after.circuits
    assert change.split is None
    splits = ControllerSplits(policy_named("spill"))
    splits.remember(DEMAND, change)
    expected = policy_named("spill").split(FABRIC, DEMAND, change.after)
    assert splits.split(FABRIC, DEMAND, change.after) == expected
