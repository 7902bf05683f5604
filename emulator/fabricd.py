"""The fabric process: it makes a fabric's hardware, keeps it while anybody wants it, and takes it away.

`up` starts it and speaks with it over two pipes. In: one line (`order.Order`), then `keep` once `up` has heard that all is
ready; if the pipe closes before that, `up` has died and the fabric goes too. Out: lines of JSON, `{"stage": ...}`, `{"failed": ...}`,
`{"ready": true}`. Later, anybody may connect to the control socket and ask, a line of JSON each: `ping`, `inspect`,
`fault` (`emulator.outages`), `stop`.
"""

import json
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from emulator.hardware import Hardware
    from moefabric.management import RunDir

_ASKED_BYTES: Final = 4096


class StoppedError(BaseException):
    """Somebody wants the fabric gone: SIGTERM, SIGINT, `stop`, or an `up` that has died."""


def main(words: list[str]) -> int:
    """`python -m emulator.fabricd RUN_DIR`, started by `lifecycle.up`."""
    if os.fork():  # whoever started this one needn't wait for the end of the fabric
        os._exit(0)
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        import emulator.hardware  # noqa: F401 - 0.1 s in which `up` finds out what to order

        if order := sys.stdin.readline():
            _serve(Path(words[0]), order, told)
    except StoppedError:
        return 0
    except Exception as fault:  # noqa: BLE001 - the last place that can tell `up`
        traceback.print_exc()
        _tell(told, {"failed": _words(fault)})
        return 1
    return 0


def _stop(_number: int, _frame: FrameType | None) -> None:
    """Go away, once: while things are taken away nothing else is heard."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise StoppedError


def _words(fault: Exception) -> str:
    from moefabric.errors import MoefabricError

    if isinstance(fault, MoefabricError):
        return str(fault)
    last = traceback.extract_tb(fault.__traceback__)[-1]
    return f"{type(fault).__name__}: {fault} ({Path(last.filename).name}:{last.lineno}, in {last.name})"


def _tell(told: Any, line: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        told.write(json.dumps(line) + "\n")
        told.flush()


def _serve(path: Path, order: str, told: Any) -> None:
    """Make the hardware, serve until told to stop, take it away."""
    from emulator.hardware import Hardware
    from emulator.order import Order
    from moefabric.management import RunDir

    run_dir = RunDir(path)
    hardware = Hardware(run_dir, Order.from_line(order), lambda stage: _tell(told, {"stage": stage}))
    try:
        hardware.leave()
        _Lease().start()
        hardware.make()
        with _listener(run_dir) as listener:
            _tell(told, {"ready": True, "crossbar": hardware.crossbar, "remarks": hardware.remarks})
            told.close()
            _answer_all(listener, hardware)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        hardware.close()


class _Lease(threading.Thread):
    """Watches over `up` until it says `keep`; if it ends before, so does the fabric."""

    def __init__(self) -> None:
        super().__init__(name="lease", daemon=True)

    def run(self) -> None:
        from emulator.order import KEEP

        if sys.stdin.readline() != KEEP:
            os.kill(os.getpid(), signal.SIGTERM)


def _listener(run_dir: "RunDir") -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(run_dir.control))
    run_dir.control.chmod(0o600)
    listener.listen(16)
    return listener


def _answer_all(listener: socket.socket, hardware: "Hardware") -> None:
    """Answer one caller after the other, until one says `stop`; whoever asks slowly is heard for 2 s."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        while True:
            waiting.select()
            caller, _ = listener.accept()
            with caller, suppress(OSError, ValueError):
                caller.settimeout(2)
                _answer(caller, hardware)


def _answer(caller: socket.socket, hardware: "Hardware") -> None:
    with caller.makefile("rw") as lines:
        asked = json.loads(lines.readline(_ASKED_BYTES))
        match asked.get("do") if isinstance(asked, dict) else asked:
            case "ping":
                answer: dict[str, Any] = {"faults": hardware.faults()}
            case "fault":
                answer = _suffered(hardware, asked)
            case "inspect":
                answer = hardware.describe()
            case "stop":
                raise StoppedError
            case other:
                answer = {"error": f"{other!r} is not one of ping, inspect, fault, stop"}
        lines.write(json.dumps(answer) + "\n")


def _suffered(hardware: "Hardware", asked: dict[str, Any]) -> dict[str, Any]:
    from moefabric.errors import FabricError

    try:
        return hardware.outages.asked(asked)
    except (FabricError, OSError) as wrong:
        return {"error": str(wrong)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
