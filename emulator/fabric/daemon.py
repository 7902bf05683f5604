"""Fabric process: makes a fabric's hardware, keeps it while it is in use, and removes it.

`up` starts the process and talks to it over its standard input and output. The input is a pickled
`daemon_protocol.UpRequest`, then the line `keep` once `up` has read that the fabric is ready. If
the input ends earlier, `up` has died and the process removes the fabric. The output is lines of
JSON: `{"stage": ...}`, `{"failed": ...}` or `{"ready": true}`. Later any process may connect to
the control socket and send a line of JSON whose `do` is `ping`, `inspect`, `fault`
(module `hardware_failures`), `counters` (`port_counters`), `queues` (`links`), `own`, `disown` or
`stop`; the head of a fabric on several machines sends `set-links` and `signal` to other parts. A
fabric ends with its owner: the process that `up` named, or that has sent `own` last.
"""

import json
import logging
import os
import pickle
import resource
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from moefabric.core.errors import FabricError, MoefabricError
from moefabric.emulator.fabric.daemon_protocol import KEEP, UpRequest
from moefabric.emulator.fabric.hardware import Hardware
from moefabric.emulator.fabric.process_logs import TRIM_S, CapturedLogs
from moefabric.emulator.fabric.removal import remove_unfinished
from moefabric.emulator.fabric.run_directories import claim_life
from moefabric.emulator.fabric.running_hardware import RunningHardware
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.line_requests import peer
from moefabric.emulator.linux.processes import ChildProcess
from moefabric.runtime.listener import SpareDescriptors
from moefabric.runtime.processes import Supervisor, adopt_orphans
from moefabric.runtime.run_directory import IDENTITY_VARIABLE, RunDirectory

log = logging.getLogger(__name__)

_REQUEST_BYTES: Final = 1 << 16
_CLIENT_S: Final = 2.0
_DESCRIPTORS: Final = 65_536
"""Open files that are enough for 2,048 servers, whose switches have 9 for each server."""
_SPARE_DESCRIPTORS: Final = 64
"""Descriptors kept for the end of the fabric, which runs programs and asks the kernel."""
_SHORTAGE_S: Final = 0.05
"""Pause after a client that couldn't be accepted, or another shortage."""


class StoppedError(BaseException):
    """End of the fabric: SIGTERM, SIGINT, `stop`, or the death of `up`."""


def main(words: list[str]) -> int:
    """Run `python -m moefabric.emulator.fabric.daemon RUN_DIR`, which `lifecycle.up` starts."""
    if os.fork():  # `up` doesn't wait for the end of the fabric
        os._exit(0)
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        run_dir = RunDirectory(Path(words[0]))
        try:
            request: UpRequest = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our parent
        except (EOFError, pickle.UnpicklingError):
            # `up` has died; a living one removes its fabric itself.
            remove_unfinished(run_dir, os.environ[IDENTITY_VARIABLE])
        else:
            _serve(run_dir, request, output)
    except StoppedError:
        return 0
    except Exception as error:  # noqa: BLE001 - `up` reports any error
        traceback.print_exc()
        _write(output, {"failed": _error_text(error)})
        return 1
    return 0


def _stop(_number: int, _frame: FrameType | None) -> None:
    _ignore_signals()
    raise StoppedError


def _ignore_signals() -> None:
    """Ignore further signals while the hardware is removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _error_text(error: Exception) -> str:
    if isinstance(error, MoefabricError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}, in {last.name}"
    return f"{type(error).__name__}: {error} ({place})"


def _write(output: Any, message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        output.write(json.dumps(message) + "\n")
        output.flush()


def _raise_descriptor_limit() -> int:
    """Raise the limit of open files, which children inherit, as far as this process may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < _DESCRIPTORS:
        with suppress(ValueError):  # without CAP_SYS_RESOURCE
            resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
            return _DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _serve(run_dir: RunDirectory, request: UpRequest, output: Any) -> None:
    """Make the hardware, answer requests until the fabric ends, and remove the hardware."""
    hardware = Hardware(run_dir, request, lambda stage: _write(output, {"stage": stage}))
    spare = SpareDescriptors(0)
    try:
        most = _raise_descriptor_limit()
        claim_life(run_dir)
        spare = SpareDescriptors(min(_SPARE_DESCRIPTORS, most // 8))
        # Threads, which start later, inherit the namespace.
        namespaces.enter_new()
        adopt_orphans()
        threading.Thread(target=_watch_up, name="up", daemon=True).start()
        with selectors.DefaultSelector() as selector:
            owner = Owner(selector, request.owner)
            hardware.make()
            with _listen(run_dir) as listener:
                report = {
                    "remarks": hardware.remarks,
                    "interfaces": {s: asdict(i) for s, i in hardware.containers.interfaces.items()},
                }
                _write(output, {"ready": True, **report})
                output.close()
                _answer_clients(selector, listener, spare, hardware, owner)
    finally:
        _ignore_signals()
        spare.release()
        hardware.close()


class Owner:
    """Process with which the fabric ends, such as a run; none if the fabric stays."""

    def __init__(self, selector: selectors.BaseSelector, pid: int | None) -> None:
        """Watch a process.

        Raises:
            StoppedError: if it has ended.
        """
        self._selector, self._pidfd = selector, -1
        self.pid: int | None = None
        self.change(pid)

    def change(self, pid: int | None) -> None:
        """Watch another process, or none; raise StoppedError if it has ended."""
        if self.pid is not None:
            self._selector.unregister(self._pidfd)
            os.close(self._pidfd)
        self.pid = pid
        if pid is not None:
            try:
                self._pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                raise StoppedError from None
            self._selector.register(self._pidfd, selectors.EVENT_READ, data=_end)


def _watch_up() -> None:
    """End the fabric if `up` dies before it says `keep`."""
    if sys.stdin.buffer.readline() != KEEP:
        os.kill(os.getpid(), signal.SIGTERM)


def _listen(run_dir: RunDirectory) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(run_dir.control_socket))
    run_dir.control_socket.chmod(0o600)
    listener.listen(16)
    return listener


def _answer_clients(
    selector: selectors.BaseSelector,
    listener: socket.socket,
    spare: SpareDescriptors,
    hardware: Hardware,
    owner: Owner,
) -> None:
    """Answer clients, lose servers whose containers end, restart processes, and trim logs.

    Those of OCSes start again, and the one that forks controllers, which adopt lit circuits.
    The light of an OCS stays on without its process: the fabric process keeps the crossbar and the
    listening sockets, and hands them to the next one (`moefabric.emulator.ocs.fd_handoff`).

    Raises:
        StoppedError: at `stop`, or when the owner ends.
    """
    running = RunningHardware(hardware)
    logs = CapturedLogs(hardware.run_dir.log_file("any").parent)
    answer = partial(answer_client, partial(spare.accept, listener), running, owner)
    selector.register(listener, selectors.EVENT_READ, data=answer)
    supervisor = Supervisor[str, ChildProcess]()

    def lose(fd: int, server: str) -> None:
        selector.unregister(fd)
        running.lose_container(server)

    def watch(process: ChildProcess) -> None:
        selector.register(process.pidfd, selectors.EVENT_READ, data=partial(note_end, process))

    def note_end(process: ChildProcess) -> None:
        selector.unregister(process.pidfd)
        running.note_end(process)
        if running.restarts(process.name):
            delay_s = supervisor.note_end(process.name)
            log.warning("%s; starts again in %g s", process.exit_description, delay_s)
        else:
            log.warning("%s", process.exit_description)

    def note_end_of_holder(fd: int, pid: int) -> None:
        selector.unregister(fd)
        os.close(fd)
        running.note_end_of_holder(pid)

    for pid in running.holders:
        fd = os.pidfd_open(pid)
        selector.register(fd, selectors.EVENT_READ, data=partial(note_end_of_holder, fd, pid))
    for server, fd in hardware.containers.ends.items():
        selector.register(fd, selectors.EVENT_READ, data=partial(lose, fd, server))
    for process in running.processes:
        watch(process)
        if running.restarts(process.name):
            supervisor.adopt(process.name, process)
    while True:
        try:
            for name in supervisor.restarts:
                if restarted := supervisor.start_due(name, name, partial(running.restart, name)):
                    watch(restarted)
            logs.trim()
            wait_s = TRIM_S if supervisor.wait_s is None else min(supervisor.wait_s, TRIM_S)
            for key, _ in selector.select(wait_s):
                key.data()
        except OSError as error:  # descriptors or memory lack: the fabric must outlast that
            log.warning("the fabric goes on: %s", error)
            time.sleep(_SHORTAGE_S)


def answer_client(
    accept: Callable[[], socket.socket | None], hardware: RunningHardware, owner: Owner
) -> None:
    """Answer the next client, which has 2 s for its request.

    Clients run as root or as the fabric's user; others are disconnected. A request that fails
    costs its client only.

    Args:
        accept: Returns the client; None if it has gone, or was refused for want of descriptors.
        hardware: Answers it.
        owner: The process with which the fabric ends.
    """
    if (client := accept()) is None:
        time.sleep(_SHORTAGE_S)
        return
    with client, suppress(OSError, ValueError), client.makefile("rw") as lines:
        pid, is_trusted = peer(client)
        if not is_trusted:
            return
        client.settimeout(_CLIENT_S)
        request = parse_request(lines.readline(_REQUEST_BYTES))
        try:
            if request == {"do": "counters"}:
                hardware.hand_counters(client)
                return
            reply = _reply(request, hardware, owner, pid)
        except FabricError as error:
            reply = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - the client gets any error; the fabric goes on
            traceback.print_exc()
            reply = {"error": _error_text(error)}
        lines.write(json.dumps(reply) + "\n")


def parse_request(line: str) -> dict[str, Any]:
    """Return the request in a line.

    Raises:
        ValueError: if the line isn't a JSON object with flat text as `do`.
    """
    try:
        request = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(request, dict) or not isinstance(request.get("do"), str):
        raise ValueError("not a JSON object with a `do`")  # noqa: TRY004 - as for other invalid lines
    return request


def _reply(
    request: dict[str, Any], hardware: RunningHardware, owner: Owner, client: int
) -> dict[str, Any]:
    replies: dict[str, Callable[[], dict[str, Any] | None]] = {
        "ping": lambda: {"faults": hardware.faults(), "owner": owner.pid},
        "inspect": hardware.describe,
        "queues": hardware.queues,
        "links": hardware.link_lateness,
        "verify": lambda: {"faults": hardware.deviations()},
        "fault": lambda: hardware.failures.handle(request),
        "set-links": lambda: hardware.set_local_links(request["names"], up=bool(request["up"])),
        "signal": lambda: hardware.signal_agent(request["server"], request["number"]),
        "own": lambda: owner.change(client),
        "disown": lambda: owner.change(None if owner.pid == client else owner.pid),
        "stop": _end,
    }
    if request["do"] not in replies:
        return {"error": f"{request['do']!r} is not one of {', '.join(replies)}, counters"}
    return replies[request["do"]]() or {}


def _end() -> NoReturn:
    raise StoppedError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
