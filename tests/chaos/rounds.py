"""Rounds: a fabric comes up, works, has faults, ends in one of several ways, and leaves nothing."""

import json
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from subprocess import PIPE
from typing import Final

from moefabric.core.errors import MoefabricError
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import SilentFabricError, process_id
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.waiting import Deadline
from tests.chaos.faults import KINDS, PLANTED, SERVERS, STREAM, Target, send
from tests.chaos.stream import PERIOD_S, Stream
from tests.chaos.traces import traces
from tests.kernel.fabric_lab import Machine, small_fabric

ROOT: Final = Path(__file__).parents[2]
UP_S: Final = 90.0
OPERATION_S: Final = 45.0
GONE_S: Final = 10.0
"""Limits of the start of a fabric, of any other operation, and of the end of a killed one."""
MOST_FAULTS: Final = 6
PAUSES_S: Final = (0.0, 0.02, 0.1, 0.5, 1.0, 2.0)
MOST_LOST: Final = round(1 / PERIOD_S)
"""Datagrams of the stream that a fabric may lose or have under way: those of a second."""


class LeakError(Exception):
    """Something of a fabric is left, takes too long, or goes where no fault has fallen."""


@dataclass
class Chaos:
    """Rounds of faults on one machine.

    Attributes:
        machine: the machine, without fabrics.
        random: chooses everything.
        kinds: the kinds of faults that fall, of `faults.KINDS`.
        counts: number of faults and ends by kind.
    """

    machine: Machine
    random: Random
    kinds: Sequence[str] = tuple(KINDS)
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
        faults = self._faults(Target(name, self.machine, self.random))
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

    def _faults(self, target: Target) -> int:
        """Let faults fall while a stream passes by; return their number.

        Raises:
            LeakError: if the stream loses datagrams, or if the fabric doesn't work again after
                faults that pass.
        """
        faults, is_whole, nodes = 0, True, target.nodes()
        sender, receiver = (nodes[server] for server in STREAM)
        address = small_fabric(target.name, servers=SERVERS).addressing.addresses(STREAM[1])[1]
        with Stream(sender, receiver, address) as stream:
            while faults < MOST_FAULTS and self._is_answering(target.name):
                kind = self.random.choice(self.kinds)
                self.counts[kind] += 1
                faults += 1
                lift = (KINDS | PLANTED)[kind](target)
                time.sleep(self.random.choice(PAUSES_S))
                lost, sent = stream.lost, stream.sent
                if self._is_answering(target.name) and lost > MOST_LOST:
                    raise LeakError(
                        f"{target.name}: {lost} of {sent} datagrams from {STREAM[0]} to "
                        f"{STREAM[1]} lost after a {kind}"
                    )
                if lift is None:
                    is_whole = False
                    continue
                lift()
                self._outlasts(target.name, kind, is_whole)
        return faults

    def _outlasts(self, name: str, kind: str, is_whole: bool) -> None:
        """Wait until a fabric answers after a fault, and works if it has had no lasting one.

        Raises:
            LeakError: if it doesn't in time.
        """
        refusals: dict[str, str] = {}

        def is_well() -> bool:
            try:
                self._timed("inspect", partial(lifecycle.inspect, name))
            except SilentFabricError:
                return False
            refusals.update(self._work(name) if is_whole else {})
            return not any(refusals.values())

        try:
            Deadline.after(UP_S).wait_for(is_well, "it")
        except MoefabricError as error:
            reasons = "; ".join(filter(None, refusals.values())) or error
            raise LeakError(f"{name}: doesn't outlast a {kind}: {reasons}") from None

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
            send(pid, signal.SIGSTOP)
            with suppress(SilentFabricError):
                self._timed("down", down)
            send(pid, signal.SIGCONT)
        elif kind == "kill both" and pid is not None:
            send(pid, signal.SIGKILL)
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
