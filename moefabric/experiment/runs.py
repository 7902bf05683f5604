"""Runs: what was seen of iterations, collectives and reconfigurations, on the wall's clock; and the picture of it, server by server."""

from dataclasses import dataclass, field

from moefabric.circuits import CircuitSet
from moefabric.flows import Flow
from moefabric.fluid import Prediction
from moefabric.iteration import Collective, Reconfigure
from moefabric.records import FlowRecord, Phases


@dataclass(frozen=True)
class Moved:
    """A reconfiguration as the controller tells it."""

    before: CircuitSet
    after: CircuitSet
    phases: Phases
    dark: CircuitSet = field(default_factory=CircuitSet)
    """Asked for, and without light: their pairs are on the EPS."""


@dataclass(frozen=True)
class CollectiveRun:
    """One region's part of a collective as it went. Times in wall nanoseconds, from the first byte sent to the last one received; prediction in model seconds.

    `stolen` is the share of the machine's CPU that a hypervisor gave to others meanwhile.
    """

    iteration: int
    operation: Collective
    prediction: Prediction
    planned: tuple[Flow, ...]
    records: tuple[FlowRecord, ...]
    dark_ns: int
    stolen: float = 0.0
    region: str = "r0"

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


@dataclass(frozen=True)
class Span:
    """A stretch of one server's time, for the picture."""

    server: str
    kind: str
    direction: str
    layer: int
    start_ns: int
    end_ns: int


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
