"""Writes the state of a run for dashboard and metrics, a few times a second at most."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import OutputError
from moefabric.execution.observer import RunObserver
from moefabric.results.model import FidelityResult
from moefabric.results.verdict.iteration_outcome import IterationOutcome
from moefabric.runtime.run_status import (
    LAST_ITERATIONS,
    DemandStatus,
    IntervalStatus,
    IterationStatus,
    OperationStatus,
    RunStatus,
    RunTotals,
    write_run_status,
)
from moefabric.workload.iterations.iteration import Collective
from moefabric.workload.iterations.tasks import Sent, Task

_EVERY_S: Final = 0.2
"""Least time between two writes."""
_BUSIEST_SHARE: Final = 0.004
"""Share of a core that writes may take; more costly ones come less often."""


class RunStatusWriter(RunObserver):
    """Context in which a thread writes the state of a run to a file, and removes it at the end.

    The run only takes note of what changed. A state that can't be written is lost: the run goes on.

    Args:
        file: The file.
        status: The state before the first iteration.
    """

    def __init__(self, file: Path, status: RunStatus) -> None:
        self._file, self._status = file, status
        self._task: Task | None = None
        self._demand: DemandMatrix | None = None
        self._changed, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write, name="run-status", daemon=True)

    def __enter__(self) -> Self:
        self._changed.set()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._changed.set()
        self._thread.join()
        with suppress(OSError):
            self._file.unlink()

    def transfer_ordered(self, task: Task) -> None:
        """Take note of a collective or transfer whose flows were ordered."""
        self._task = task
        if isinstance(task.work, Collective):
            self._demand = task.work.demand
        self._changed.set()

    def iteration_began(self, number: int) -> None:
        """Take note of an iteration."""
        self._update(iteration=number)

    def add_outcome(
        self,
        outcome: IterationOutcome,
        fidelity: FidelityResult | None,
        nic_bytes: dict[str, int] | None,
    ) -> None:
        """Take note of an iteration's outcome.

        Args:
            outcome: The outcome.
            fidelity: The verdict on all iterations so far; None for the last known one.
            nic_bytes: Bytes that each NIC has sent; None if nobody counts.
        """
        own, totals, sent = outcome.result, self._status.totals, outcome.collectives
        status = IterationStatus(
            iteration=own.iteration,
            measured_s=own.measured_s or 0.0,
            predicted_s=own.predicted_s or 0.0,
            exposed_comm_s=own.exposed_comm_s or 0.0,
            bytes=sum(one.bytes for one in sent),
            bytes_by_light=sum(one.bytes_by_light or 0 for one in sent),
            bytes_by_eps=sum(one.bytes_by_eps or 0 for one in sent),
        )
        integrity, verdict = outcome.measured.integrity, dict[str, Any]()
        added = RunTotals(
            iterations=1,
            collectives=len(sent),
            reconfigurations=len(outcome.reconfigurations),
            bytes=status.bytes,
            bytes_by_light=status.bytes_by_light,
            bytes_by_eps=status.bytes_by_eps,
            lost_transfers=integrity.lost_transfers or 0,
            corrupt=integrity.corrupt or 0,
        )
        if fidelity is not None:
            verdict = {"verdict": str(fidelity.verdict), "reasons": fidelity.reasons}
        self._update(
            done=[*self._status.done, status][-LAST_ITERATIONS:],
            totals=RunTotals(**{name: getattr(totals, name) + count for name, count in added}),
            timeline=[
                IntervalStatus.model_validate(one, from_attributes=True) for one in outcome.timeline
            ],
            nic_bytes=nic_bytes,
            **verdict,
        )

    def _update(self, **changes: Any) -> None:
        self._status = self._status.model_copy(update=changes)
        self._changed.set()

    def _write(self) -> None:
        pause_s = _EVERY_S
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            began_s = time.thread_time()
            with suppress(OutputError):
                write_run_status(self._file, self._present())
            pause_s = max(_EVERY_S, (time.thread_time() - began_s) / _BUSIEST_SHARE)
            self._closing.wait(pause_s)

    def _present(self) -> RunStatus:
        update: dict[str, Any] = {}
        if (task := self._task) is not None:
            work = task.work
            assert isinstance(work, Sent)
            update["operation"] = OperationStatus(
                kind=work.kind,
                direction=work.direction,
                layer=work.layer,
                region=task.regions[0] if len(task.regions) == 1 else "all",
                micro_batch=task.micro_batch,
            )
        if (demand := self._demand) is not None:
            sizes = demand.array.round().astype(int).tolist()
            update["demand"] = DemandStatus(servers=list(demand.servers), bytes=sizes)
        return self._status.model_copy(update=update)
