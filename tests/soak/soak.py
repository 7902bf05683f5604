"""Many reconfigurations under full traffic with faults: nothing is lost, and nothing grows.

Every collective overloads the packet switch, and circuits change during each of them: bytes of
both networks are under way. In every third iteration light fails on a port; the next one clears it.
"""

import json
import os
import resource
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import Failure
from moefabric.core.ocs import Ocs
from moefabric.core.port_counts import INTO_OCS, OUT_OF_OCS
from moefabric.core.topology import Fabric, Region
from moefabric.core.transport import PACED
from moefabric.core.units import Scale
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.daemon_protocol import NODES
from moefabric.execution.executor import Executor, Instruments, RunSettings
from moefabric.execution.fabric_recorder import FabricRecorder
from moefabric.execution.failure_monitor import FailureMonitor
from moefabric.execution.observer import Observers
from moefabric.execution.reconfiguration import UNDER_WAY
from moefabric.planner.mixnet import MIXNET
from moefabric.results.journal import FabricLine, HeaderLine, Journal, JournalReader
from moefabric.results.model import Manifest
from moefabric.runtime.atomic_file import write_whole
from moefabric.runtime.cpu_monitor import CpuSampler
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed import failure_injection
from moefabric.testbed.testbed import port_counters, running_testbed
from moefabric.workload.iterations.iteration import Collective, Reconfigure
from moefabric.workload.iterations.job import Job, JobShape
from moefabric.workload.iterations.pipeline import lockstep_tasks
from moefabric.workload.iterations.tasks import Task
from tests.chaos.traces import in_network
from tests.support.observers import observer

CHANGES: Final = 10
"""Reconfigurations of an iteration."""
FAULT_EVERY: Final = 3
"""Iterations between two faults."""
SERVERS: Final = ("s0", "s1", "s2", "s3")
COLLECTIVE_S: Final = 0.05
"""Wall seconds of a collective over one NIC."""
_SETTLE_NS: Final = 5_000_000
_SCALE: Final = 2000.0
_RATE_BPS: Final = 100e9


QUANTITIES: Final = ("rss_kb", "descriptors", "log_bytes")
"""What is sampled of each process; the log of the fabric process counts for all logs."""
Samples = dict[str, dict[str, "array[int]"]]
"""Values of each quantity of each process, one an iteration. Eight bytes each: the process that
keeps them is one of those that must not grow."""


@dataclass
class SoakReport:
    """What a soak has found.

    Attributes:
        reconfigurations: How many requests for circuits succeeded.
        faults: How many faults were injected.
        refused: Requests that were not made, as the last one was still under way: collectives
            follow each other without a pause. Their traffic takes the packet switch.
        failed: Requests that failed for another reason.
        lost_transfers: Transfers that did not arrive.
        corrupt: Transfers that arrived with other contents.
        lost_frames: Frames that entered the optical switch and never left it.
        latency_s: Model seconds of each successful request's control time.
        samples: What each process held at the end of each iteration.
        kernel_objects: Numbers of links, addresses, queues, filters and listening sockets in the
            fabric's networks after the first iteration and after the last.
    """

    reconfigurations: int = 0
    faults: int = 0
    refused: int = 0
    failed: int = 0
    lost_transfers: int = 0
    corrupt: int = 0
    lost_frames: int = 0
    latency_s: "array[float]" = field(default_factory=lambda: array("d"))
    samples: Samples = field(default_factory=dict)
    kernel_objects: list[dict[str, int]] = field(default_factory=list)

    @property
    def latency_drift(self) -> float:
        """How much the latency of the last third exceeds that of the first third.

        It is that of the fastest tenth: other work on the machine makes requests slower only.
        """
        third = len(self.latency_s) // 3
        if third < 10:
            return 0.0
        first, last = (
            statistics.quantiles(part, n=10)[0]
            for part in (self.latency_s[:third], self.latency_s[-third:])
        )
        return last / first - 1

    def growth(self, process: str, quantity: str) -> float:
        """Return by how much a quantity grew per 1,000 reconfigurations (Theil-Sen slope).

        The first third of the samples warms up caches and isn't counted.
        """
        values = self.samples[process][quantity]
        values = values[len(values) // 3 :]
        step = max(1, len(values) // 200)  # at most 20,000 pairs
        values = values[::step]
        slopes = [
            (values[b] - values[a]) / (b - a)
            for a in range(len(values))
            for b in range(a + 1, len(values))
        ]
        return statistics.median(slopes) / step * 1000 / CHANGES if slopes else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the report with the growth of each process."""
        growth = {
            process: {quantity: self.growth(process, quantity) for quantity in QUANTITIES}
            for process in self.samples
        }
        samples = {
            process: {quantity: list(values) for quantity, values in columns.items()}
            for process, columns in self.samples.items()
        }
        return {
            **vars(self),
            "samples": samples,
            "latency_s": list(self.latency_s),
            "latency_drift": self.latency_drift,
            "growth": growth,
        }


def soak_fabric(name: str) -> Fabric:
    """Return four servers with an optical and an electrical NIC each."""
    region = Region("r0", 0, SERVERS, Ocs("ocs0", 4, _SETTLE_NS))
    return Fabric(name, (region,), 8, 1, 1, _RATE_BPS, Eps(4), Scale(_SCALE))


def _demand(fabric: Fabric, pairs: Sequence[tuple[int, int]]) -> DemandMatrix:
    size = COLLECTIVE_S * fabric.nic_rate_bps / 8
    rows = [[size if (a, b) in pairs else size / 20 for b in range(4)] for a in range(4)]
    return DemandMatrix(
        SERVERS, [[0.0 if a == b else row[b] for b in range(4)] for a, row in enumerate(rows)]
    )


def soak_tasks(fabric: Fabric) -> Sequence[Task]:
    """Return the tasks of an iteration: collectives during which circuits change."""
    near, far = (
        _demand(fabric, [pair for a, b in ends for pair in ((a, b), (b, a))])
        for ends in (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    )
    work = [
        Collective("dispatch", "forward", layer, owed, Reconfigure("forward", layer, owed))
        for layer in range(CHANGES)
        for owed in [near if layer % 2 else far]
    ]
    return lockstep_tasks(tuple(work), ["r0"])


class _Faults:
    """Light that fails on a port in some iterations, and comes back in the next.

    Attributes:
        last: The last iteration, in which none fails.
        count: How many have failed.
    """

    def __init__(self, run_dir: RunDirectory) -> None:
        self._run_dir, self.last, self.count = run_dir, 0, 0
        self._broken: Failure | None = None

    def iteration_began(self, number: int) -> None:
        if self._broken is not None:
            failure_injection.clear(self._run_dir, self._broken)
            self._broken = None
        elif number % FAULT_EVERY == 1 and number < self.last:
            server = SERVERS[self.count % len(SERVERS)]
            self._broken = Failure(FailureKind.OCS_PORT, (f"{server}/o0",))
            failure_injection.inject(self._run_dir, self._broken)
            self.count += 1


def soak(name: str, reconfigurations: int, folder: Path) -> SoakReport:
    """Change circuits this many times under traffic on a fabric of this name.

    Args:
        name: Name of the fabric.
        reconfigurations: How many changes are made; those that are refused don't count.
        folder: Receives `soak.jsonl`, and `soak.json` with the report.
    """
    fabric = soak_fabric(name)
    path, samples, objects = folder / "soak.jsonl", Samples(), list[dict[str, int]]()
    with ExitStack() as undo:
        testbed = running_testbed(fabric, transport=PACED)
        _, fleet, controllers = undo.enter_context(testbed)
        run_dir = RunDirectory.of_fabric(name)
        journal = undo.enter_context(Journal(path))
        journal.append(
            HeaderLine(run_id="soak", experiment="soak", version="", manifest=Manifest(), spec={}),
            FabricLine(fabric="soak", policy="mixnet"),
        )
        monitor = undo.enter_context(closing(FailureMonitor(run_dir)))
        counters = undo.enter_context(port_counters(fabric))
        recorder = FabricRecorder(fabric, "soak", "mixnet", journal)
        faults = _Faults(run_dir)
        pids = {one["name"]: one["pid"] for one in lifecycle.inspect(name)["processes"]}
        pids |= {"fabric": _parent(pids["switches"]), "run": os.getpid()}
        samples |= {process: {quantity: array("q") for quantity in QUANTITIES} for process in pids}

        def take_samples() -> None:
            for process, pid in pids.items():
                for quantity, value in _sample(run_dir, process, pid).items():
                    samples[process][quantity].append(value)
            monitor.iteration_ended()
            if not objects:
                objects.append(_kernel_objects(run_dir, pids["fabric"]))
            if len(samples["run"]["rss_kb"]) % 50 == 0:
                _report(path, samples, faults.count, folder)

        executor = undo.enter_context(
            closing(
                Executor(
                    fabric,
                    MIXNET,
                    fleet,
                    controllers.under_policy("mixnet"),
                    CircuitSet(),
                    settings=RunSettings(keep_records=False),
                    instruments=Instruments(counters=counters),
                    observer=Observers(
                        recorder,
                        observer(
                            failure_logged=monitor.failure_logged,
                            iteration_began=faults.iteration_began,
                            iteration_ended=take_samples,
                        ),
                    ),
                )
            )
        )
        cpu = undo.enter_context(CpuSampler())
        recorder.executor, recorder.cpu, recorder.monitor = executor, cpu, monitor
        before, tasks = counters.read(), soak_tasks(fabric)
        first, job = 0, Job(0, JobShape(), fabric.regions)
        for iterations in _rounds(path, reconfigurations):
            faults.last = first + iterations - 1
            executor.run({job: lambda _n, _s: tasks}, iterations, first=first)
            first += iterations
        frames = (counters.read().frames - before.frames).sum(axis=0)
        recorder.finish(recorder.failures())
        objects.append(_kernel_objects(run_dir, pids["fabric"]))
    lost_frames = int(frames[INTO_OCS] - frames[OUT_OF_OCS])
    return _report(path, samples, faults.count, folder, lost_frames, objects)


def _rounds(path: Path, wanted: int) -> Iterator[int]:
    """Yield numbers of iterations until so many changes are made, or none is made any more."""
    made, before = 0, -1
    while before < made < wanted:
        yield -(-(wanted - made) // CHANGES)
        outcomes = JournalReader(path).outcomes("soak")
        changes = (change for outcome in outcomes for change in outcome.reconfigurations)
        before, made = made, sum(not change.error for change in changes)


def _report(
    path: Path,
    samples: Samples,
    faults: int,
    folder: Path,
    lost_frames: int = 0,
    kernel_objects: Sequence[dict[str, int]] = (),
) -> SoakReport:
    """Write the report by what the journal holds, and return it."""
    report = SoakReport(
        faults=faults, lost_frames=lost_frames, samples=samples, kernel_objects=list(kernel_objects)
    )
    for outcome in JournalReader(path).outcomes("soak"):
        integrity = outcome.measured.integrity
        report.lost_transfers += integrity.lost_transfers or 0
        report.corrupt += integrity.corrupt or 0
        for change in outcome.reconfigurations:
            if not change.error:
                report.latency_s.append(change.control_s or 0.0)
            elif change.error == UNDER_WAY:
                report.refused += 1
            else:
                report.failed += 1
    report.reconfigurations = len(report.latency_s)
    write_whole(folder / "soak.json", json.dumps(report.to_json(), indent=1) + "\n")
    return report


def _parent(pid: int) -> int:
    """Return the process that started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _kernel_objects(run_dir: RunDirectory, fabric: int) -> dict[str, int]:
    """Count what is in the networks of a fabric's process and of its nodes, by kind."""
    pids = fabric, *json.loads((run_dir.path / NODES).read_text()).values()
    networks = {
        str(path.readlink()): path for pid in pids for path in [Path(f"/proc/{pid}/ns/net")]
    }
    found = (trace for name, path in networks.items() for trace in in_network(name, [path]))
    return dict(Counter(trace.split()[0] for trace in found))


def _sample(run_dir: RunDirectory, process: str, pid: int) -> dict[str, int]:
    """Return what a process holds now."""
    proc = Path("/proc") / str(pid)
    pages = int((proc / "statm").read_text().split()[1])
    own, folder = run_dir.log_file(process), run_dir.log_file(process).parent
    logs = folder.iterdir() if process == "fabric" else [own]
    return {
        "rss_kb": pages * resource.getpagesize() // 1024,
        "descriptors": sum(1 for _ in (proc / "fd").iterdir()),
        "log_bytes": sum(log.stat().st_size for log in logs if log.exists()),
    }
