"""Rounds: a fabric comes up, works, has faults, ends in one of several ways, and leaves nothing."""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from subprocess import PIPE
from typing import Final

from moefabric.core.errors import MoefabricError
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import NODES, SilentFabricError, process_id
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline
from tests.chaos.traces import traces
from tests.kernel.fabric_lab import Machine

ROOT: Final = Path(__file__).parents[2]
UP_S: Final = 90.0
OPERATION_S: Final = 45.0
GONE_S: Final = 10.0
"""Limits of the start of a fabric, of any other operation, and of the end of a killed one."""
MOST_FAULTS: Final = 6
PAUSES_S: Final = (0.0, 0.02, 0.1, 0.5, 1.0, 2.0)
DESCRIPTORS: Final = 16


class LeakError(Exception):
    """Something of a fabric is left, or an operation takes too long."""


@dataclass
class Chaos:
    """Rounds of faults on one machine.

    Attributes:
        machine: the machine, without fabrics.
        random: chooses everything.
        counts: number of faults and ends by kind.
    """

    machine: Machine
    random: Random
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rounds = 0
        self._before = traces(self.machine)

    def round(self) -> int:
        """Run a round; return its number of faults.

        Raises:
            LeakError: names what is left, or what takes too long.
        """
        self._rounds += 1
        name = f"chaos{self._rounds}"
        argv = [sys.executable, "-m", "tests.chaos.owner", name]
        start = partial(subprocess.Popen, argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        with self.machine.run(start) as owner:
            try:
                faults = self._live(name, owner)
            finally:
                owner.kill()
        try:
            Deadline.after(GONE_S).wait_for(self._is_clean, "the end of the fabric")
        except MoefabricError:
            self._remove_remains(name)
        return faults

    def _is_clean(self) -> bool:
        return traces(self.machine) <= self._before

    def _remove_remains(self, name: str) -> None:
        """Remove what is left, as the next `up` does: the fabric process was killed or stopped."""
        self._timed("removal of remains", partial(self.machine.run, lifecycle.remove_remains))
        if not self._is_clean():
            self.counts["down --force"] += 1
            self._timed(
                "down", partial(self.machine.run, partial(lifecycle.down, name, force=True))
            )
        if left := traces(self.machine) - self._before:
            raise LeakError(f"{name}: left: {'; '.join(sorted(left))}")

    def _live(self, name: str, owner: "subprocess.Popen[str]") -> int:
        """Let a fabric come up and have faults, or kill it while it comes up."""
        assert owner.stdout is not None
        if self.random.random() < 1 / 4:
            select.select([owner.stdout], [], [], self.random.uniform(0, 3))
            return self._count("kill the owner during up", owner.kill)
        if not select.select([owner.stdout], [], [], UP_S)[0]:
            raise LeakError(f"{name}: `up` hangs")
        if owner.stdout.read(3) != "up\n":
            raise LeakError(f"{name}: `up` failed")
        for kind, refusal in self._work(name).items():
            if refusal:
                raise LeakError(f"{name}: without a fault, no {kind}: {refusal}")
        faults = 0
        while faults < MOST_FAULTS and self._is_answering(name):
            faults += self._fault(name)
            time.sleep(self.random.choice(PAUSES_S))
        for kind, refusal in self._work(name).items():
            self.counts[f"{kind} {'refused' if refusal else 'done'} after faults"] += 1
        return faults + self._end(name, owner)

    def _work(self, name: str) -> dict[str, str]:
        """Have a fabric work; return by kind why it refuses, or nothing where it did the work.

        Raises:
            LeakError: if it neither works nor names a reason in time.
        """
        argv = [sys.executable, "-m", "tests.chaos.work", name]
        start = partial(subprocess.Popen, argv, stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT)
        with self.machine.run(start) as work:
            output, errors = work.communicate()
        if work.returncode:
            raise LeakError(f"{name}: its work hangs, or fails without a reason: {errors}")
        outcomes: dict[str, str] = json.loads(output)
        return outcomes

    def _fault(self, name: str) -> int:
        victims = marked_pids(name)
        if not victims:
            return 0
        victim = self.random.choice(victims)
        number = self.random.choice((signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM))
        kinds: dict[str, Callable[[], object]] = {
            f"{number.name} to a process": partial(_signal, victim, number),
            "limit of descriptors": partial(
                _ignore_end,
                partial(resource.prlimit, victim, resource.RLIMIT_NOFILE, (DESCRIPTORS,) * 2),
            ),
            "partition": partial(self._cut, name),
        }
        kind = self.random.choice(list(kinds))
        return self._count(kind, kinds[kind])

    def _cut(self, name: str) -> None:
        """Take an interface of a node down."""
        try:
            pids = json.loads((RunDirectory.of_fabric(name).path / NODES).read_text())
        except OSError:  # the fabric has ended
            return
        pid = self.random.choice(list(pids.values()))
        interface = self.random.choice(("eth0", "mgmt0"))
        argv = ["nsenter", "-t", str(pid), "-n", "ip", "link", "set", interface, "down"]
        subprocess.run(argv, capture_output=True, timeout=OPERATION_S, check=False)

    def _is_answering(self, name: str) -> bool:
        """Whether the fabric process answers, as it must, or refuses, in time."""
        try:
            self._timed("inspect", partial(lifecycle.inspect, name))
        except MoefabricError:
            return False
        return True

    def _end(self, name: str, owner: "subprocess.Popen[str]") -> int:
        down = partial(self.machine.run, partial(lifecycle.down, name))
        kind = self.random.choice(("down", "kill the owner", "kill both", "down of a stopped one"))
        pid = None
        with suppress(MoefabricError):
            pid = process_id(RunDirectory.of_fabric(name))
        if kind == "down of a stopped one" and pid is not None:
            _signal(pid, signal.SIGSTOP)
            with suppress(SilentFabricError):
                self._timed("down", down)
            _signal(pid, signal.SIGCONT)
        elif kind == "kill both" and pid is not None:
            _signal(pid, signal.SIGKILL)
        elif kind == "down":
            with suppress(SilentFabricError):
                self._timed("down", down)
        return self._count(kind, owner.kill)

    def _count(self, kind: str, fault: Callable[[], object]) -> int:
        self.counts[kind] += 1
        fault()
        return 1

    def _timed(self, what: str, operation: Callable[[], object]) -> None:
        start_s = time.monotonic()
        try:
            operation()
        finally:
            if (took_s := time.monotonic() - start_s) > OPERATION_S:
                raise LeakError(f"{what} took {took_s:.0f} s")


def _signal(pid: int, number: signal.Signals) -> None:
    _ignore_end(partial(os.kill, pid, number))


def _ignore_end(action: Callable[[], object]) -> None:
    """Act on a process that may have ended."""
    with suppress(ProcessLookupError):
        action()
