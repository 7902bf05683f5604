"""Runs: what was seen of iterations, collectives and reconfigurations, on the wall's clock; and the picture of it, server by server."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from moefabric.circuits import CircuitSet
from moefabric.failures import Told, Window
from moefabric.flows import Flow
from moefabric.fluid import Prediction
from moefabric.iteration import Collective, Reconfigure
from moefabric.records import FlowRecord, Phases
from moefabric.schedule.tasks import AllReduce, Transfer


@dataclass(frozen=True)
class Moved:
    """A reconfiguration as the controller tells it."""

    before: CircuitSet
    after: CircuitSet
    phases: Phases
    dark: CircuitSet = field(default_factory=CircuitSet)
    """Asked for, and without light: their pairs are on the EPS."""
    why: str = ""
    """Why the controller didn't do what it was asked for, where it didn't; then `after` is what traffic may use."""


@dataclass(frozen=True)
class CollectiveRun:
    """One region's part of a collective as it went. Times in wall nanoseconds, from the first byte sent to the last one received; prediction in model seconds.

    `stolen` is the share of the machine's CPU that a hypervisor gave to others meanwhile. `ready_ns` is when it could have started, had it not waited for
    light or to be told (0: it isn't known); `expected_wait_s` the model seconds that its light was expected to need after that. `moved_now` says that light
    moved, and was used, while it went on.
    """

    iteration: int
    operation: Collective | Transfer | AllReduce
    prediction: Prediction
    planned: tuple[Flow, ...]
    records: tuple[FlowRecord, ...]
    dark_ns: int
    stolen: float = 0.0
    region: str = "r0"
    micro_batch: int = 0
    ready_ns: int = 0
    expected_wait_s: float = 0.0
    moved_now: bool = False

    @property
    def waited_ns(self) -> int:
        """From when it could have started to its first byte."""
        return max(0, self.start_ns - self.ready_ns) if self.ready_ns else 0

    @property
    def start_ns(self) -> int:
        """When the first byte was sent."""
        return min(record.first_sent_ns for record in self.records)

    @property
    def end_ns(self) -> int:
        """When the last byte was received."""
        return max(record.last_received_ns for record in self.records)


@dataclass(frozen=True)
class ReconfigurationRun:
    """A region's reconfiguration as it went."""

    iteration: int
    operation: Reconfigure
    moved: Moved
    start_ns: int
    end_ns: int
    region: str = "r0"
    micro_batch: int = 0
    why: str = ""
    """Why its controller didn't do it, where it didn't: the region's traffic is on the EPS."""


@dataclass(frozen=True)
class Span:
    """A stretch of one server's time, for the picture."""

    server: str
    kind: str
    direction: str
    layer: int | None
    start_ns: int
    end_ns: int
    micro_batch: int = 0


@dataclass(frozen=True)
class Suffered:
    """The failures of a replay and its iterations, on the wall's clock; `wall_ns` and `shown_ns` lead from the replay's clock there and back."""

    failures: tuple[Told, ...] = ()
    windows: tuple[Window, ...] = ()
    wall_ns: Callable[[int], int] = int
    shown_ns: Callable[[int], int] = int
    planned_ns: tuple[int, ...] = ()
    """When light was planned for a demand, by regions whose controllers answered."""

    reopened_ns: tuple[int, ...] = ()
    """Until when connections that were opened again, in iterations that started anew, carried their first bytes."""

    def through(self, runs: Iterable["IterationRun"]) -> "Suffered":
        """The same, with the light that was planned in these iterations."""
        listed = list(runs)
        moved = (each for run in listed for each in run.reconfigurations if not each.why)
        anew = [run for run in listed if run.lost_ns and run.collectives]
        return replace(
            self,
            planned_ns=tuple(sorted(self.wall_ns(each.end_ns) for each in moved)),
            reopened_ns=tuple(self.wall_ns(min(c.end_ns for c in run.collectives)) for run in anew),
        )

    def disturbed(self, run: CollectiveRun) -> list[int]:
        """Which failures a collective felt without having been planned with them in mind."""
        start, end = self.wall_ns(run.start_ns), self.wall_ns(run.end_ns)
        planned, reopened = self.planned_ns, self.reopened_ns
        return [n for n, each in enumerate(self.failures) if each.disturbs(start, end, planned, reopened)]


@dataclass
class IterationRun:
    """One iteration as it went."""

    number: int
    start_ns: int
    end_ns: int = 0
    compute_ns: int = 0
    skipped_ns: int = 0
    collectives: list[CollectiveRun] = field(default_factory=list)
    reconfigurations: list[ReconfigurationRun] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    transfers: list[CollectiveRun] = field(default_factory=list)
    """What regions sent each other: activations and gradients of pipeline stages, all-reduces of replicas."""
    job: int = 0
    """Which of the jobs side by side."""
    stood_in: bool = False
    """Whether some worked in others' places, so that it isn't the iteration that others are."""
    retried: int = 0
    """Transfers that were under way when servers or GPUs were lost, and had to be done again."""
    lost_ns: int = 0
    """What attempts took that came to nothing, until the last one began."""
    predicted_s: float | None = None
    """What the same tasks last in the fluid simulation, where they were simulated."""
