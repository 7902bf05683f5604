"""Requests to the process of a fabric, without the hardware that they would change."""

import signal
from contextlib import suppress

from moefabric.core.eps import Eps
from moefabric.core.errors import FabricError
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.daemon import parse_request
from moefabric.emulator.fabric.hardware_failures import HardwareFailures
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.runtime.run_directory import ManagementNetwork
from tests.support.fuzzing import FuzzTarget

_REGION = Region("r0", 0, ("s0", "s1"), Ocs("ocs0", ports=2))
_FABRIC = Fabric("fuzz", (_REGION,), 2, 1, 1, 50e6, Eps(servers_per_leaf=4))
_PLAN = plan_fabric(_FABRIC, ManagementNetwork("198.18.0.0/24"))


class _Failures(HardwareFailures):
    """Failures that are noted, but change no interface."""

    def _apply(self) -> None:
        pass


def _ignore(_server: str, _number: signal.Signals) -> None:
    """Signal no agent."""


def read_request(data: bytes) -> None:
    """Read the input as a line of a client, and inject or clear the faults that it names."""
    with suppress(ValueError):
        request = parse_request(data.decode())
        if request["do"] == "fault":
            with suppress(FabricError):
                _Failures(_PLAN, _ignore).handle(request)


TARGETS = (FuzzTarget("daemon-request", read_request),)
