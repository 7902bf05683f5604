"""A machine's part of a fabric that several machines carry, other than the head's part."""

from dataclasses import dataclass
from typing import Any

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric import lifecycle, run_directories
from moefabric.emulator.fabric.daemon_protocol import UpRequest
from moefabric.emulator.fabric.daemon_start import started_daemon, wait_ready
from moefabric.emulator.fabric.placed_plan import processes_on
from moefabric.emulator.fabric.prerequisites import check_prerequisites, usable_datapath
from moefabric.runtime.run_directory import FabricWiring


@dataclass(frozen=True)
class PartRequest:
    """Request of the head for a machine's part.

    Attributes:
        wiring: the whole fabric, with its placement.
        machine: name of the machine.
        token: the fabric's token.
        timeout_s: limit until the part is ready.
    """

    wiring: FabricWiring
    machine: str
    token: str
    timeout_s: float


def up_part(request: PartRequest, processes: lifecycle.ProcessList, owner: int) -> dict[str, Any]:
    """Start a machine's part of a fabric. After a failure only its logs are left.

    Args:
        request: what the head asks for.
        processes: the processes of the whole fabric, with the paths of this machine.
        owner: pid of the process with whose end the part ends.

    Returns:
        The report of the fabric process: `crossbar` and `remarks`.

    Raises:
        FabricError: if the part can't be made, or a fabric of its name runs here.
        UnsupportedError: if the machine or the user lacks something; names the remedy.
    """
    wiring, name = request.wiring, request.wiring.fabric.name
    run_dir = run_directories.named_run_directory(name)
    check_prerequisites(wiring.fabric, run_dir)
    usable_datapath(wiring.switch.partition("-")[0])
    with run_directories.lock(run_dir):
        if run_dir.is_alive():
            raise FabricError(f"{name}: a fabric of this name runs here; `moefabric down {name}`")
        with lifecycle.sole_start(run_dir):
            run_directories.make_folders(run_dir)
            run_dir.make_token(request.token)
            run_dir.make_identity()
            run_dir.wiring_file.write_text(wiring.to_json())
            specs = processes_on(processes(wiring, run_dir), wiring, request.machine)
            limits = frozenset[str](), request.timeout_s, owner
            up_request = UpRequest(wiring, "", specs, *limits, request.machine)
            with started_daemon(run_dir, wiring.fabric.password_variables) as daemon:
                return wait_ready(run_dir, daemon, up_request, lambda _stage: None)
