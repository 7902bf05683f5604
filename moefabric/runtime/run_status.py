"""State of a run under way: written by `moefabric run`, read by the dashboard and metrics."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moefabric.runtime.atomic_file import write_whole

LAST_ITERATIONS: Final = 50
"""Number of finished iterations that the state lists."""


class StatusPart(BaseModel):
    """Base of the objects of a run's state."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class ActivityStatus(StatusPart):
    """Base of what happens in one pass of one micro-batch through a layer."""

    kind: str
    """`dispatch`, `combine`, or a kind of transfer between regions or of computation."""
    direction: str
    """`forward` or `backward`."""
    layer: int | None
    """Number of the layer, from 0; null between layers."""
    micro_batch: int = 0
    """Number of the micro-batch, from 0."""


class OperationStatus(ActivityStatus):
    """The collective or transfer that began last."""

    region: str
    """Its region; `all` for regions in lockstep."""


class IterationStatus(StatusPart):
    """An iteration that has ended. Times are model seconds, sizes the model's bytes."""

    iteration: int
    """Number of the iteration, from 0."""
    measured_s: float
    """Duration."""
    predicted_s: float
    """Expected duration."""
    exposed_comm_s: float
    """Duration without computation."""
    bytes: int
    """Bytes of its collectives."""
    bytes_by_light: int
    """Bytes that arrived by circuits, as counted at ports."""
    bytes_by_eps: int
    """Bytes that arrived by packet switches, as counted at ports."""


class RunTotals(StatusPart):
    """Sums over the iterations of this fabric that have ended."""

    iterations: int = 0
    collectives: int = 0
    reconfigurations: int = 0
    bytes: int = 0
    bytes_by_light: int = 0
    bytes_by_eps: int = 0
    lost_transfers: int = 0
    corrupt: int = 0


class IntervalStatus(ActivityStatus):
    """An activity of a server, in model seconds from the start of its iteration."""

    server: str
    start_s: float
    end_s: float


class DemandStatus(StatusPart):
    """Bytes from the row's server to the column's."""

    servers: list[str]
    bytes: list[list[int]]


class RunStatus(StatusPart):
    """State of the run that uses a fabric."""

    run_id: str
    """Random name of the run."""
    experiment: str
    """Name of the experiment."""
    fabric: str
    """Name of the fabric in the experiment."""
    policy: str
    """Policy that chooses the circuits."""
    pid: int
    """Process of the run."""
    started: str
    """Start of the run (ISO 8601, UTC)."""
    journal: str | None = None
    """File to which results are appended; null without one."""
    iteration: int = 0
    """Number of the iteration that began last, from 0."""
    iterations: int = 0
    """Number of iterations of the fabric."""
    operation: OperationStatus | None = None
    """Collective or transfer that began last."""
    verdict: str = "pass"
    """Verdict on what has ended so far: `pass`, `degraded` or `invalid`."""
    reasons: list[str] = Field(default_factory=list)
    """Reasons for a verdict other than a pass."""
    done: Annotated[list[IterationStatus], Field(max_length=LAST_ITERATIONS)] = Field(
        default_factory=list
    )
    """The iterations that ended last."""
    totals: RunTotals = RunTotals()
    """Sums over all that have ended."""
    timeline: list[IntervalStatus] = Field(default_factory=list)
    """Activities in the iteration that ended last."""
    demand: DemandStatus | None = None
    """Demand of the last collective."""
    nic_bytes: dict[str, int] | None = None
    """Bytes that each NIC has sent since it was made, as last read; null if nobody counts."""


def write_run_status(file: Path, status: RunStatus) -> None:
    """Replace the state in a file; readers see the old one or the new one.

    Raises:
        OutputError: If the file can't be written.
    """
    write_whole(file, status.model_dump_json(), durable=False)


def read_run_status(file: Path) -> RunStatus | None:
    """Return the state in a file; None without a file, or if its contents aren't a run's state."""
    try:
        return RunStatus.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
