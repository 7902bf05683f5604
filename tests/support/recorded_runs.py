"""Runs in memory that are recorded as `moefabric run` records them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.execution.fabric_recorder import FabricRecorder, RunStatusWriter
from moefabric.planner.mixnet import MIXNET
from moefabric.results.journal import FabricLine, HeaderLine, Journal
from moefabric.results.model import FabricResult, Manifest
from moefabric.results.records.records import IterationRun
from moefabric.results.verdict.fabric_result import wiring_summary
from moefabric.results.verdict.iteration_outcome import IterationOutcome
from moefabric.runtime.cpu_monitor import CpuSampler
from moefabric.workload.iterations.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.workload.iterations.job import Job, JobShape
from moefabric.workload.iterations.pipeline import lockstep_tasks
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    VirtualClock,
    instruments_in_memory,
)

SERVERS = ("s0", "s1", "s2", "s3")
SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in a second."""


def demand(seconds: Mapping[tuple[int, int], float]) -> DemandMatrix:
    """Return the demand of pairs of servers, in seconds of a NIC."""
    rows = [[SECOND * seconds.get((a, b), 0.0) for b in range(4)] for a in range(4)]
    return DemandMatrix(SERVERS, rows)


def operations(number: int) -> Sequence[Operation]:
    """Return the operations of an iteration; circuits change in each."""
    near = demand({(0, 1): 0.1, (2, 3): 0.1, (3, 1): 0.05})
    far = demand({(0, 2): 0.1, (1, 3): 0.05})
    owed = near if number % 2 else far
    return (
        Compute("attention", "forward", 0, (0.010,) * 4),
        Reconfigure("forward", 0, owed),
        Collective("dispatch", "forward", 0, owed),
        Compute("expert", "forward", 0, (0.020, 0.010, 0.010, 0.010)),
        Collective("combine", "forward", 0, owed.combine()),
    )


class ObservedRecorder(FabricRecorder):
    """A recorder that reports each outcome, and has what the executor returned."""

    on_outcome: Callable[[IterationOutcome], object]
    runs: list[IterationRun]

    def add(self, outcome: IterationOutcome, nic_bytes: dict[str, int] | None = None) -> None:
        super().add(outcome, nic_bytes)
        self.on_outcome(outcome)


class RecordedRun:
    """A fabric `mixnet` in memory, whose iterations go to a journal.

    Args:
        path: The journal.
        keep: Whether the executor keeps whole records instead.
    """

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self.fabric, self.clock = fabric(1, 1, settle_ns=25_000_000), VirtualClock(10**12)
        self.light = MemoryController(self.fabric, MIXNET, self.clock)
        self.agents = MemoryAgents(self.fabric, lambda: self.light.lit, self.clock)
        self.path, self._keep = path, keep
        self.header = HeaderLine(
            run_id="ab", experiment="memory", version="1", manifest=Manifest(), spec={},
            fabrics=["mixnet"],
        )  # fmt: skip

    def begin(self, journal: Journal, iterations: int) -> None:
        """Append the first lines of a journal."""
        line = FabricLine(
            fabric="mixnet",
            policy="mixnet",
            iterations=iterations,
            wiring=wiring_summary(self.fabric),
        )
        journal.append(self.header, line)

    def run(
        self,
        journal: Journal,
        iterations: int,
        *,
        first: int = 0,
        circuits: CircuitSet | None = None,
        status: RunStatusWriter | None = None,
        monitor: Any = None,
        cpu: CpuSampler | None = None,
        on_outcome: Callable[[IterationOutcome], object] = lambda _: None,
    ) -> "ObservedRecorder":
        """Run iterations from `first` on, with these circuits lit."""
        recorder = ObservedRecorder(self.fabric, "mixnet", "mixnet", journal, status)
        recorder.on_outcome = on_outcome
        self.light.lit = circuits or CircuitSet()
        executor = Executor(
            self.fabric,
            MIXNET,
            self.agents,
            {"r0": self.light},
            self.light.lit,
            settings=RunSettings(
                keep_records=self._keep, arming_ns=6_000_000, control=ControlSettings(control_s=0.0)
            ),
            instruments=instruments_in_memory(self.clock, counters=self.agents.counters),
            observer=None if self._keep else recorder,
        )
        recorder.executor = executor
        recorder.cpu, recorder.monitor = cpu or CpuSampler(), monitor
        job = Job(0, JobShape(), self.fabric.regions)
        with closing(executor):
            recorder.runs = executor.run(
                {job: lambda number, _: lockstep_tasks(operations(number), ["r0"])},
                iterations,
                first=first,
            )
        return recorder


def all_to_all_bytes(fabric: FabricResult) -> int:
    """Return the bytes of all all-to-alls of a fabric, counted at ports."""
    return sum((one.bytes_by_light or 0) + (one.bytes_by_eps or 0) for one in fabric.collectives)
