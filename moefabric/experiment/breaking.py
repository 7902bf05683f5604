"""Breaking: the one way by which a failure comes about in a running fabric, and is mended, whoever wants it: a person's command or a run."""

import os
import signal
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from agents.channel import ask_all, local
from emulator import injection
from moefabric.errors import FabricError, SpecError
from moefabric.failure_log import note, read
from moefabric.failures import Failure, How, Kind, has
from moefabric.health import Gpu
from moefabric.management import RunDir, Wiring

_ANSWER_S: Final = 5.0
_STOPPED: Final = "stopped"
_SIGNALS: Final = {How.KILL: signal.SIGKILL, How.STOP: signal.SIGSTOP}


def break_(run_dir: RunDir, failure: Failure) -> None:
    """Let it fail. SpecError for what the fabric hasn't got, FabricError where it can't be done."""
    _known(run_dir, failure)
    match failure.kind:
        case Kind.GPU:
            _ranks(run_dir, failure.what, alive=False)
        case Kind.CONTROLLER:
            _controllers(run_dir, failure.what, _SIGNALS[failure.how])
        case _:
            injection.inject(run_dir, str(failure.kind), failure.what)


def mend(run_dir: RunDir, failure: Failure) -> None:
    """Let it work again. Errors as those of `break_`; a controller that was killed needs nobody."""
    _known(run_dir, failure)
    match failure.kind:
        case Kind.GPU:
            _ranks(run_dir, failure.what, alive=True)
        case Kind.CONTROLLER:
            _controllers(run_dir, failure.what, signal.SIGCONT)
        case _:
            injection.clear(run_dir, str(failure.kind), failure.what)


def standing(run_dir: RunDir) -> list[Failure]:
    """GPUs that are lost and controllers that are stopped, as far as anybody noted: what the hardware knows nothing of."""
    gpus, stopped = dict[str, None](), dict[str, None]()
    for each in read(run_dir):
        found = gpus if each.kind == Kind.GPU else stopped if each.kind == Kind.CONTROLLER else None
        if found is None:
            continue
        for name in each.what:
            if each.do == "inject" and (each.kind == Kind.GPU or each.why == _STOPPED):
                found[name] = None
            elif each.do == "clear":
                found.pop(name, None)
    made = [Failure(Kind.GPU, tuple(gpus))] if gpus else []
    return [*made, Failure(Kind.CONTROLLER, tuple(stopped), How.STOP)] if stopped else made


def _known(run_dir: RunDir, failure: Failure) -> None:
    try:
        fabric = Wiring.from_json(run_dir.wiring.read_bytes()).fabric
    except (OSError, ValueError) as absent:
        raise FabricError(f"{run_dir.name}: no fabric of this name runs; see `moefabric up`") from absent
    if strange := [name for name in failure.what if not has(fabric, failure.kind, name)]:
        raise SpecError([("", f"{', '.join(strange)}: {run_dir.name} has no such {failure.kind}")])


def _ranks(run_dir: RunDir, names: Sequence[str], *, alive: bool) -> None:
    """Tell agents that ranks of theirs have died, or run again."""
    at_ns = time.monotonic_ns()
    for gpu in map(Gpu.parse, names):
        channel = local(gpu.server, run_dir.agent(gpu.server), _ANSWER_S)
        try:
            ask_all({channel: ("rank", {"gpu": gpu.index, "alive": alive})}, _ANSWER_S)
        finally:
            channel.close()
    note(run_dir, "clear" if alive else "inject", str(Kind.GPU), names, at_ns=at_ns)


def _controllers(run_dir: RunDir, names: Sequence[str], number: signal.Signals) -> None:
    regions = {region.name: region for region in Wiring.from_json(run_dir.wiring.read_bytes()).fabric.regions}
    for name in names:
        file = run_dir.controller(regions.get(name))
        at_ns = time.monotonic_ns()
        try:
            os.kill(_controller_at(int(file.read_text())), number)
        except (OSError, ValueError) as absent:
            raise FabricError(
                f"controller {name}: no such process here ({absent}); where controllers run apart, signal it there"
            ) from absent
        if number is signal.SIGCONT:
            note(run_dir, "clear", str(Kind.CONTROLLER), [name], at_ns=at_ns)
        else:
            why = _STOPPED if number is signal.SIGSTOP else ""
            note(run_dir, "inject", str(Kind.CONTROLLER), [name], why, at_ns)


def _controller_at(pid: int) -> int:
    """The same, if it is a controller's: where controllers run in another container, that number is somebody else's here. ProcessLookupError if so."""
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if (b"-m", b"controller") not in pairwise(argv):
        raise ProcessLookupError(f"process {pid} is no controller")
    return pid
