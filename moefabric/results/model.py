"""Data model of a run's JSON, written by `run --json` and read by the report.

`docs/schemas/run.schema.json` is generated from this model. Times are model seconds and sizes are
the model's bytes, except where a field says otherwise. A figure that a run lacks is None or absent,
so that the report can show a run that went wrong; a value of the wrong type is an error. Unknown
fields are kept: later versions may add some.
"""

import logging
import re
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from moefabric.config.file_kinds import refuse_other_kind
from moefabric.core.errors import SpecError, UnreadableError
from moefabric.results import parts as result_parts
from moefabric.results.parts import Json

log = logging.getLogger(__name__)

CPU_STEAL_LIMIT: Final = 0.03
"""CPU steal share above which a collective is reported but excluded from the verdict."""
BASELINE_POLICY = "eps"
"""Policy of the fabrics without circuits, against which the others are compared."""


class Verdict(StrEnum):
    """Trust in a run's measurements, from best to worst."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    DEGRADED = "degraded"
    INVALID = "invalid"


class ScaleFactors(result_parts.ResultPart):
    """Divisor of rates and bytes, and factor by which times are stretched.

    Fabrics of other wiring may have other factors (`wiring` of each result): these are those of the
    fabric that is stretched most.
    """

    bytes: float
    """Divisor of rates and bytes, after dilation."""
    dilation: float
    """Factor by which times are stretched."""
    frame_s: float | None = None
    """Longest wall time of a frame of more than eight packets on a link."""
    bound: str | None = None
    """What kept the dilation from being less, if the scale was chosen for the machine."""


class HostRecord(result_parts.ResultPart):
    """A real server of a fabric, and its clock. Times are wall seconds."""

    fabric: str
    """Name of the fabric."""
    server: str
    """Name of the server in the fabric."""
    host: str
    """The host as SSH names it."""
    address: str = ""
    """Address that its traffic uses."""
    python: str = ""
    """Version of its Python."""
    clock_offset_s: float = 0.0
    """Its CLOCK_MONOTONIC minus that of the machine that ran the experiment, at the start."""
    clock_uncertainty_s: float = 0.0
    """Bound of the error of the offset, half the round trip of the best measurement; 0 if both
    clocks are one."""
    clock_drift_s: float | None = None
    """Change of the offset until the end; null if it wasn't measured again."""
    lost: str = ""
    """Why the host was lost; empty if it wasn't."""


class Provenance(result_parts.ResultPart):
    """Source and inputs of a run, so that it can be repeated. It names no machine and no user."""

    commit: str | None = None
    """Commit of the source; null if the source is no checkout of git."""
    modified: bool = False
    """Whether measured packages differed from the commit."""
    measured: list[str] = Field(default_factory=list)
    """Folders of the source on which the figures depend."""
    command: str = ""
    """Command that made the result."""
    cpu: str = ""
    """Model of the CPU."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the experiment's file, of the model, of each file that it names, and of the code
    of plug-ins."""
    remark: str = ""
    """What else must be known of the figures' origin."""


class InputDigest(result_parts.ResultPart):
    """An input of a run, by its digest."""

    key: str
    """Key of the experiment that names the file: `gating.trace`; `experiment` for all keys, `code
    MODULE` for a module of a plug-in."""
    file: str
    """Name of the file without its folder, and of an installed module the package and its version;
    the experiment's name for all keys."""
    sha256: str
    """SHA-256 of the file, as `sha256sum` prints it. Of a folder, that of the lines `DIGEST  NAME`
    of its files; of the experiment, that of all keys but the default ones."""


class Manifest(result_parts.ResultPart):
    """Circumstances of a run."""

    kernel: str | None = None
    """Release of the Linux kernel."""
    datapath: str | None = None
    """Datapath of the packet switches; `none` on real hosts."""
    crossbar: str | None = None
    """Crossbar of the emulated OCS; `none` on real hosts."""
    transport: str | None = None
    """`paced` flows or plain `tcp`."""
    seed: int | None = None
    """Seed of everything random."""
    started: str | None = None
    """Start of the run (ISO 8601, UTC)."""
    host: str | None = None
    """Name of the machine."""
    scale: ScaleFactors | None = None
    """Scale of the emulation."""
    noise: float | None = None
    """Noise of the gating."""
    congestion_control: str | None = None
    """TCP congestion control of the agents; paced ones of an emulated fabric have an open window
    instead, where the kernel takes congestion controls in BPF."""
    cores: int | None = None
    """Number of CPU cores."""
    hosts: list[HostRecord] | None = None
    """Real servers; null without any."""
    emulated_regions: list[str] | None = None
    """Regions that were emulated while all others were modelled; null if all were emulated."""
    inputs: list[InputDigest] | None = None
    """The experiment and the files that it names; null if they are unknown."""
    resumed: list[str] = Field(default_factory=list)
    """When the run went on after it was stopped (ISO 8601, UTC)."""
    provenance: Provenance | None = None
    """Source and inputs of the run; null if it was built from values in Python."""


class EpsSummary(result_parts.ResultPart):
    """Electrical packet switches of a fabric."""

    kind: str = ""
    """Kind of the topology."""
    leaves: dict[str, list[str]] = Field(default_factory=dict)
    """NICs that end on each leaf."""
    spines: list[str] = Field(default_factory=list)
    """Names of the spines."""
    oversubscription: float = 1.0
    """Capacity of a leaf's server ports divided by that of its uplinks."""
    uplink_rate_bps: float | None = None
    """Rate of each link between a leaf and a spine."""


class WiringSummary(result_parts.ResultPart):
    """Servers, NICs and switches of a fabric, and how their rates are scaled."""

    servers: int = 0
    """Number of servers, without backup servers."""
    regions: dict[str, list[str]] = Field(default_factory=dict)
    """Servers of each region."""
    backups: list[str] = Field(default_factory=list)
    """Backup servers."""
    gpus_per_server: int = 0
    """GPUs of each server."""
    optical_nics: int = 0
    """Optical NICs of each server."""
    electrical_nics: int = 0
    """Electrical NICs of each server."""
    kind: str = ""
    """Description of the wiring."""
    panel: bool = False
    """Whether the optical NICs end on a patch panel instead of an OCS."""
    eps: EpsSummary | None = None
    """Electrical packet switches; null without any."""
    nic_rate_bps: float | None = None
    """Rate of a NIC in the model."""
    own_nic_rates_bps: dict[str, float] = Field(default_factory=dict)
    """Rates in the model of the NICs of servers whose NICs have another rate, by server."""
    emulated_nic_rate_bps: float | None = None
    """Rate of an emulated NIC."""
    bytes_scale: float | None = None
    """Divisor of rates and bytes."""
    dilation: float | None = None
    """Factor by which times are stretched."""
    mtu: int | None = None
    """MTU of the NICs in bytes."""

    @property
    def oversubscription(self) -> float:
        """Oversubscription of the EPS; 1 without an EPS."""
        return self.eps.oversubscription if self.eps else 1.0


class NetworkCost(result_parts.ResultPart):
    """Cost of a fabric's network in USD, and iterations per second for each dollar."""

    network_usd: float | None = None
    """List price of the network as a part of one of the MixNet paper's size; null if unknown."""
    performance_per_dollar: float | None = None
    """Iterations per second for each dollar."""
    perf_per_dollar_vs_eps: float | None = None
    """Performance per dollar relative to the baseline's."""
    why: str = ""
    """Reason for a missing price."""


class Integrity(result_parts.ResultPart):
    """Conservation of bytes and transfers."""

    bytes_sent: int | None = None
    """Emulated bytes sent."""
    bytes_received: int | None = None
    """Emulated bytes received intact."""
    corrupt: int | None = None
    """Transfers that arrived with other contents."""
    lost_transfers: int | None = None
    """Transfers that did not arrive."""
    retried_transfers: int | None = None
    """Transfers repeated after a failure."""


class ErrorSummary(result_parts.ResultPart):
    """Distribution of relative errors: measured / predicted - 1, with its sign."""

    n: int
    """Number of samples."""
    min: float
    """Least error."""
    p5: float
    """5th percentile."""
    p50: float
    """Median: the systematic bias."""
    p95: float
    """95th percentile."""
    max: float
    """Greatest error."""
    abs_p50: float
    """Median of the absolute errors."""
    abs_p95: float
    """95th percentile of the absolute errors."""
    quantiles: list[float] = Field(default_factory=list)
    """Errors at equal steps from the 0th to the 100th percentile: the distribution as a curve."""


class VerdictFinding(result_parts.ResultPart):
    """A reason for a verdict other than a pass."""

    verdict: Verdict
    """The verdict by this reason alone."""
    text: str
    """The reason in words, with its culprit."""
    value: float | None = None
    """The measured value, if it is one."""
    limit: float | None = None
    """The bound that the value exceeds."""
    remedy: str = ""
    """What to change, with key and number; empty if nothing but the fault's cause helps."""
    settings: dict[str, float] = Field(default_factory=dict)
    """Numbers that the remedy names, by their keys in the experiment, such as `scale.dilation`."""


class FidelityResult(result_parts.ResultPart):
    """Verdict with its reasons and the figures on which it rests."""

    verdict: Verdict
    """Verdict on the fabric's measurements."""
    reasons: list[str] = Field(default_factory=list)
    """Reasons for a verdict other than a pass, in words."""
    findings: list[VerdictFinding] = Field(default_factory=list)
    """The same reasons, each with its own verdict, figures and remedy."""
    link_rate_error_p95: float | None = None
    """Absolute error of full links' goodput, 95th percentile."""
    cpu_idle_min: float | None = None
    """Least idle share of the CPU during collectives."""
    completion_error_p50: float | None = None
    """Median absolute error of the collectives' completion times."""
    completion_error_p95: float | None = None
    """Absolute error of the collectives' completion times, 95th percentile."""
    completion_errors: dict[str, ErrorSummary] = Field(default_factory=dict)
    """Signed errors by kind: `flow`, `collective`, `iteration`, `transfer`, `all-reduce`."""
    start_lateness_p95: float | None = None
    """Time between the arrivals of the first and of the last sender's first bytes as a share of the
    collective, 95th percentile."""
    disturbed: float = 0.0
    """Share of collectives that aren't judged: failures or other machines disturbed them."""

    @property
    def remedies(self) -> list[str]:
        """Changes of the run that would improve its verdict, without those that others contain."""
        all_remedies = dict.fromkeys(one.remedy for one in self.findings if one.remedy)
        others = [one for one in all_remedies if any(one in other != one for other in all_remedies)]
        return [one for one in all_remedies if one not in others]

    @property
    def in_short(self) -> str:
        """The verdict, the first of the reasons that decide it, and the number of the others."""
        deciding = [one.text for one in self.explanations if one.verdict == self.verdict][:1]
        more = len(self.explanations) - len(deciding)
        others = [f"and {more} more reason{'s' * (more > 1)}"] if more else []
        return "; ".join([self.verdict, *deciding, *others])

    @property
    def explanations(self) -> list[VerdictFinding]:
        """The findings; for a document that has none, its reasons with the verdict on all."""
        if len(self.findings) == len(self.reasons):
            return self.findings
        return [VerdictFinding(verdict=self.verdict, text=reason) for reason in self.reasons]

    @model_validator(mode="before")
    @classmethod
    def _invalidate_unknown_verdict(cls, document: Any) -> Any:
        if not isinstance(document, dict) or document.get("verdict") in set(Verdict):
            return document
        verdict = document.get("verdict")
        reason = f"the run's verdict is unknown: {verdict}" if verdict else "the run has no verdict"
        reasons = [reason, *(document.get("reasons") or ())]
        return {**document, "verdict": Verdict.INVALID, "reasons": reasons}


class PipelineShape(result_parts.ResultPart):
    """Pipeline stages, replicas and micro-batches of a job."""

    pp: int = 1
    """Pipeline stages."""
    dp: int = 1
    """Replicas."""
    micro_batches: int = 1
    """Micro-batches of an iteration."""


class BaselineRatios(result_parts.ResultPart):
    """Median ratio of the all-to-alls' completion times to those of the baseline."""

    measured_vs_eps: float | None = None
    """Ratio of measured times."""
    predicted_vs_eps: float | None = None
    """Ratio of predicted times."""


def _circuit_ends(circuit: Any) -> Any:
    return circuit.split("~") if isinstance(circuit, str) else circuit


CircuitEnds = Annotated[tuple[str, str], BeforeValidator(_circuit_ends)]
"""NICs at both ends of a circuit: `["s0/o0", "s3/o2"]`; `s0/o0~s3/o2` is read, too."""


class FabricEntry(result_parts.ResultPart):
    """Fabric of an experiment under a policy, with the fields that result and prediction share."""

    fabric: str = "unnamed"
    """Name of the fabric in the experiment."""
    policy: str = ""
    """Policy that chose the circuits."""
    split_demand: str = "known"
    """`split_demand` of the fabric."""
    demand_error: float = 0.0
    """`demand_error` of the fabric."""
    place: str | None = None
    """`place` of the fabric; null for that of the gating."""
    transform: str | None = None
    """`transform` of the fabric; null for the payloads of the training."""
    collective: str | None = None
    """`collective` of the fabric; null for `concurrent`."""
    copies: str = "expert"
    """`copies` of the fabric."""
    copy_limit: int = 0
    """`copy_limit` of the fabric."""
    experts: str | None = None
    """`experts` of the fabric; null if all tokens go to experts."""
    transport: str | None = None
    """`transport` of the fabric; null for that of the experiment."""
    wiring: WiringSummary = WiringSummary()
    """Servers, NICs, switches and scale."""
    cost: NetworkCost = NetworkCost()
    """Cost of the network."""
    same_circuits: list[str] = Field(default_factory=list)
    """Other fabrics whose circuits joined the same servers in all all-to-alls."""
    other_circuits: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Fabrics with other circuits: in how many of how many requests for circuits (of a prediction:
    all-to-alls) other servers were joined."""
    full_mesh: bool = False
    """Whether circuits joined each pair of servers of a region all the time, so that none moved."""

    @staticmethod
    def choices(choice: object) -> Json:
        """Return the fields that repeat those of a fabric in the experiment."""
        others = {"fabric", "policy", "wiring", "cost"}
        others |= {"same_circuits", "other_circuits", "full_mesh"}
        names = (name for name in FabricEntry.model_fields if name not in others)
        return {name: getattr(choice, name) for name in names}


class FabricResult(FabricEntry):
    """Result of one fabric of an experiment under one policy."""

    knows: str | None = None
    """What the policy knew of demands when it chose circuits: `own demand` of the all-to-all,
    `predicted demand` for first all-to-alls, `future total` of the whole job, or `nothing`; null if
    that is unknown."""
    iterations: list[result_parts.IterationResult] = Field(default_factory=list)
    """Every iteration."""
    collectives: list[result_parts.CollectiveResult] = Field(default_factory=list)
    """Every region's part of every all-to-all."""
    transfers: list[result_parts.CollectiveResult] = Field(default_factory=list)
    """Transfers between regions: between pipeline stages, and all-reduces of replicas."""
    flows: list[result_parts.FlowResult] = Field(default_factory=list)
    """Every flow, if the run was asked for them (`run --flows`)."""
    reconfigurations: list[result_parts.ReconfigurationResult] = Field(default_factory=list)
    """Every reconfiguration."""
    control_time: result_parts.ControlTime = result_parts.ControlTime()
    """Distribution of the control plane's own time."""
    harness_s: float = 0.0
    """Sum of `harness_s` of all iterations, in wall seconds."""
    timeline: list[result_parts.ServerInterval] = Field(default_factory=list)
    """Intervals of one iteration: the last with a change of circuits, else the last."""
    failures: list[result_parts.FailureResult] = Field(default_factory=list)
    """Every failure."""
    integrity: Integrity = Integrity()
    """Conservation of bytes."""
    fidelity: Annotated[FidelityResult, Field(default_factory=dict, validate_default=True)]
    """Verdict and its figures."""
    first_all_to_all: result_parts.FirstAllToAll = result_parts.FirstAllToAll()
    """First all-to-alls of each layer."""
    demand: list[list[float]] = Field(default_factory=list)
    """Bytes from the row's server to the column's, in the last dispatch of the first layer."""
    demand_label: str = ""
    """Description of the demand."""
    circuits: list[CircuitEnds] = Field(default_factory=list)
    """Circuits at the end of the run."""
    shape: PipelineShape = PipelineShape()
    """Shape of the job, if regions run independently."""
    spines: result_parts.SpineTraffic | None = None
    """Bytes between leaves; null without spines."""
    queues: result_parts.QueueDrops | None = None
    """Packets dropped by queues of limited room; null if room is unlimited."""
    links: result_parts.LinkLateness | None = None
    """Lateness of programmed links; null if no link is programmed."""
    ratios: BaselineRatios = BaselineRatios()
    """All-to-alls relative to the baseline's."""
    training: result_parts.TrainingResult | None = None
    """What a program learned; null without one."""
    hybrid: result_parts.HybridResult | None = None
    """What was emulated and what was modelled; null if all was emulated."""
    figures: dict[str, float] = Field(default_factory=dict)
    """Of a stored result (`run --store`): the figures of its tables, whose rows are left out."""


class RunResult(result_parts.ResultPart):
    """A run: every fabric of an experiment, and the worst of their verdicts."""

    experiment: str = ""
    """Name of the experiment."""
    version: Annotated[str, Field(coerce_numbers_to_str=True)] = ""
    """Version of moefabric."""
    verdict: Verdict | None = None
    """Worst verdict of the fabrics."""
    manifest: Manifest = Manifest()
    """Circumstances of the run."""
    results: list[FabricResult] = Field(default_factory=list)
    """Every fabric, in the order of the experiment."""
    incomplete: str = ""
    """What is missing because the run was stopped; empty if nothing is."""


def read_run(path: str | Path) -> RunResult:
    """Read a run's JSON from a file.

    Raises:
        SpecError: if the file can't be read or has a wrong value; it names the first one's place.
    """
    path = Path(path)
    try:
        result = RunResult.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UnreadableError(path, error) from error
    except ValidationError as error:
        refuse_other_kind(path, "result")
        first = error.errors()[0]
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        place = "".join(steps).removeprefix(".")
        if not place:
            message = f"{first['msg']}; `moefabric run --json` writes a result"
            raise SpecError([(str(path), message)]) from error
        raise SpecError([(f"{path}: {place}", first["msg"])]) from error
    if not result.results:  # all fields of a run may be missing
        refuse_other_kind(path, "result")
    if _release(result.version) > _release(own := version("moefabric")):
        log.warning(
            "%s was written by moefabric %s, later than %s: what its release added isn't shown",
            *(path, result.version, own),
        )
    return result


def _release(text: str) -> list[int]:
    """Return the numbers of a version; none of a version that is missing."""
    return [int(number) for number in re.findall(r"\d+", text)]


class SimulatedRegionCount(result_parts.ResultPart):
    """Number of a fabric's regions that were simulated.

    The others are equal to them or, if they are a sample, differ at random. Then
    `iteration_error_s` is the standard error of the iteration's seconds.
    """

    regions: int
    all_regions: int
    is_sample: bool = False
    iteration_error_s: float | None = None


class FabricPrediction(FabricEntry):
    """Prediction of one fabric in the fluid model.

    Figures are the statistics of a run (`moefabric.results.statistics`): medians over iterations
    and over all-to-alls, and the median of ratios. `spine_share` is the share of all bytes,
    transfers' too, whose routes cross a spine; null without spines. `policy_faults` says why a
    policy of another package failed, so that bytes take the EPS; its figures mean nothing.
    `reconfigurations` counts those that changed circuits. `knows` is as in the result of a run.
    """

    knows: str | None = None
    iteration_s: float
    compute_s: float
    exposed_comm_s: float
    all_to_all_s: float
    light_share: float
    spine_share: float | None
    reconfigurations: int
    first: str
    first_all_to_all: result_parts.FirstAllToAll
    policy_faults: list[str] = Field(default_factory=list)
    all_to_all_vs_eps: float | None = None
    simulated: SimulatedRegionCount | None = None


class ExperimentPrediction(result_parts.ResultPart):
    """Prediction of an experiment: every fabric, in the order of the experiment."""

    experiment: str
    inputs: list[InputDigest] | None = None
    """The experiment and the files that it names, as in the manifest of a run."""
    notes: list[str] = Field(default_factory=list)
    """What the prediction assumes, in sentences."""
    fabrics: list[FabricPrediction]
