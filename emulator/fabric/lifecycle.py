"""Bring a fabric up, find it by its name and remove all of it; repeated calls change nothing."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.core.machines import MachinePlacement
from moefabric.core.server_container import ServerContainer
from moefabric.core.server_host import ServerHost
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import daemon_start, management_uplink, process_logs, run_directories
from moefabric.emulator.fabric.daemon_protocol import (
    DaemonConnection,
    SilentFabricError,
    UpRequest,
    request,
)
from moefabric.emulator.fabric.datapath import DatapathKind, choose_datapath
from moefabric.emulator.fabric.other_machines import write_machines
from moefabric.emulator.fabric.placed_plan import processes_on
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.emulator.fabric.plugged_hosts import has_moved_devices, return_devices
from moefabric.emulator.fabric.queues import QueueCounts
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.emulator.fabric.server_containers import (
    pull_images,
    recorded_containers,
    remove_leftovers,
)
from moefabric.emulator.linux.marked_processes import kill_marked
from moefabric.emulator.linux.processes import ProcessSpec
from moefabric.runtime.control_tls import ControlTls
from moefabric.runtime.run_directory import (
    FabricWiring,
    ManagementNetwork,
    RunDirectory,
    ServerInterfaces,
)

ProcessList = Callable[[FabricWiring, RunDirectory], Sequence[ProcessSpec]]
"""Function that returns the processes of a fabric."""
_STOP_S: Final = 60.0
_PROGRAMS: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "mnexec": "mininet",
}
_OVS_PROGRAMS: Final = dict.fromkeys(("ovsdb-server", "ovs-vswitchd"), "openvswitch-switch")
_MAX_PATH_LETTERS: Final = 80
"""unix(7) allows 107 bytes for a socket's path; the longest file name needs the rest."""


@dataclass(frozen=True)
class ServerCarriers:
    """Containers, real hosts and machines that carry servers; the rest is made on this machine.

    Attributes:
        containers: the servers that are containers.
        hosts: the servers that are real hosts.
        placement: the machines that carry the fabric together; this one is the head. None if this
            is the only one.
    """

    containers: Mapping[str, ServerContainer] = field(default_factory=dict)
    hosts: Mapping[str, ServerHost] = field(default_factory=dict)
    placement: MachinePlacement | None = None


def up(
    fabric: Fabric,
    processes: ProcessList,
    timeout_s: float = 30.0,
    external: frozenset[str] = frozenset(),
    on_stage: Callable[[str], None] = lambda _stage: None,
    switch: str = "auto",
    carriers: ServerCarriers | None = None,
    owner: int | None = None,
    control_tls: ControlTls | None = None,
) -> FabricWiring:
    """Start a fabric, or find it running with the same specification.

    After a failure or an interruption nothing of the fabric is left but the logs of a failure
    (`process_logs`). Remains of dead fabrics are removed.

    Args:
        fabric: what to make.
        processes: the processes of the fabric.
        timeout_s: limit until the fabric is ready.
        external: names of processes that others start; `up` only waits for them.
        on_stage: called at the start of each stage.
        switch: datapath of the electrical switches: auto, bpf or ovs (`datapath.choose_datapath`).
        carriers: what carries the servers; default: this machine makes all of them.
        owner: pid of the process with whose end a new fabric ends; default: it stays until `down`.
        control_tls: certificates of the control connections; None for plain TCP.

    Returns:
        The wiring of the running fabric.

    Raises:
        FabricError: if the fabric can't be made, or another one has its name.
        UnsupportedError: if the machine or the user lacks something; names the remedy.
    """
    run_dir, carriers = named_run_directory(fabric.name), carriers or ServerCarriers()
    _check_prerequisites(fabric, run_dir)
    if carriers.placement is not None and (carriers.containers or carriers.hosts):
        raise UnsupportedError(
            f"{fabric.name}: containers and real hosts need a fabric on one machine"
        )
    remove_remains(except_of=fabric.name)
    wanted = FabricWiring(
        fabric,
        ManagementNetwork.example_for(fabric),
        containers=carriers.containers,
        hosts=carriers.hosts,
        control_tls=control_tls,
        placement=carriers.placement,
    )
    with run_directories.lock(run_dir):
        if running := _read_working(run_dir):
            same_switch = switch in {"auto", running.switch.split("-")[0]}
            if same_switch and _specification(running) == _specification(wanted):
                return running
            raise FabricError(
                f"{fabric.name}: a fabric of this name runs with another spec; "
                f"`moefabric down {fabric.name}` first"
            )
        with sole_start(run_dir):
            pull_images(carriers.containers, on_stage)
            request = UpRequest(wanted, "", (), external, timeout_s, owner)
            wiring = _make(run_dir, request, processes, switch, on_stage)
        process_logs.forget(fabric.name)
        return wiring


def _specification(wiring: FabricWiring) -> tuple[object, ...]:
    """Return what the user has asked for, except the kind of switch."""
    carriers = wiring.containers, wiring.hosts, wiring.placement
    return wiring.fabric, wiring.control_tls, carriers


@contextmanager
def sole_start(run_dir: RunDirectory) -> Iterator[None]:
    """Start a fabric from nothing; after a failure remove all of it but its logs.

    The caller holds the lock of the run directory.
    """
    clear(run_dir.name)
    try:
        yield
    except BaseException as error:
        logs = process_logs.keep_logs(run_dir) if isinstance(error, Exception) else None
        _remove(run_dir)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise FabricError(
                f"{run_dir.path}: {error.strerror}; make room there, or set MOEFABRIC_RUN_DIR"
            ) from error
        if logs is not None and isinstance(error, FabricError):
            raise FabricError(f"{error}; its logs are in {logs}") from error
        raise


def _make(
    run_dir: RunDirectory,
    request: UpRequest,
    processes: ProcessList,
    switch: str,
    on_stage: Callable[[str], None],
) -> FabricWiring:
    """Make the fabric of a request, which still lacks what is known on this machine."""
    fabric, placement = request.wiring.fabric, request.wiring.placement
    run_directories.make_folders(run_dir)
    run_dir.make_token()
    identity = run_dir.make_identity()
    prefix = ManagementNetwork.prefix_for(fabric)
    management, outer = management_uplink.claim_subnet(fabric.name, prefix)
    if placement is not None:
        write_machines(run_dir, fabric, placement)
    with daemon_start.started_daemon(run_dir, fabric.password_variables) as daemon:
        # The modules of the fabric process load during the following lines.
        datapath, reason = _usable_datapath(switch)
        wiring = replace(
            request.wiring,
            management=management,
            switch=datapath.value,
            switch_why=reason,
            identity=identity,
            placement=placement and placement.without_secrets(),
        )
        run_dir.wiring_file.write_text(wiring.to_json())
        machine = placement.head.name if placement else ""
        specs = processes_on(processes(wiring, run_dir), wiring, machine)
        request = replace(request, wiring=wiring, outer=outer, processes=specs, machine=machine)
        report = daemon_start.wait_ready(run_dir, daemon, request, on_stage)
    interfaces = {s: ServerInterfaces(**names) for s, names in report["interfaces"].items()}
    remarks = tuple(report["remarks"])
    wiring = replace(wiring, crossbar=report["crossbar"], remarks=remarks, interfaces=interfaces)
    run_dir.wiring_file.write_text(wiring.to_json())
    return wiring


@dataclass(frozen=True)
class PartRequest:
    """Request of the head for a part of the fabric on another machine.

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


def up_part(request: PartRequest, processes: ProcessList, owner: int) -> dict[str, Any]:
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
    run_dir = named_run_directory(name)
    _check_prerequisites(wiring.fabric, run_dir)
    _usable_datapath(wiring.switch.partition("-")[0])
    with run_directories.lock(run_dir):
        if run_dir.is_alive():
            raise FabricError(f"{name}: a fabric of this name runs here; `moefabric down {name}`")
        with sole_start(run_dir):
            run_directories.make_folders(run_dir)
            run_dir.make_token(request.token)
            run_dir.make_identity()
            run_dir.wiring_file.write_text(wiring.to_json())
            specs = processes_on(processes(wiring, run_dir), wiring, request.machine)
            limits = frozenset[str](), request.timeout_s, owner
            up_request = UpRequest(wiring, "", specs, *limits, request.machine)
            with daemon_start.started_daemon(run_dir, wiring.fabric.password_variables) as daemon:
                return daemon_start.wait_ready(run_dir, daemon, up_request, lambda _stage: None)


def _check_prerequisites(fabric: Fabric, run_dir: RunDirectory) -> None:
    """Check that a fabric is possible here, before anything is made.

    Args:
        fabric: the fabric.
        run_dir: its run directory.

    Raises:
        FabricError: if its names, rates or paths are impossible.
        UnsupportedError: if root or a program is missing.
    """
    if os.geteuid() != 0:
        raise UnsupportedError(
            "a fabric needs root: network namespaces and shaping "
            "(CAP_NET_ADMIN, CAP_SYS_ADMIN); run with sudo"
        )
    _require_programs(_PROGRAMS, "a fabric")
    if len(str(run_dir.path)) > _MAX_PATH_LETTERS:
        raise FabricError(
            f"{run_dir.path}: too long for the sockets in it; "
            "set MOEFABRIC_RUN_DIR to a shorter one"
        )
    plan_fabric(fabric, ManagementNetwork.example_for(fabric))


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
        force: kill a fabric process that doesn't answer.

    Raises:
        SilentFabricError: if the fabric process doesn't answer.
    """
    run_dir = named_run_directory(name)
    process_logs.forget(name)
    if not run_dir.path.exists():
        return clear(name) or _remove_lost_containers(name)
    with run_directories.lock(run_dir):
        _remove(run_dir, force=force)
    return True


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
                _remove(run_dir)
                removed.append(run_dir.name)
    return removed


def remove_unfinished(run_dir: RunDirectory, identity: str) -> None:
    """Remove the remains of an `up` that died before the fabric process had its request.

    Args:
        run_dir: the fabric's run directory.
        identity: the fabric's identity; a fabric of the same name with another one stays.
    """
    with run_directories.lock(run_dir):
        if run_dir.read_identity() in {identity, ""}:
            _remove(run_dir)


def _remove(run_dir: RunDirectory, *, force: bool = True) -> None:
    clear(run_dir.name, force=force)
    run_directories.remove(run_dir)


def _remove_lost_containers(name: str) -> bool:
    """Remove ended containers of a fabric whose run directory is gone, after a restart perhaps."""
    try:
        return remove_leftovers(name, {})
    except UnsupportedError:  # this machine has no containers
        return False


def clear(name: str, *, force: bool = True) -> bool:
    """Remove everything of a fabric except the lock; return whether there was anything.

    Raises:
        SilentFabricError: without `force`, if the fabric process doesn't answer.
        FabricError: if the fabric process lives where this process can't end it.
    """
    run_dir = named_run_directory(name)
    containers = recorded_containers(run_dir)
    stopped = _stop(run_dir, force=force)
    returned = return_devices(run_dir)
    killed = kill_marked(name)
    if run_dir.is_alive():
        raise FabricError(
            f"{name}: its process runs in another container; call `moefabric down {name}` there"
        )
    uplinks = management_uplink.leftovers(name)
    management_uplink.remove(uplinks)
    removed = containers is not None and remove_leftovers(name, containers)
    cleared = run_directories.clear(run_dir)
    return bool(stopped or returned or killed or uplinks or removed or cleared)


def _stop(run_dir: RunDirectory, *, force: bool) -> bool:
    """Stop the fabric process and wait for its end; return False if there is none."""
    try:
        with DaemonConnection(run_dir) as connection:
            connection.send({"do": "stop"})
            connection.wait_end(_STOP_S)
    except SilentFabricError:
        if not force:
            raise
    except OSError:
        return False
    return True


def _request(name: str, command: str) -> dict[str, Any]:
    return request(named_run_directory(name), {"do": command})


def _read_working(run_dir: RunDirectory) -> FabricWiring | None:
    """Return the wiring of a fabric that runs without faults; else None.

    Raises:
        SilentFabricError: if a fabric process runs, but doesn't answer.
    """
    try:
        if _request(run_dir.name, "ping")["faults"]:
            return None
        return FabricWiring.from_json(run_dir.wiring_file.read_bytes())
    except SilentFabricError:
        raise
    except (FabricError, OSError, ValueError):
        return None


def running_fabrics() -> list[str]:
    """Return the names of the fabrics that run, also of those whose process doesn't answer."""
    return [
        run.name
        for run in run_directories.run_directories()
        if run.control_socket.exists() and run.is_alive()
    ]


def fabrics_in_use() -> dict[str, int]:
    """Return the running fabrics that a process (a run) uses, with the pid of the process."""
    holders = {
        name: run_directories.holder_pid(named_run_directory(name)) for name in running_fabrics()
    }
    return {name: pid for name, pid in holders.items() if pid is not None}


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
