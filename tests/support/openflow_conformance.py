"""Pairs of switches wired for Ryu's switch tester, and the tester's processes."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric.ovs import OvsSwitches
from moefabric.emulator.fabric.plan import SwitchPlan
from moefabric.runtime.waiting import Deadline
from tests.support.openflow_verdicts import (
    FAIL,
    Case,
    Verdict,
    cases,
    is_slow,
    selected_description,
    verdicts,
)
from tests.support.switch_processes import (
    SwitchProcess,
    end,
    listens,
    open_vswitch,
    planned_switch,
    start,
    switch_network,
    wire,
)

HERE = Path(__file__).parent
PORTS = (1, 2, 3)
BPF, OVS = "moefabric", "Open vSwitch"
SETTLE_S = {BPF: 0.02, OVS: 1.0}
"""How late table counters may be: Open vSwitch's revalidators update them twice a second."""
RATE_S = 10
"""Duration of a rate measurement; the descriptions say 30 s."""
TRIES = 3
Address = tuple[str, int]
Tester = tuple["subprocess.Popen[bytes]", Path]
"""The process of a tester and the log of its results."""


def interface(switch: str, pair: int, port: int) -> str:
    return f"{switch}{pair}-{port}"


def bridges(pairs: int) -> list[SwitchPlan]:
    """The switches: t0 and u0 are target and tester of pair 0."""
    return [
        planned_switch(
            f"{switch}{pair}",
            2 * pair + number,
            *((interface(switch, pair, port), port) for port in PORTS),
        )
        for pair in range(pairs)
        for number, switch in enumerate("tu", 1)
    ]


def _wire(pairs: int) -> None:
    """Connects the ports of each target with those of its tester."""
    for pair in range(pairs):
        for port in PORTS:
            wire(interface("t", pair, port), interface("u", pair, port))


class ConformanceBench:
    """Pairs of switches of one kind in their own network namespace."""

    def __init__(self, kind: str, pairs: int, folder: Path, undo: ExitStack) -> None:
        self.kind, self.pairs, self.folder, self._undo = kind, pairs, folder, undo
        self.rate_s = RATE_S
        _wire(pairs)
        self._process = self._switches()

    def _switches(self) -> SwitchProcess | OvsSwitches:
        if self.kind == OVS:
            return open_vswitch(bridges(self.pairs), self.folder / "ovs", self._undo)
        specs = [switch.description for switch in bridges(self.pairs)]
        return SwitchProcess(specs, None, self._undo)

    def connect(self, controllers: dict[str, Address]) -> None:
        """Sets the controllers of switches."""
        if isinstance(self._process, OvsSwitches):
            self._process.connect(controllers, Deadline.after(20))
        else:
            self._process.connect(controllers)

    def run(self, files: Sequence[str], deadline_s: float) -> dict[Case, Verdict]:
        """Runs the tests of files, divided among the pairs, in rounds of `deadline_s` at most.

        A failed test is repeated alone, up to `TRIES` runs in all: rates measured beside other
        tests are wrong, and Open vSwitch's datapath follows a barrier some milliseconds late.
        """
        shares = [
            [case for file in share for case in cases(file)]
            for share in _divided(files, self.pairs)
        ]
        results = self._round(shares, Deadline.after(deadline_s), "1-")
        for attempt in range(2, TRIES + 1):
            failed = [case for case, verdict in results.items() if verdict.result == FAIL]
            if not failed:
                break
            for case, verdict in self._round(
                [failed], Deadline.after(deadline_s), f"{attempt}-"
            ).items():
                results[case] = replace(verdict, tries=attempt)
        return results

    def _round(
        self, shares: Sequence[Sequence[Case]], deadline: Deadline, name: str
    ) -> dict[Case, Verdict]:
        testers = [
            self._tester(pair, share, f"{name}{pair}") for pair, share in enumerate(shares) if share
        ]
        endpoints = {pair: ("127.0.0.1", 6653 + pair) for pair in range(len(testers))}
        deadline.wait_for(lambda: _ready(testers, endpoints.values()), "Ryu's tester")
        self.connect(
            {f"{switch}{pair}": endpoint for pair, endpoint in endpoints.items() for switch in "tu"}
        )
        results = dict[Case, Verdict]()
        for (process, log), share in zip(testers, shares, strict=False):
            with suppress(subprocess.TimeoutExpired):
                process.wait(deadline.remaining_s)
            end(process)
            results |= verdicts(log.read_text(), share)
        return results

    def _tester(self, pair: int, share: Sequence[Case], name: str) -> Tester:
        folder, log = self.folder / name, self.folder / f"{name}.log"
        for file in {case.file for case in share}:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(selected_description(file, share, self.rate_s))
        argv = [sys.executable, "-m", "tests.support.openflow_tester", str(SETTLE_S[self.kind])]
        argv += ["--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", str(6653 + pair)]
        argv += ["--test-switch-dir", str(folder)]
        argv += [
            "--test-switch-target",
            f"{2 * pair + 1:016x}",
            "--test-switch-tester",
            f"{2 * pair + 2:016x}",
        ]
        env = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        with log.open("wb") as stderr:
            return start(argv, self._undo, stdout=subprocess.DEVNULL, stderr=stderr, env=env), log


def _divided(files: Sequence[str], count: int) -> list[list[str]]:
    """Divides files evenly, slow ones first."""
    shares: list[list[str]] = [[] for _ in range(count)]
    for place, file in enumerate(sorted(files, key=lambda file: (not is_slow(file), file))):
        shares[place % count].append(file)
    return [share for share in shares if share]


def _ready(testers: Sequence[Tester], endpoints: Iterable[Address]) -> bool:
    """Whether all testers listen; raises an error with the log of one that has ended."""
    for process, log in testers:
        if process.poll() is not None:
            raise FabricError(f"Ryu's tester ended: {log.read_text()}")
    return all(map(listens, endpoints))


@contextmanager
def bench(kind: str, pairs: int, folder: Path) -> Iterator[ConformanceBench]:
    """Creates a bench that ends with the block."""
    with switch_network(), ExitStack() as undo:
        yield ConformanceBench(kind, pairs, folder, undo)
