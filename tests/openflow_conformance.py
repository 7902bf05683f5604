"""Two switches of one kind wired as Ryu's switch tester wants them, target and tester, many times over, and the tester at work on each pair."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from emulator.ovs import Bridge, OpenVSwitch
from emulator.waiting import Deadline
from tests.openflow_verdicts import FAIL, Case, Verdict, cases, described, is_slow, verdicts
from tests.switch_processes import Door, end, open_vswitch, own_network, started, wire

HERE = Path(__file__).parent
PORTS = (1, 2, 3)
BPF, OVS = "moefabric", "Open vSwitch"
SETTLE_S = {BPF: 0.02, OVS: 1.0}
"""How long table counters may be behind: Open vSwitch's revalidators bring them up to date twice a second."""
RATE_S = 10
"""How long a rate is measured; the descriptions say 30 s."""
TRIES = 3
Address = tuple[str, int]


def interface(switch: str, pair: int, port: int) -> str:
    return f"{switch}{pair}-{port}"


def bridges(pairs: int) -> list[Bridge]:
    """The switches: `t0` and `u0` are target and tester of pair 0."""
    return [
        Bridge(
            f"{switch}{pair}",
            2 * pair + number,
            tuple((interface(switch, pair, port), port) for port in PORTS),
        )
        for pair in range(pairs)
        for number, switch in enumerate("tu", 1)
    ]


def _wire(pairs: int) -> None:
    """Port by port, target and tester of each pair are joined by a wire."""
    for pair in range(pairs):
        for port in PORTS:
            wire(interface("t", pair, port), interface("u", pair, port))


class Bench:
    """So many pairs of switches of one kind, in a network of their own."""

    def __init__(self, kind: str, pairs: int, folder: Path, undo: ExitStack) -> None:
        self.kind, self.pairs, self.folder, self._undo = kind, pairs, folder, undo
        self.rate_s = RATE_S
        _wire(pairs)
        self._made = self._switches()

    def _switches(self) -> Door | OpenVSwitch:
        if self.kind == OVS:
            return open_vswitch(bridges(self.pairs), self.folder / "ovs", self._undo)
        made = [
            {"name": each.name, "datapath_id": each.datapath_id, "ports": {n: name for name, n in each.ports}}
            for each in bridges(self.pairs)
        ]
        return Door(made, None, self._undo)

    def connect(self, controllers: dict[str, Address]) -> None:
        """Have switches follow these controllers from now on."""
        if isinstance(self._made, OpenVSwitch):
            self._made.connect(controllers, Deadline.after(20))
        else:
            self._made.connect(controllers)

    def judged(self, files: Sequence[str], deadline_s: float) -> dict[Case, Verdict]:
        """What the tester says of these descriptions, shared out among the pairs; each round has `deadline_s` at most.

        A test that fails is tried again while nothing else is at work, up to `TRIES` times in all, and the verdict says so: rates that are
        measured while others are at work are no rates, and Open vSwitch answers a barrier some milliseconds before its packets meet the change.
        """
        dealt = [[case for file in hand for case in cases(file)] for hand in _dealt(files, self.pairs)]
        found = self._tried(dealt, Deadline.after(deadline_s), "1-")
        for turn in range(2, TRIES + 1):
            failed = [case for case, verdict in found.items() if verdict.result == FAIL]
            if not failed:
                break
            for case, verdict in self._tried([failed], Deadline.after(deadline_s), f"{turn}-").items():
                found[case] = replace(verdict, tries=turn)
        return found

    def _tried(self, shares: Sequence[Sequence[Case]], soon: Deadline, name: str) -> dict[Case, Verdict]:
        testers = [self._tester(pair, share, f"{name}{pair}") for pair, share in enumerate(shares) if share]
        places = {pair: ("127.0.0.1", 6653 + pair) for pair in range(len(testers))}
        soon.until(lambda: all(map(_listens, places.values())), "Ryu's tester")
        self.connect({f"{switch}{pair}": place for pair, place in places.items() for switch in "tu"})
        found = dict[Case, Verdict]()
        for (process, log), share in zip(testers, shares, strict=False):
            with suppress(subprocess.TimeoutExpired):
                process.wait(soon.left_s)
            end(process)
            found |= verdicts(log.read_text(), share)
        return found

    def _tester(self, pair: int, share: Sequence[Case], name: str) -> "tuple[subprocess.Popen[bytes], Path]":
        folder, log = self.folder / name, self.folder / f"{name}.log"
        for file in {case.file for case in share}:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(described(file, share, self.rate_s))
        argv = [sys.executable, str(HERE / "openflow_tester.py"), str(SETTLE_S[self.kind])]
        argv += ["--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", str(6653 + pair)]
        argv += ["--test-switch-dir", str(folder)]
        argv += [
            "--test-switch-target",
            f"{2 * pair + 1:016x}",
            "--test-switch-tester",
            f"{2 * pair + 2:016x}",
        ]
        env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        with log.open("wb") as said:
            return started(argv, self._undo, stdout=subprocess.DEVNULL, stderr=said, env=env), log


def _dealt(files: Sequence[str], hands: int) -> list[list[str]]:
    """Shared out evenly, those that take long first."""
    dealt: list[list[str]] = [[] for _ in range(hands)]
    for place, file in enumerate(sorted(files, key=lambda file: (not is_slow(file), file))):
        dealt[place % hands].append(file)
    return [hand for hand in dealt if hand]


def _listens(address: Address) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(address) == 0


@contextmanager
def bench(kind: str, pairs: int, folder: Path) -> Iterator[Bench]:
    """A bench that ends with the block."""
    with own_network(), ExitStack() as undo:
        yield Bench(kind, pairs, folder, undo)
