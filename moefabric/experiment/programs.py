"""The programs of a fabric: what runs where, while it is up."""

import sys
from typing import Final

from emulator.processes import OUTER, Process, Role, nursery
from moefabric.management import RunDir, Wiring

UP_TIMEOUT_S: Final = 60.0


def processes(wiring: Wiring, run_dir: RunDir) -> list[Process]:
    """The programs of a fabric: one that forks a controller for each region and for the EPS, an OCS device a region, an agent a server."""
    fabric = wiring.fabric
    control = (sys.executable, "-m", "controller", "--run-dir", str(run_dir.path))
    made = [Process("controllers", OUTER, control, role=Role.CONTROLLER)]
    device, engine = nursery("emulator.ocs.__main__"), nursery("agents.engine.start", bare=True)
    for region in fabric.regions:
        if region.ocs is not None:
            plant = ("--plant", str(run_dir.plant(region)))
            made.append(Process(region.ocs.name, region.ocs.name, plant, role=Role.OCS, warm=device))
    for server in fabric.servers:
        agent = ("--name", server, "--control", str(run_dir.agent(server)))
        made.append(Process(f"agent-{server}", server, agent, role=Role.AGENT, warm=engine))
    return made
