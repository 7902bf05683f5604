"""Bring a fabric up, find it by its name and remove all of it; repeated calls change nothing."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from moefabric.config.plugins import OCS_DIALECTS, ocs_dialects, plugin_reference
from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import daemon_start, management_uplink, process_logs, run_directories
from moefabric.emulator.fabric.daemon_protocol import SilentFabricError, UpRequest, request
from moefabric.emulator.fabric.datapath import DatapathKind, choose_datapath
from moefabric.emulator.fabric.links import QueueCounts
from moefabric.emulator.fabric.other_machines import write_machines
from moefabric.emulator.fabric.placed_plan import processes_on
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.emulator.fabric.plugged_hosts import has_moved_devices
from moefabric.emulator.fabric.removal import clear, remove, remove_lost_containers, sole_start
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.emulator.fabric.server_containers import pull_images
from moefabric.emulator.linux.backlog import enlarge_backlog
from moefabric.emulator.linux.processes import ProcessSpec
from moefabric.runtime.cpu_monitor import usable_cores
from moefabric.runtime.run_directory import (
    FabricWiring,
    ManagementNetwork,
    RunDirectory,
    ServerInterfaces,
    own_version,
)

running_fabrics = run_directories.running_fabrics
ProcessList = Callable[[FabricWiring, RunDirectory], Sequence[ProcessSpec]]
"""Function that returns the processes of a fabric."""
_PROGRAMS: Final = {"ip": "iproute2", "nsenter": "util-linux", "mnexec": "mininet"}
_OVS_PROGRAMS: Final = dict.fromkeys(("ovsdb-server", "ovs-vswitchd"), "openvswitch-switch")
MOST_OWN_PROCESSES: Final = 8
"""Regions up to which each has a process of its own for its controller, and one for its OCS."""
_REGION_PROCESSES: Final = "MOEFABRIC_REGION_PROCESSES"
_MAX_PATH_LETTERS: Final = 80
"""unix(7) allows 107 bytes for a socket's path; the longest file name needs the rest."""


def wanted(fabric: Fabric, switch: str = "auto") -> FabricWiring:
    """Return the wiring of a fabric for `up`; callers add containers, real hosts and others.

    Args:
        switch: datapath of the electrical switches: auto, bpf or ovs (`datapath.choose_datapath`).
    """
    return FabricWiring(fabric, ManagementNetwork.example_for(fabric), switch)


def up(
    hardware: Fabric | FabricWiring,
    processes: ProcessList,
    timeout_s: float = 30.0,
    *,
    external: frozenset[str] = frozenset(),
    on_stage: Callable[[str], None] = lambda _stage: None,
    owner: int | None = None,
) -> FabricWiring:
    """Start a fabric, or find it running with the same specification.

    After a failure or an interruption nothing of the fabric is left but the logs of a failure
    (`process_logs`). Remains of dead fabrics are removed.

    Args:
        hardware: a fabric of which this machine emulates all, or a wiring (`wanted`).
        processes: the processes of the fabric.
        timeout_s: limit until the fabric is ready.
        external: the roles, `ocs` and `controller`, whose processes are started by others; `up`
            only waits for them.
        on_stage: called at the start of each stage.
        owner: pid of the process with whose end a new fabric ends; default: it stays until `down`.

    Returns:
        The wiring of the running fabric.

    Raises:
        FabricError: if the fabric can't be made, or another one has its name.
        UnsupportedError: if the machine or the user lacks something; names the remedy.
    """
    wiring = wanted(hardware) if isinstance(hardware, Fabric) else hardware
    fabric, run_dir = wiring.fabric, named_run_directory(wiring.fabric.name)
    _check_prerequisites(fabric, run_dir)
    if wiring.placement is not None and (wiring.containers or wiring.hosts):
        raise UnsupportedError(
            f"{fabric.name}: containers and real hosts need a fabric on one machine"
        )
    remove_remains(except_of=fabric.name)
    with run_directories.lock(run_dir):
        if running := _read_working(run_dir):
            same_switch = wiring.switch in {"auto", running.switch.split("-")[0]}
            if same_switch and _specification(running) == _specification(wiring):
                return running
            raise FabricError(
                f"{fabric.name}: a fabric of this name runs with another spec; "
                f"`moefabric down {fabric.name}` first"
            )
        with sole_start(run_dir):
            pull_images(wiring.containers, on_stage)
            request = UpRequest(wiring, timeout_s, owner, external=external)
            wiring = _make(run_dir, request, processes, on_stage)
        process_logs.forget(fabric.name)
        return wiring


def region_processes(regions: int) -> int:
    """Return how many processes the controllers of so many regions share, and their OCSes.

    MOEFABRIC_REGION_PROCESSES sets another number. 0 means that each region has processes of its
    own, so that the failure of a process is that of one region.

    Raises:
        UnsupportedError: if the variable is no number.
    """
    chosen = os.environ.get(_REGION_PROCESSES, "")
    if chosen and not chosen.isdecimal():
        raise UnsupportedError(f"{_REGION_PROCESSES} is a number of processes, not {chosen!r}")
    if chosen:
        return int(chosen)
    return usable_cores() if regions > MOST_OWN_PROCESSES else 0


def _specification(wiring: FabricWiring) -> tuple[object, ...]:
    """Return a wiring as the user specified it, without the kind of switch."""
    carriers = wiring.containers, wiring.hosts, wiring.placement
    control = wiring.controller, wiring.control_tls
    return wiring.fabric, control, wiring.shared_agents, carriers


def _make(
    run_dir: RunDirectory,
    request: UpRequest,
    processes: ProcessList,
    on_stage: Callable[[str], None],
) -> FabricWiring:
    """Make the fabric of a request, which still lacks what is known on this machine."""
    fabric, placement = request.wiring.fabric, request.wiring.placement
    identity = run_directories.prepare(run_dir)
    prefix = ManagementNetwork.prefix_for(fabric)
    management, outer = management_uplink.claim_subnet(fabric.name, prefix)
    if placement is not None:
        write_machines(run_dir, fabric, placement)
    with daemon_start.started_daemon(run_dir, fabric.password_variables) as daemon:
        # The modules of the fabric process load during the following lines.
        datapath, reason = _usable_datapath(request.wiring.switch)
        wiring = replace(
            request.wiring,
            management=management,
            switch=datapath.value,
            switch_why=reason,
            identity=identity,
            version=own_version(),
            placement=placement and placement.without_secrets(),
            region_processes=region_processes(len(fabric.regions)),
        )
        machine = placement.head.name if placement else ""
        request = replace(request, wiring=wiring, outer=outer, machine=machine)
        request = _complete(run_dir, request, processes)
        report = daemon_start.wait_ready(run_dir, daemon, request, on_stage)
    interfaces = {s: ServerInterfaces(**names) for s, names in report["interfaces"].items()}
    remarks = tuple(report["remarks"])
    wiring = replace(wiring, remarks=remarks, interfaces=interfaces)
    run_dir.wiring_file.write_text(wiring.to_json())
    return wiring


def _complete(run_dir: RunDirectory, request: UpRequest, processes: ProcessList) -> UpRequest:
    """Write the wiring file; return a request with the processes and ports of this machine."""
    wiring = request.wiring
    run_dir.wiring_file.write_text(wiring.to_json())
    specs = processes_on(processes(wiring, run_dir), wiring, request.machine)
    dialects = {
        name: (plugin_reference(OCS_DIALECTS, name), dialect.port)
        for name, dialect in ocs_dialects().items()
    }
    return replace(request, processes=specs, dialects=dialects)


def up_part(request: UpRequest, processes: ProcessList, token: str) -> dict[str, Any]:
    """Start a machine's part of a fabric. After a failure only its logs are left.

    Args:
        request: what the head asks for, with its wiring of the whole fabric.
        processes: the processes of the whole fabric, with the paths of this machine.
        token: the fabric's token.

    Returns:
        The report of the fabric process: `crossbar` and `remarks`.

    Raises:
        FabricError: if the part can't be made, or a fabric of its name runs here.
        UnsupportedError: if the machine or the user lacks something; names the remedy.
    """
    fabric, name = request.wiring.fabric, request.wiring.fabric.name
    run_dir = named_run_directory(name)
    _check_prerequisites(fabric, run_dir)
    _usable_datapath(request.wiring.switch.partition("-")[0])
    with run_directories.lock(run_dir):
        if run_dir.is_alive():
            raise FabricError(f"{name}: a fabric of this name runs here; `moefabric down {name}`")
        with sole_start(run_dir):
            run_directories.prepare(run_dir, token)
            request = _complete(run_dir, request, processes)
            with daemon_start.started_daemon(run_dir, fabric.password_variables) as daemon:
                return daemon_start.wait_ready(run_dir, daemon, request, lambda _stage: None)


def _check_prerequisites(fabric: Fabric, run_dir: RunDirectory) -> None:
    """Check that a fabric is possible here, before anything is made; make room in the kernel.

    Args:
        run_dir: the fabric's run directory.

    Raises:
        FabricError: if its names, rates or paths are impossible.
        UnsupportedError: if root or a program is missing.
    """
    require_root()
    _require_programs(_PROGRAMS, "a fabric")
    if len(str(run_dir.path)) > _MAX_PATH_LETTERS:
        raise FabricError(
            f"{run_dir.path}: too long for the sockets in it; "
            "set MOEFABRIC_RUN_DIR to a shorter one"
        )
    plan_fabric(fabric, ManagementNetwork.example_for(fabric))
    enlarge_backlog(sum(len(fabric.nics(server)) for server in fabric.servers))


def require_root() -> None:
    """Raise UnsupportedError unless the caller is root."""
    if os.geteuid() != 0:
        raise UnsupportedError(
            "a fabric needs root: network namespaces and shaping "
            "(CAP_NET_ADMIN, CAP_SYS_ADMIN); run with sudo"
        )


def _require_programs(programs: Mapping[str, str], user: str) -> None:
    """Raise UnsupportedError unless all programs are installed; the values are their packages."""
    if missing := [
        f"{name} (apt install {package})"
        for name, package in programs.items()
        if shutil.which(name) is None
    ]:
        raise UnsupportedError(f"{user} needs {', '.join(missing)}; see `moefabric doctor`")


def _usable_datapath(switch: str) -> tuple[DatapathKind, str]:
    """Return the datapath that `switch` means here, and why the kernel has no better one.

    Raises:
        UnsupportedError: if its programs are missing.
    """
    datapath, reason = choose_datapath(switch)
    if datapath is not DatapathKind.BPF:
        _require_programs(_OVS_PROGRAMS, f"{datapath} ({reason})" if reason else "`switch: ovs`")
    return datapath, reason or ""


def down(name: str, *, force: bool = False) -> bool:
    """Remove a fabric or the remains of a crashed one; return whether there was anything.

    Args:
        name: the fabric.
        force: kill a fabric process that doesn't answer, or that another version has started.

    Raises:
        SilentFabricError: if the fabric process doesn't answer.
        FabricError: without `force`, if another version of moefabric has made the fabric.
    """
    run_dir = named_run_directory(name)
    process_logs.forget(name)
    if not run_dir.path.exists():
        return clear(run_dir) or remove_lost_containers(name)
    with run_directories.lock(run_dir):
        if not force:
            run_dir.check_version()
        remove(run_dir, force=force)
    return True


def discard(name: str) -> Path | None:
    """Remove a fabric that didn't become ready; return the folder in which its logs stay."""
    run_dir = named_run_directory(name)
    with run_directories.lock(run_dir):
        logs = process_logs.keep_logs(run_dir)
        remove(run_dir)
    return logs


def remove_remains(except_of: str = "") -> list[str]:
    """Remove the remains of fabrics whose process was killed; return their names.

    Fabrics with interfaces of this machine are left to `down`, which is called where these belong.

    Args:
        except_of: a fabric that stays.
    """
    removed = []
    for run_dir in run_directories.run_directories():
        if run_dir.name == except_of or has_moved_devices(run_dir):
            continue
        with run_directories.locked_remains(run_dir) as is_dead:
            if is_dead:
                remove(run_dir)
                removed.append(run_dir.name)
    return removed


def _request(name: str, command: str) -> dict[str, Any]:
    return request(named_run_directory(name), {"do": command})


def _read_working(run_dir: RunDirectory) -> FabricWiring | None:
    """Return the wiring of a fabric that runs without faults; else None.

    Raises:
        SilentFabricError: if a fabric process runs, but doesn't answer.
        FabricError: if another version of moefabric has made the fabric that runs, or its wiring
            can't be read.
    """
    run_dir.check_version()
    try:
        if _request(run_dir.name, "ping")["faults"]:
            return None
    except SilentFabricError:
        raise
    except FabricError:  # none runs
        return None
    try:
        return FabricWiring.from_json(run_dir.wiring_file.read_bytes())
    except (OSError, ValueError) as error:
        raise FabricError(
            f"{run_dir.name} runs, and this moefabric {own_version()} can't read "
            f"{run_dir.wiring_file}: `moefabric down --force {run_dir.name}`"
        ) from error


def own(name: str) -> None:
    """Have a running fabric end with the calling process.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    _request(name, "own")


def disown(name: str) -> None:
    """Keep a fabric until `down` that would have ended with the calling process.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    _request(name, "disown")


def owner(name: str) -> int | None:
    """Return the pid of the process with which a running fabric ends; None if it stays.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    pid: int | None = _request(name, "ping")["owner"]
    return pid


def faults(name: str) -> list[str]:
    """Return what has ended in a running fabric: containers, processes, parts on other machines.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    return list(_request(name, "ping")["faults"])


def inspect(name: str) -> dict[str, Any]:
    """Return the hardware of a running fabric for `inspect --json`.

    `circuits` is empty, because only the controllers know the circuits.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    return _request(name, "inspect")


def queues(name: str) -> QueueCounts:
    """Return the counters of all queues of a running fabric, by port.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    return _request(name, "queues")


def link_lateness(name: str) -> dict[str, int]:
    """Return how late programmed links have been since the last call.

    Returns:
        `frames`, `p50_ns`, `p99_ns`, `max_ns`, and `overflows`: frames that the relay hasn't read
        in time. Empty for a fabric without such links.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    return _request(name, "links")


def deviations(name: str) -> list[str]:
    """Return where a running fabric differs from its plan: rates of links, and processes.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    return list(_request(name, "verify")["faults"])
