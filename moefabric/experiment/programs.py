"""The programs of a fabric: what runs where, while it is up."""

import sys
from importlib.util import find_spec
from typing import Final

from emulator.processes import OUTER, Process, Role
from moefabric.management import RunDir, Wiring

UP_TIMEOUT_S: Final = 60.0


def processes(wiring: Wiring, run_dir: RunDir) -> list[Process]:
    """The programs of a fabric: one that forks a controller for each region and for the EPS, an OCS device a region, an agent a server."""
    fabric, python = wiring.fabric, sys.executable
    control = (python, "-m", "controller", "--run-dir", str(run_dir.path))
    made = [Process("controllers", OUTER, control, role=Role.CONTROLLER)]
    for region in fabric.regions:
        if region.ocs is not None:
            device = (python, "-m", "emulator.ocs", "--plant", str(run_dir.plant(region)))
            made.append(Process(region.ocs.name, region.ocs.name, device, role=Role.OCS))
    found = find_spec("agents.engine.__main__")
    assert found is not None
    assert found.origin is not None
    for server in fabric.servers:
        engine = (python, "-S", "-E", found.origin, "--name", server, "--control", str(run_dir.agent(server)))
        made.append(Process(f"agent-{server}", server, engine, role=Role.AGENT))
    return made
