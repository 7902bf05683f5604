"""Records in a run's JSON: iterations, collectives, reconfigurations.

Times are model seconds and sizes are the model's bytes, except where a field says otherwise. A
figure that a run lacks is None.
"""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

Json = dict[str, Any]
"""A JSON object."""


_PYDANTIC_NAMES: Final = {name for name in dir(BaseModel) if not name.startswith("_")}


class ResultPart(BaseModel):
    """Base of every object of the run's JSON."""

    model_config = ConfigDict(extra="allow", frozen=True, validate_by_name=True, defer_build=True)

    def __dir__(self) -> list[str]:
        """Return the names of fields and methods without those of pydantic."""
        return sorted(set(super().__dir__()) - _PYDANTIC_NAMES)

    def to_json(self) -> Json:
        """Return the object as JSON types, without the fields that were never set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class PassPart(ResultPart):
    """Base of records of one pass of one micro-batch through a layer."""

    iteration: int = 0
    """Number of the iteration, from 0."""
    layer: int | None = None
    """Number of the layer, from 0; null between layers."""
    direction: Annotated[str, Field(validation_alias="pass", serialization_alias="pass")] = ""
    """`forward` or `backward`."""
    micro_batch: int = 0
    """Number of the micro-batch, from 0."""

    @property
    def backward(self) -> bool:
        """True in the backward pass."""
        return self.direction == "backward"


class IterationResult(ResultPart):
    """Result of one iteration of one job."""

    job: int = 0
    """Number of the job."""
    iteration: int = 0
    """Number of the iteration, from 0."""
    measured_s: float | None = None
    """Duration."""
    predicted_s: float | None = None
    """Predicted duration, from a simulation of all tasks and flows."""
    compute_s: float | None = None
    """Time of computation."""
    exposed_comm_s: float | None = None
    """Exposed communication: duration without computation."""
    skipped_s: float = 0.0
    """Time that the clock skipped because nothing happened in it."""
    lost_s: float = 0.0
    """Duration of the attempts that a failure ended."""
    harness_s: float = 0.0
    """Wall seconds of the emulation's own work between tasks, which no other figure includes: its
    orders to agents and their reports."""


class HybridResult(ResultPart):
    """The emulated and the modelled part of a cluster, and the accuracy of background flows."""

    emulated: list[str] = Field(default_factory=list)
    """Names of the emulated regions."""
    regions: int = 0
    """Regions of the cluster."""
    servers: int = 0
    """Servers of the cluster."""
    gpus: int = 0
    """GPUs of the cluster."""
    simulated_regions: int = 0
    """Regions in the model; each stands for as many others."""
    peers: list[str] = Field(default_factory=list)
    """Servers of modelled regions that stood in the fabric: peers of emulated servers, and senders
    and receivers of background flows."""
    background: str = "replayed"
    """`replayed`, `average` or `none`."""
    flows: int = 0
    """Background flows that were sent."""
    bytes: int = 0
    """Their bytes in the model."""
    counted_bytes: int | None = None
    """Their bytes as counted at the ports of their receivers; null if not counted."""
    rate_error_p50: float | None = None
    """Rate at those ports over that of the model, minus 1: the median of background transfers,
    weighted by their bytes."""
    rate_error_p5: float | None = None
    """5th percentile of that error: how far the latest flows fell behind the model."""
    remark: str = ""
    """Assumption of the model."""


class CollectiveResult(PassPart):
    """Result of one region's part of a collective, or of one transfer between regions."""

    region: str = ""
    """Region of the collective."""
    kind: str = ""
    """`dispatch`, `combine`, or a kind of transfer between regions."""
    phase: int = 0
    """Number of this phase of an all-to-all in phases (`collective` of the fabric), from 0."""
    phases: int = 1
    """Number of its phases."""
    pause_s: float = 0.0
    """Time around it without its packets: the exchange of token counts, gathering and scattering
    inside servers, the barrier between phases, and the computation of the phases."""
    measured_s: float
    """From the first byte sent to the last byte received."""
    predicted_s: float | None = None
    """Predicted completion time, from a simulation of all flows."""
    planned_s: float | None = None
    """Completion time in the fluid model, by which flows are paced: a bound for any transport."""
    reported_error: Annotated[float | None, Field(alias="error")] = None
    """Measured over predicted completion time, minus 1."""
    waited_s: float | None = None
    """Wait for circuits before the first byte."""
    predicted_wait_s: float | None = None
    """Predicted wait for light."""
    moved_now: bool = False
    """Whether new circuits were used while the collective was under way."""
    bytes: int = 0
    """Bytes sent over the network."""
    bytes_by_light: int | None = None
    """Bytes counted at the ports of the OCS by which they left it; null if not counted."""
    bytes_by_eps: int | None = None
    """Bytes counted at the electrical NICs that received them; null if not counted.

    Transfers that share an electrical NIC at the same time share its bytes in proportion to what
    each was owed and did not receive by light.
    """
    bytes_planned_by_light: int = 0
    """Bytes planned over circuits."""
    bytes_planned_by_eps: int = 0
    """Bytes planned over the EPS."""
    bytes_planned_by_spines: int = 0
    """Part of these whose routes cross a spine."""
    misrouted: list[str] = Field(default_factory=list)
    """Flows and ports whose counted bytes contradict the plan; they invalidate the run."""
    moved_by_failure: list[str] = Field(default_factory=list)
    """Such flows and ports while a failure was present for which nobody had planned."""
    dark_s: float = 0.0
    """Dark time of its circuits."""
    retransmits: int = 0
    """TCP segments sent again."""
    cpu_steal: float = 0.0
    """Share of the machine's CPU that the hypervisor gave to other machines meanwhile."""
    harness_s: float = 0.0
    """Wall seconds by which the first byte was later than in the modelled cluster, also because
    earlier tasks were late."""
    failures: list[int] = Field(default_factory=list)
    """Indices of the failures that disturbed the collective."""

    @property
    def error(self) -> float | None:
        """Measured over predicted completion time, minus 1."""
        if self.reported_error is not None or not self.predicted_s:
            return self.reported_error
        return self.measured_s / self.predicted_s - 1


class FlowResult(PassPart):
    """Flow of a collective or of a transfer between regions."""

    region: str = ""
    """Region of the collective."""
    kind: str = ""
    """`dispatch`, `combine`, or a kind of transfer between regions."""
    phase: int = 0
    """Number of the phase of an all-to-all, from 0."""
    src: str
    """Sending server."""
    dst: str
    """Receiving server."""
    path: str
    """NIC or relay tree by which the flow left its server, such as `o1`, `e0` or `r3`."""
    bytes: int
    """Bytes of the flow."""
    start_s: float
    """First byte sent, in model seconds from the first byte of the collective."""
    end_s: float
    """Last byte received, in model seconds from the first byte of the collective."""
    predicted_end_s: float
    """Predicted end, from a simulation of all flows."""
    retransmits: int = 0
    """TCP segments sent again."""


class ReconfigurationResult(PassPart):
    """Reconfiguration of one region; the phases add up to `total_s`, all in model seconds."""

    region: str = ""
    """Region whose circuits change."""
    reason: str = ""
    """Cause of the reconfiguration."""
    circuits_before: list[str] | None = None
    """Circuits before, such as `s0/o0~s1/o0`."""
    circuits_after: list[str] | None = None
    """Circuits after."""
    circuits_dark: list[str] = Field(default_factory=list)
    """Circuits that were commanded but carry no light."""
    error: str = ""
    """Reason for which the controller did not change the circuits as requested."""
    demand_s: float | None = None
    """Transfer of the demand to the controller, and of its reply."""
    plan_s: float | None = None
    """Planning of circuits."""
    divert_s: float | None = None
    """Diversion of traffic to the EPS."""
    command_s: float | None = None
    """Command to the OCS."""
    settle_s: float | None = None
    """Settling of the light."""
    verify_s: float | None = None
    """Verification of the light."""
    admit_s: float | None = None
    """Admission of traffic to the new circuits."""
    total_s: float | None = None
    """All phases together."""
    control_s: float | None = None
    """All phases but settling: the control plane's own time."""


class ControlTime(ResultPart):
    """Control time of a fabric's requests for circuits: their phases without settling."""

    count: int = 0
    """Number of requests that changed circuits."""
    p50_s: float | None = None
    """Their median control time."""
    p95_s: float | None = None
    """The 95th percentile of their control times."""
    unchanged_count: int = 0
    """Number of requests that left the circuits as they were."""
    unchanged_p50_s: float | None = None
    """Their median control time."""


class ServerInterval(PassPart):
    """Interval of one server's time, in model seconds from the start of its iteration."""

    server: str
    """Name of the server."""
    kind: str = "other"
    """Activity, such as `attention` or `dispatch`."""
    start_s: float
    """Start of the interval."""
    end_s: float
    """End of the interval."""


class FailureResult(ResultPart):
    """Failure of components; detection, recovery and clearing count from its injection."""

    kind: str = ""
    """Kind of component that failed."""
    what: list[str] = Field(default_factory=list)
    """Names of the components."""
    iteration: int | None = None
    """Iteration in which it was injected; null if it was after the last."""
    injected_s: float | None = None
    """Seconds after the start of the iteration."""
    detected_s: float | None = None
    """Detection; null if never."""
    recovered_s: float | None = None
    """Recovery; null if never."""
    cleared_s: float | None = None
    """End of the failure; null if never."""
    detected_by: str = ""
    """Who detected it."""
    action: str = ""
    """Action that let the job go on."""
    slow_down: float | None = None
    """Duration of the iteration relative to that of healthy ones, minus 1."""
    slow_down_after: float | None = None
    """The same ratio for the later iterations during which the failure lasted."""
    ok: bool = False
    """Whether the job recovered."""
    marks: dict[str, float] = Field(default_factory=dict)
    """Model seconds in the iteration at which it was injected, detected and recovered."""
    measured_s: float | None = None
    """Duration of its iteration, in model seconds."""
    lanes: list[ServerInterval] = Field(default_factory=list)
    """Activity of the servers concerned in that iteration."""

    @property
    def name(self) -> str:
        """Kind and names of what failed, such as `nic s0/e0`."""
        return " ".join([self.kind, *self.what])


class DemandPrediction(ResultPart):
    """Quality of the predictions of the first dispatches' demand."""

    guessed: int = 0
    """Number of predicted dispatches."""
    unguessed: int = 0
    """Number of dispatches without prediction."""
    reason: str = ""
    """Why dispatches have no prediction."""
    top_k: int = 0
    """Number of experts compared."""
    top_k_hits: float | None = None
    """Share of the `top_k` busiest experts that were predicted."""
    unchanged_hits: float | None = None
    """The same share if the layer before is taken as the prediction."""
    random_hits: float | None = None
    """The same share of experts drawn at random."""
    wrong_guess_s: float | None = None
    """Mean extra time of dispatches on circuits for a predicted demand."""
    worst_guess_s: float | None = None
    """Largest extra time."""


class FirstAllToAll(ResultPart):
    """Medians over the first all-to-all of each layer, whose demand is known only at its start."""

    policy: str | None = None
    """`dispatch_light` of the fabric."""
    count: int = 0
    """Number of first all-to-alls."""
    exposed_s: float | None = None
    """From the end of attention to the last byte."""
    predicted_exposed_s: float | None = None
    """Predicted exposed time."""
    waited_s: float | None = None
    """Part of the exposed time before the first byte."""
    predicted_wait_s: float | None = None
    """Predicted wait."""
    ideal_s: float | None = None
    """Completion time in the fluid model on the circuits and in the split for the demand itself."""
    moved_now: int = 0
    """Number of all-to-alls that used new circuits while under way."""
    foresight: DemandPrediction | None = None
    """Quality of the predictions; only with `predict`."""

    @property
    def error(self) -> float | None:
        """Measured over predicted exposed time, minus 1."""
        if not self.exposed_s or not self.predicted_exposed_s:
            return None
        return self.exposed_s / self.predicted_exposed_s - 1


class SpineTraffic(ResultPart):
    """Bytes between the leaves of the EPS, of all collectives and transfers together."""

    bytes: int
    """Bytes whose routes cross a spine."""
    share: float
    """These as a share of all bytes sent, over circuits and EPS."""
    counted_bytes: int | None = None
    """Payload that left the leaves' ports to spines, counted there; null if not counted."""


class DroppingPort(ResultPart):
    """A port whose queue dropped packets."""

    port: str
    """A NIC (`s0/e0`), or a switch port and what it leads to (`leaf0 to s0/e0`)."""
    packets: int
    """Packets that left the queue."""
    drops: int
    """Packets that found no room in the queue."""


class QueueDrops(ResultPart):
    """Packets that the queues of NICs and switch ports dropped."""

    limit: str
    """Room of each queue."""
    packets: int
    """Packets that left all queues."""
    drops: int
    """Packets that all queues dropped."""
    ports: list[DroppingPort]
    """Ports that dropped packets, the worst first."""


class LinkLateness(ResultPart):
    """Lateness of the relay of programmed links, in wall time.

    Percentiles are rounded up to 10 us.
    """

    frames: int
    """Number of packets."""
    p50_ns: int
    """Median in nanoseconds."""
    p99_ns: int
    """99th percentile in nanoseconds."""
    max_ns: int
    """Largest lateness in nanoseconds."""
    overflows: int
    """Packets that were lost because the relay was too late."""


class TrainingLoss(ResultPart):
    """The loss of an iteration of a program that trains."""

    iteration: int = 0
    """Number of the iteration, from 0."""
    model_s: float = 0.0
    """End of the iteration, from the start of the first one, with all that was lost before."""
    loss: float = 0.0
    """The loss."""
    text: str = ""
    """The loss as the program printed it."""


class TrainingRestart(ResultPart):
    """All ranks started again after some had ended."""

    iteration: int = 0
    """Iteration that was under way."""
    resumed: int = 0
    """Iteration that ran next, from the last checkpoint."""
    reason: str = ""
    """Which ranks ended, and why."""
    lost_s: float = 0.0
    """Duration of the iterations that were run again."""


class RankComputation(ResultPart):
    """Computation of the program's processes between all-to-alls, which stands for the model's."""

    count: int = 0
    """Number of computations of all ranks together."""
    late: int = 0
    """Number of them in which a process took longer than the model's computation, dilated. The run
    waits for it, at no model time."""
    worst_rank: int | None = None
    """Rank that was latest."""
    worst_wall_s: float | None = None
    """Its wall seconds."""
    worst_modelled_wall_s: float | None = None
    """Wall seconds of the model's computation."""


class TrainingResult(ResultPart):
    """Losses and choices of experts of a program that trained on a fabric."""

    program: str = ""
    """File of the program."""
    compute: str = "modelled"
    """`compute` of the experiment."""
    byte_scale: float = 1.0
    """Bytes of the full-size model that a byte of the program stands for."""
    losses: list[TrainingLoss] = Field(default_factory=list)
    """Loss of every iteration."""
    tokens: list[list[list[list[int]]]] = Field(default_factory=list)
    """Tokens that ranks sent to experts: by iteration, layer, rank and expert."""
    computation: RankComputation = RankComputation()
    """Computation of the program's processes."""
    restarts: list[TrainingRestart] = Field(default_factory=list)
    """Restarts from checkpoints."""
