"""Bring a fabric up, find it by its name and remove all of it; repeated calls change nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from moefabric.config.run_directory import FabricWiring, RunDirectory, ServerInterfaces, run_root
from moefabric.core.errors import FabricError, UnsupportedError
from moefabric.core.server_container import ServerContainer
from moefabric.core.server_host import ServerHost
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import management_uplink, run_directories
from moefabric.emulator.fabric.daemon_protocol import KEEP, DaemonConnection, UpRequest, request
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.emulator.fabric.plugged_hosts import return_devices
from moefabric.emulator.fabric.prerequisites import check_prerequisites, usable_datapath
from moefabric.emulator.fabric.queues import QueueCounts
from moefabric.emulator.fabric.run_directories import named_run_directory
from moefabric.emulator.fabric.server_containers import (
    pull_images,
    recorded_containers,
    remove_leftovers,
)
from moefabric.emulator.linux.processes import (
    OUTER,
    ProcessSpec,
    kill_marked,
    last_line,
    mark_environment,
)

ProcessList = Callable[[FabricWiring, RunDirectory], Sequence[ProcessSpec]]
"""Function that returns the processes of a fabric."""
_STDLIB: Final = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}
"""Mininet 2.3 needs a function of distutils, and setuptools' copy takes 0.2 s to import."""
_STOP_S: Final = 5.0
_SOURCES: Final = str(Path(__file__).absolute().parents[3])


def up(
    fabric: Fabric,
    processes: ProcessList,
    timeout_s: float = 30.0,
    external: frozenset[str] = frozenset(),
    on_stage: Callable[[str], None] = lambda _stage: None,
    switch: str = "auto",
    containers: Mapping[str, ServerContainer] | None = None,
    hosts: Mapping[str, ServerHost] | None = None,
) -> FabricWiring:
    """Start a fabric, or find it running with the same specification.

    After a failure or an interruption nothing of the fabric is left.

    Args:
        fabric: what to make.
        processes: the processes of the fabric.
        timeout_s: limit until the fabric is ready.
        external: names of processes that others start; `up` only waits for them.
        on_stage: called at the start of each stage.
        switch: datapath of the electrical switches: auto, bpf or ovs (`datapath.choose_datapath`).
        containers: the servers that are containers.
        hosts: the servers that are real hosts.

    Returns:
        The wiring of the running fabric.

    Raises:
        FabricError: if the fabric can't be made, or another one has its name.
        UnsupportedError: if the machine or the user lacks something; names the remedy.
    """
    run_dir, wanted = named_run_directory(fabric.name), dict(containers or {})
    real = dict(hosts or {})
    check_prerequisites(fabric, run_dir)
    with run_directories.lock(run_dir):
        if wiring := _read_working(run_dir):
            same_switch = switch in {"auto", wiring.switch.split("-")[0]}
            same_servers = wiring.containers == wanted and wiring.hosts == real
            if wiring.fabric == fabric and same_servers and same_switch:
                return wiring
            raise FabricError(
                f"{fabric.name}: a fabric of this name runs with another spec; "
                f"`moefabric down {fabric.name}` first"
            )
        _clear(fabric.name)
        try:
            pull_images(wanted, on_stage)
            return _make(fabric, processes, timeout_s, external, on_stage, switch, wanted, real)
        except BaseException:
            _clear(fabric.name)
            run_directories.remove(run_dir)
            raise


def _make(
    fabric: Fabric,
    processes: ProcessList,
    timeout_s: float,
    external: frozenset[str],
    on_stage: Callable[[str], None],
    switch: str,
    containers: Mapping[str, ServerContainer],
    hosts: Mapping[str, ServerHost],
) -> FabricWiring:
    run_dir = named_run_directory(fabric.name)
    for folder in (run_dir.log_folder, run_dir.agent_socket("any").parent):
        folder.mkdir(exist_ok=True)
    run_dir.make_token()
    management, outer = management_uplink.claim_subnet(fabric.name)
    nodes = {OUTER: None, **dict.fromkeys(plan_fabric(fabric, management).nodes)}
    with _start_daemon(run_dir) as daemon:  # its modules load during the following lines
        choice = usable_datapath(switch)
        wiring = FabricWiring(
            fabric,
            management,
            switch=choice.datapath.name,
            switch_why=choice.reason or "",
            containers=containers,
            hosts=hosts,
        )
        run_dir.wiring_file.write_text(wiring.to_json())
        specs = tuple(processes(wiring, run_dir))
        if misplaced := [spec.name for spec in specs if spec.node not in nodes]:
            raise FabricError(f"{', '.join(misplaced)}: processes run on {', '.join(nodes)}")
        up_request = UpRequest(wiring, outer, specs, external, timeout_s)
        report = _wait_ready(run_dir, daemon, up_request, on_stage)
    wiring = replace(
        wiring,
        crossbar=report["crossbar"],
        remarks=tuple(report["remarks"]),
        interfaces={s: ServerInterfaces(**i) for s, i in report["interfaces"].items()},
    )
    run_dir.wiring_file.write_text(wiring.to_json())
    return wiring


def _start_daemon(run_dir: RunDirectory) -> "subprocess.Popen[str]":
    """Start the fabric process."""
    search_path = os.pathsep.join(filter(None, (_SOURCES, os.environ.get("PYTHONPATH"))))
    # With PYTHONSAFEPATH `python -m` doesn't import from the caller's folder.
    python = {"PYTHONPATH": search_path, "PYTHONSAFEPATH": "1"}
    with run_dir.log_file("fabric").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "moefabric.emulator.fabric.daemon", str(run_dir.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **_STDLIB, **mark_environment(run_dir.name), **python},
            start_new_session=True,
        )


def _wait_ready(
    run_dir: RunDirectory,
    daemon: "subprocess.Popen[str]",
    up_request: UpRequest,
    on_stage: Callable[[str], None],
) -> dict[str, Any]:
    """Send the request to the fabric process and return its report when the fabric is ready."""
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    with suppress(BrokenPipeError):
        daemon.stdin.write(up_request.to_line())
        daemon.stdin.flush()
    for line in daemon.stdout:
        message = json.loads(line)
        if "failed" in message:
            raise FabricError(message["failed"])
        if "stage" in message:
            on_stage(message["stage"])
        if "ready" in message:
            daemon.stdin.write(KEEP)
            return dict(message)
    raise FabricError(
        f"{run_dir.name}: the fabric process died at its start, "
        f"saying: {last_line(run_dir.log_file('fabric'))}"
    )


def down(name: str) -> bool:
    """Remove a fabric or the remains of a crashed one; return whether there was anything."""
    run_dir = named_run_directory(name)
    if not run_dir.path.exists():
        return _clear(name) or _remove_lost_containers(name)
    with run_directories.lock(run_dir):
        _clear(name)
        run_directories.remove(run_dir)
    return True


def _remove_lost_containers(name: str) -> bool:
    """Remove ended containers of a fabric whose run directory is gone, after a restart perhaps."""
    try:
        return remove_leftovers(name, {})
    except UnsupportedError:  # this machine has no containers
        return False


def _clear(name: str) -> bool:
    """Remove everything of a fabric except the lock; return whether there was anything."""
    run_dir = named_run_directory(name)
    containers = recorded_containers(run_dir)
    stopped = _stop(run_dir)
    returned = return_devices(run_dir)
    killed = kill_marked(name)
    uplinks = management_uplink.leftovers(name)
    management_uplink.remove(uplinks)
    removed = containers is not None and remove_leftovers(name, containers)
    cleared = run_directories.clear(run_dir)
    return bool(stopped or returned or killed or uplinks or removed or cleared)


def _stop(run_dir: RunDirectory) -> bool:
    """Stop the fabric process and wait for its end; return False if there is none."""
    try:
        with DaemonConnection(run_dir) as connection:
            connection.send({"do": "stop"})
            connection.wait_end(_STOP_S)
    except OSError:
        return False
    return True


def _request(name: str, command: str) -> dict[str, Any]:
    return request(named_run_directory(name), {"do": command})


def _read_working(run_dir: RunDirectory) -> FabricWiring | None:
    """Return the wiring of a fabric that runs without faults; else None."""
    try:
        if _request(run_dir.name, "ping")["faults"]:
            return None
        return FabricWiring.from_json(run_dir.wiring_file.read_bytes())
    except (FabricError, OSError, ValueError):
        return None


def running_fabrics() -> list[str]:
    """Return the names of the fabrics that run."""
    if not run_root().exists():
        return []
    return sorted(path.name for path in run_root().iterdir() if path.is_dir() and _runs(path.name))


def fabrics_in_use() -> dict[str, int]:
    """Return the running fabrics that a process such as a run uses, with the process's pid."""
    holders = {
        name: run_directories.holder_pid(named_run_directory(name)) for name in running_fabrics()
    }
    return {name: pid for name, pid in holders.items() if pid is not None}


def fabrics_left_by(pid: int) -> list[str]:
    """Return the running fabrics that a process used, and had not removed when it ended."""
    directories = map(named_run_directory, running_fabrics())
    return [run.name for run in directories if run_directories.last_holder_pid(run) == pid]


def _runs(name: str) -> bool:
    try:
        _request(name, "ping")
    except FabricError:
        return False
    return True


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


def deviations(name: str) -> list[str]:
    """Return where a running fabric differs from its plan: rates of links, and processes.

    Raises:
        FabricError: if no fabric of that name runs.
    """
    return list(_request(name, "verify")["faults"])
