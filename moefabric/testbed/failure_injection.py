"""Failure injection in a running fabric, shared by the command line and runs."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

from moefabric.agents.fleet.channel import connect_local, request_all
from moefabric.core.errors import FabricError, SpecError, some_of
from moefabric.core.failure_kinds import INJECTABLE, FailureKind
from moefabric.core.failures import ControllerFailureMode, Failure, FailurePhase
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric import hardware_injection
from moefabric.emulator.fabric.daemon_protocol import read_wiring
from moefabric.runtime.failure_log import append_failure_event, end_remedy, read_failure_log
from moefabric.runtime.processes import is_stopped
from moefabric.runtime.run_directory import ControlPlane, FabricWiring, RunDirectory, shared_name
from moefabric.runtime.waiting import Deadline
from moefabric.workload.iterations.substitution import Gpu

_REPLY_S: Final = 5.0
_STOP_S: Final = 2.0
"""Time for a process to stop: the kernel stops it when it would run next."""
_STOPPED: Final = "stopped"
KILL, STOP = ControllerFailureMode.KILL, ControllerFailureMode.STOP
_SIGNALS: Final = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP}
LOGGED_KINDS: Final = tuple(kind for kind in INJECTABLE if kind.traits.injection != "fabric")
"""Kinds that agents and controllers know, not the hardware: only the failure log records them."""


def inject(run_dir: RunDirectory, failure: Failure) -> Failure:
    """Make components fail.

    Returns:
        All that fails: a controller's process may be that of other controllers, too.

    Raises:
        SpecError: The fabric lacks the components.
        FabricError: The components can't be made to fail.
    """
    return _change(run_dir, failure, fails=True)


def clear(run_dir: RunDirectory, failure: Failure) -> None:
    """Make components work again.

    A killed controller restarts by itself. The errors are those of `inject`.
    """
    _change(run_dir, failure, fails=False)


def _change(run_dir: RunDirectory, failure: Failure, *, fails: bool) -> Failure:
    wiring = _wiring_with(run_dir, failure)
    match failure.kind.traits.injection:
        case "agent":
            _set_ranks(run_dir, failure.what, alive=not fails)
        case "controller":
            number = _SIGNALS[failure.how] if fails else signal.SIGCONT
            hit = _signal_controllers(run_dir, wiring, failure.what, number)
            return replace(failure, what=hit)
        case _:
            change = hardware_injection.inject if fails else hardware_injection.clear
            change(run_dir, str(failure.kind), failure.what)
    return failure


def logged_failures(run_dir: RunDirectory) -> list[Failure]:
    """Return the lost GPUs and stopped controllers, which only the failure log records."""
    active: dict[FailureKind, dict[str, None]] = {kind: {} for kind in LOGGED_KINDS}
    for event in read_failure_log(run_dir):
        names = active.get(event.kind)
        if names is None:
            continue
        is_new = event.kind.traits.restarts and event.phase == "recovered"
        if event.phase == "clear" or is_new:
            for name in event.what:
                names.pop(name, None)
        elif event.phase == "inject" and (not event.kind.traits.restarts or event.why == _STOPPED):
            names |= dict.fromkeys(event.what)
    return [
        Failure(kind, tuple(names), STOP if kind.traits.restarts else KILL)
        for kind, names in active.items()
        if names
    ]


def stopped_controller(run_dir: RunDirectory, region: Region | None) -> str:
    """Return that a controller is stopped, and the remedy; empty if it isn't, or runs elsewhere.

    The kernel knows, also of signals that nobody has logged.
    """
    with suppress(OSError, ValueError, IndexError):
        pid = _controller_pid(int(run_dir.controller_pid_file(region).read_text()))
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            name = region.name if region else "eps"
            remedy = f"`moefabric fault controller {name} --continue` resumes it"
            return f"the controller of {name} is stopped: {remedy}"
    return ""


def _wiring_with(run_dir: RunDirectory, failure: Failure) -> FabricWiring:
    """Return the running fabric after checking that it has the components of the failure."""
    wiring, has = read_wiring(run_dir), failure.kind.traits.has
    if unknown := [name for name in failure.what if not has(wiring.fabric, name)]:
        there_are = _known_components(wiring.fabric, failure.kind)
        message = f"{run_dir.name} has no such {failure.kind}{there_are}"
        raise SpecError([("", f"{', '.join(unknown)}: {message}")])
    return wiring


def _known_components(fabric: Fabric, kind: FailureKind) -> str:
    """Return the components of a kind that a fabric has, as the end of a message."""
    match kind:
        case FailureKind.GPU:
            last = fabric.gpus - 1
            known = [f"{server}/0 to {server}/{last}" for server in fabric.servers]
        case FailureKind.CONTROLLER:
            known = [*(region.name for region in fabric.regions), "eps"]
        case _:
            return ""
    return f"; it has {some_of(known)}"


def _set_ranks(run_dir: RunDirectory, names: Sequence[str], *, alive: bool) -> None:
    """Tell agents that ranks of their servers have died or run again."""
    at_ns = time.monotonic_ns()
    for gpu in map(Gpu.parse, names):
        socket = run_dir.agent_socket(gpu.server)
        with closing(connect_local(gpu.server, socket, _REPLY_S)) as channel:
            request_all({channel: ("rank", {"gpu": gpu.index, "alive": alive})}, _REPLY_S)
    phase: FailurePhase = "clear" if alive else "inject"
    append_failure_event(run_dir, phase, FailureKind.GPU, names, at_ns=at_ns)


def _signal_controllers(
    run_dir: RunDirectory, wiring: FabricWiring, names: Sequence[str], number: signal.Signals
) -> tuple[str, ...]:
    """Send a signal to the processes of controllers; return all controllers of these processes."""
    own = [region.name if region else "eps" for region in wiring.controlled]
    others = [name for name in names if name not in own]
    if others and wiring.controller is not ControlPlane.OWN:
        why = f"its process isn't the fabric's (`controller: {wiring.controller}`)"
        raise FabricError(f"controller {', '.join(others)}: {why}; signal it yourself")
    groups = [{region.name: region for region in group} for group in wiring.region_groups]
    group_of = {name: group for group in groups for name in group}
    hit = {tuple(group_of.get(name, [name])): group_of.get(name, {}) for name in names}
    for together, regions in hit.items():
        file = run_dir.controller_pid_file(regions.get(together[0]))
        at_ns = time.monotonic_ns()
        try:
            os.kill(pid := _controller_pid(int(file.read_text())), number)
            if number is signal.SIGSTOP:  # what asks next must see that it is stopped
                with suppress(FabricError):
                    Deadline.after(_STOP_S).wait_for(partial(is_stopped, pid), "its stop")
        except (OSError, ValueError) as absent:
            elsewhere = "where controllers run in another container, signal it there"
            remedy = end_remedy(run_dir) or elsewhere
            raise FabricError(
                f"controller {shared_name(together)}: no such process here ({absent}); {remedy}"
            ) from absent
        phase: FailurePhase = "clear" if number is signal.SIGCONT else "inject"
        why = _STOPPED if number is signal.SIGSTOP else ""
        append_failure_event(run_dir, phase, FailureKind.CONTROLLER, together, why, at_ns)
    return tuple(chain.from_iterable(hit))


def _controller_pid(pid: int) -> int:
    """Return the process id after checking that it belongs to a controller.

    The id of a controller in another container may belong to another process here.
    """
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if (b"-m", b"moefabric.controller") not in pairwise(argv):
        raise ProcessLookupError(f"process {pid} is no controller")
    return pid
