"""Lifecycle: a fabric comes up once, is found again by its name, and goes without a trace. Both twice over are no-ops."""

import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from emulator import datapath, uplink
from emulator import run_dir as run_dirs
from emulator.order import KEEP, NODES, Order
from emulator.plan import plan
from emulator.processes import OUTER, Process, end_marked, entering, mark
from moefabric.errors import FabricError, UnsupportedError
from moefabric.management import Management, RunDir, Wiring, root
from moefabric.topology import Fabric

_STDLIB: Final = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}
"""Mininet 2.3 takes one version comparison from distutils, and setuptools' copy of that takes 0.2 s to import."""
_PROGRAMS: Final = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "mnexec": "mininet",
}
_OVS_PROGRAMS: Final = dict.fromkeys(("ovsdb-server", "ovs-vswitchd"), "openvswitch-switch")
_STOP_S: Final = 5.0
_PATH_LETTERS: Final = 80
"""A unix socket's path has 107 letters at most (unix(7)); the longest name in a run directory takes the rest."""
_SOURCES: Final = str(Path(__file__).resolve().parent.parent)


def up(
    fabric: Fabric,
    processes: Callable[[Wiring, RunDir], Sequence[Process]],
    timeout_s: float = 30.0,
    external: frozenset[str] = frozenset(),
    say: Callable[[str], None] = lambda _stage: None,
    switch: str = "auto",
) -> Wiring:
    """The wiring of the fabric, which runs when this returns: made now, or found running with the same spec.

    `switch` is auto, bpf or ovs: what moves the packets of the electrical switches (`datapath.choose`).

    `processes` says what is started with it; those named in `external` are started by others and only waited for. `say` hears of each
    stage. FabricError where it can't be made, or another fabric has its name; then nothing is left of it, nor when this is interrupted.
    """
    run_dir = run_dirs.named(fabric.name)
    _refuse(fabric, run_dir)
    with run_dirs.locked(run_dir):
        if found := _working(run_dir):
            if found.fabric == fabric and switch in {"auto", found.switch.split("-")[0]}:
                return found
            raise FabricError(
                f"{fabric.name}: a fabric of this name runs with another spec; `moefabric down {fabric.name}` first"
            )
        _clear(fabric.name)
        try:
            return _make(fabric, processes, timeout_s, external, say, switch)
        except BaseException:
            _clear(fabric.name)
            run_dirs.remove(run_dir)
            raise


def _refuse(fabric: Fabric, run_dir: RunDir) -> None:
    """Errors for what can't be, before anything is made."""
    if os.geteuid() != 0:
        raise UnsupportedError(
            "a fabric needs root: network namespaces and shaping (CAP_NET_ADMIN, CAP_SYS_ADMIN); run with sudo"
        )
    _need(_PROGRAMS, "a fabric")
    if len(str(run_dir.path)) > _PATH_LETTERS:
        raise FabricError(
            f"{run_dir.path}: too long for the sockets in it; set MOEFABRIC_RUN_DIR to a shorter one"
        )
    plan(fabric, Management("198.18.0.0/24"))


def _need(programs: Mapping[str, str], who: str) -> None:
    """UnsupportedError unless these programs, by package, are there."""
    if absent := [
        f"{name} (apt install {package})" for name, package in programs.items() if shutil.which(name) is None
    ]:
        raise UnsupportedError(f"{who} needs {', '.join(absent)}; see `moefabric doctor`")


def _chosen(switch: str) -> datapath.Choice:
    chosen = datapath.choose(switch)
    if chosen.datapath.is_ovs:
        _need(_OVS_PROGRAMS, f"{chosen.datapath.name} ({chosen.why})" if chosen.why else "`switch: ovs`")
    return chosen


def _make(
    fabric: Fabric,
    processes: Callable[[Wiring, RunDir], Sequence[Process]],
    timeout_s: float,
    external: frozenset[str],
    say: Callable[[str], None],
    switch: str,
) -> Wiring:
    run_dir = run_dirs.named(fabric.name)
    for folder in (run_dir.log("any").parent, run_dir.agent("any").parent):
        folder.mkdir(exist_ok=True)
    management, outer = uplink.claim(fabric.name)
    planned = plan(fabric, management)
    with _starter(run_dir) as starter:  # which loads what it needs while the rest of its order is found out
        chosen = _chosen(switch)
        wiring = Wiring(fabric, management, switch=chosen.datapath.name, switch_why=chosen.why or "")
        run_dir.wiring.write_text(wiring.to_json())
        started = tuple(processes(wiring, run_dir))
        if lost := [one.name for one in started if one.where not in {OUTER, *planned.nodes}]:
            raise FabricError(f"{', '.join(lost)}: processes run on {OUTER}, {', '.join(planned.nodes)}")
        ready = _ready(run_dir, starter, Order(wiring, outer, started, external, timeout_s), say)
    made = replace(wiring, crossbar=ready["crossbar"], remarks=tuple(ready["remarks"]))
    run_dir.wiring.write_text(made.to_json())
    return made


def _starter(run_dir: RunDir) -> "subprocess.Popen[str]":
    """What starts the fabric process, which waits for its order, and goes where none comes."""
    search = os.pathsep.join(filter(None, (_SOURCES, os.environ.get("PYTHONPATH"))))
    # What lies in the caller's folder, whatever its name, is not taken for ours by `python -m`.
    ours = {"PYTHONPATH": search, "PYTHONSAFEPATH": "1"}
    with run_dir.log("fabric").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "emulator.fabricd", str(run_dir.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **_STDLIB, **mark(run_dir.name), **ours},
            start_new_session=True,
        )


def _ready(
    run_dir: RunDir, starter: "subprocess.Popen[str]", order: Order, say: Callable[[str], None]
) -> dict[str, Any]:
    """Give the fabric process its order and wait until it is ready; what it then says."""
    assert starter.stdin is not None
    assert starter.stdout is not None
    with suppress(BrokenPipeError):
        starter.stdin.write(order.to_line())
        starter.stdin.flush()
    for line in starter.stdout:
        told = json.loads(line)
        if "failed" in told:
            raise FabricError(told["failed"])
        if "stage" in told:
            say(told["stage"])
        if "ready" in told:
            starter.stdin.write(KEEP)
            return dict(told)
    raise FabricError(
        f"{run_dir.name}: the fabric process died at its start, saying: {_last_line(run_dir.log('fabric'))}"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing"


def down(name: str) -> bool:
    """Take a fabric away, or what a crash has left of it; whether there was anything."""
    run_dir = run_dirs.named(name)
    if not run_dir.path.exists():
        return _clear(name)
    with run_dirs.locked(run_dir):
        _clear(name)
        run_dirs.remove(run_dir)
    return True


def _clear(name: str) -> bool:
    """End what carries the fabric's name, in order if its process still answers; whether there was anything. The lock stays."""
    asked = _stop(run_dirs.named(name))
    ended = end_marked(name)
    left = uplink.leftovers(name)
    uplink.remove(left)
    emptied = run_dirs.empty(run_dirs.named(name))
    return bool(asked or ended or left or emptied)


def _stop(run_dir: RunDir) -> bool:
    """Ask the fabric process to stop, and wait until it has; False where there is none."""
    try:
        with _Call(run_dir) as call:
            call.send({"do": "stop"})
            call.wait_end(_STOP_S)
    except OSError:
        return False
    return True


class _Call:
    """A connection to a fabric process. OSError where nobody answers."""

    def __init__(self, run_dir: RunDir) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(5)
        try:
            self._socket.connect(str(run_dir.control))
            pid, _, _ = struct.unpack(
                "3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        os.close(self._pidfd)

    def send(self, asked: Mapping[str, Any]) -> None:
        """Ask, without waiting for an answer."""
        self._socket.sendall(json.dumps(asked).encode() + b"\n")

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Ask, and the answer. ValueError for an answer that is none."""
        self.send(asked)
        with self._socket.makefile() as lines:
            return dict(json.loads(lines.readline()))

    def wait_end(self, seconds: float) -> None:
        """Return when the fabric process has ended, or the time is over."""
        waiting = select.poll()
        waiting.register(self._pidfd, select.POLLIN)
        waiting.poll(seconds * 1000)


def ask(run_dir: RunDir, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A fabric process's answer to a line of JSON (`emulator.fabricd`). FabricError where no fabric runs there, and with its words where it refuses."""
    try:
        with _Call(run_dir) as call:
            said = call.ask(asked)
    except TimeoutError as silent:
        raise FabricError(
            f"{run_dir.name}: its process doesn't answer; see {run_dir.log('fabric')}"
        ) from silent
    except PermissionError as refused:
        raise UnsupportedError(f"{run_dir.name}: a fabric of another user's; run with sudo") from refused
    except (OSError, ValueError) as silent:
        raise FabricError(f"{run_dir.name}: no fabric of this name runs; see `moefabric up`") from silent
    if "error" in said:
        raise FabricError(str(said["error"]))
    return said


def _ask(name: str, what: str) -> dict[str, Any]:
    return ask(run_dirs.named(name), {"do": what})


def _working(run_dir: RunDir) -> Wiring | None:
    """The wiring of a fabric that runs and has lost nothing."""
    try:
        return (
            Wiring.from_json(run_dir.wiring.read_bytes())
            if not _ask(run_dir.name, "ping")["faults"]
            else None
        )
    except (FabricError, OSError, ValueError):
        return None


def running() -> list[str]:
    """The names of the fabrics that run."""
    if not root().exists():
        return []
    return sorted(entry.name for entry in root().iterdir() if entry.is_dir() and _answers(entry.name))


def serving() -> dict[str, int]:
    """Those of them that go with a process that works on them, such as a run of an experiment; its number."""
    found = {name: run_dirs.holder(run_dirs.named(name)) for name in running()}
    return {name: process for name, process in found.items() if process is not None}


def _answers(name: str) -> bool:
    try:
        _ask(name, "ping")
    except FabricError:
        return False
    return True


def inspect(name: str) -> dict[str, Any]:
    """The hardware of a running fabric, as `inspect --json` has it; `circuits` are empty, they are the controllers' to tell.

    FabricError where no fabric of that name runs.
    """
    return _ask(name, "inspect")


def argv_on(name: str, server: str, cmd: Sequence[str]) -> list[str]:
    """The argv that runs `cmd` on a server (`s0`) or OCS (`ocs0`) of a running fabric. FabricError where there is none such."""
    if not _answers(name):
        raise FabricError(f"{name}: no fabric of this name runs; see `moefabric up`")
    pids = json.loads((run_dirs.named(name).path / NODES).read_text())
    if server not in pids:
        raise FabricError(f"{server}: {name} has no such server; it has {', '.join(pids)}")
    marks = [f"{key}={value}" for key, value in mark(name).items()]
    return entering(int(pids[server]), ["env", *marks, *cmd])
