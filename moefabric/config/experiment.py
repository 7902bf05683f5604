"""An experiment as users write it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from moefabric.config import experiment_checks, references, section
from moefabric.config.fabric import EpsSpec, NicsSpec, ScaleChoice, WiringSpec
from moefabric.config.failure_schedule import FailureSpec
from moefabric.config.gating import GatingSpec
from moefabric.config.hosts import HostList
from moefabric.config.model import ModelSpec
from moefabric.config.plugins import PAYLOAD_TRANSFORMS, load_plugin, transport_named
from moefabric.config.policies import patch_panel_policies, policy_named
from moefabric.config.training_program import TrainSpec
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric
from moefabric.core.transport import Transport
from moefabric.core.units import NS_PER_S, Scale
from moefabric.planner.policy import Policy
from moefabric.workload.iterations.iteration import DispatchLight
from moefabric.workload.iterations.job import JobShape
from moefabric.workload.iterations.split_demand import SplitDemandSource
from moefabric.workload.models.model import ComputeModel, Model, Training
from moefabric.workload.models.payload import Payloads, PayloadTransform
from moefabric.workload.placement.collective_order import CONCURRENT
from moefabric.workload.placement.copy_rule import CopyRule, CopyUnit

ControlTime = Annotated[
    Annotated[section.DurationNs, Tag("fixed")] | Annotated[Literal["measured"], Tag("measured")],
    Discriminator(lambda value: "measured" if value == "measured" else "fixed"),
]
"""A duration, or `measured`."""


class TrainingSpec(section.Section):
    """Parallelism, batch, and GPUs.

    A job has `pp` pipeline stages of `dp` replicas. Each of them is a region and an EP group of its
    own. A fabric with more regions runs several jobs side by side.
    """

    ep: int = Field(ge=1)
    """Expert-parallel ranks of an EP group."""
    tp: int = Field(ge=1)
    """Tensor-parallel GPUs of a rank."""
    sequence: int = Field(ge=1)
    """Tokens of a sequence."""
    micro_batch: int = Field(ge=1)
    """Sequences of a micro-batch."""
    pp: int = Field(default=1, ge=1, le=128)
    """Pipeline stages of a job."""
    dp: int = Field(default=1, ge=1, le=16_384)
    """Data-parallel replicas of a job."""
    micro_batches: int = Field(default=1, ge=1, le=1024)
    """Micro-batches of an iteration."""
    schedule: Literal["lockstep", "independent"] | None = None
    """`lockstep` starts each all-to-all in all regions at once; with `independent`, each region
    proceeds as its own dependencies allow. Default: `lockstep`, or `independent` with several
    stages, replicas or micro-batches."""
    iterations: int = Field(default=3, ge=1, le=10_000)
    """Number of iterations."""
    gpu_tflops: float = Field(default=312.0, gt=0, le=100_000)
    """Peak speed of a GPU in 10^12 floating-point operations per second."""
    utilisation: float = Field(default=0.4, gt=0, le=1)
    """Part of the peak speed that the model's layers reach."""
    nvlink_rate: section.Rate = section.quantity_field("3600Gb/s")
    """Rate of a GPU's NVLinks in each direction, for the all-reduces of tensor parallelism, and to
    gather and scatter the bytes of all-to-alls (`wiring.server_paths`)."""
    recomputation: bool = False
    """Whether the backward pass of a layer computes the forward pass again."""
    dispatch_payload: references.PayloadReference = "none"
    """Form of tokens on their way to experts, with its bytes and its time to encode and decode:
    `none` leaves the model's data type, `fp8`, or `package.module:Name`."""
    combine_payload: references.PayloadReference = "none"
    """Form of what comes back from experts, as `dispatch_payload`."""
    gradient_sums: bool = True
    """Whether an iteration sums the gradients of each layer: those of experts over replicas, those
    of all other weights over all servers of all replicas, in rings over the EPS. With one replica
    and `lockstep`, the sum of a layer begins with the next computation of experts."""
    token_counts: bool = True
    """Whether the ranks of an EP group tell each other how many tokens they have for each expert
    before a layer's first all-to-all, as frameworks do: an all-gather of 8 bytes an expert and
    rank, in a ring."""
    message_latency: section.DurationNs = section.quantity_field("2.7us")
    """Model time in which a small message gets from a rank to the next one in that ring, besides
    its bytes. Default: NCCL's estimate for a ring of its protocol LL over a network."""
    whole_model: bool = True
    """Whether an iteration has, besides MoE layers, the head, the layers without experts, the
    gradients of these and of the embeddings, and the optimiser (Adam, bound by memory). If fewer
    layers than the model's are replayed, it has as large a part of them."""
    memory_rate: section.Rate = section.quantity_field("16.3Tb/s")
    """Rate of a GPU's memory, for the optimiser and `compute`. Default: an A100 of 80 GB."""
    compute: ComputeModel = "flops"
    """Duration of computation: `flops` divides FLOPs by the speed that is reached; with `roofline`,
    matrices last at least until memory has moved weights, inputs and outputs, and norms,
    residuals, SwiGLU and the order of tokens last until memory has moved what they read and
    write."""
    checkpoint_load: section.DurationNs = 0
    """Model time to load a checkpoint when an iteration starts anew after the loss of a server or
    GPU."""

    @property
    def shape(self) -> JobShape:
        """Stages, replicas and micro-batches."""
        return JobShape(self.pp, self.dp, self.micro_batches)

    @property
    def independent(self) -> bool:
        """Whether each region proceeds as its own dependencies allow."""
        if self.schedule is None:
            return not self.shape.is_single_group
        return self.schedule == "independent"

    def build(self) -> Training:
        """Return the training that this section describes."""
        gpu_flops = self.gpu_tflops * 1e12
        sizes = (self.ep, self.tp, self.sequence, self.micro_batch)
        speeds = (gpu_flops, self.utilisation, self.nvlink_rate / 8)
        payloads = Payloads(
            load_plugin(PAYLOAD_TRANSFORMS, self.dispatch_payload, PayloadTransform),
            load_plugin(PAYLOAD_TRANSFORMS, self.combine_payload, PayloadTransform),
        )
        latency_s = self.message_latency / NS_PER_S if self.token_counts else None
        costs = latency_s, self.whole_model, self.memory_rate / 8
        sums = self.gradient_sums
        training = Training(*sizes, *speeds, self.recomputation, payloads, sums, *costs)
        return replace(training, compute=self.compute)


class HybridSpec(section.Section):
    """Emulation of some regions; all others exist in the model only."""

    emulated: list[section.Text] = Field(min_length=1)
    """Names of the emulated regions: `r0`, `r1` and so on."""
    background: Literal["replayed", "average", "none"] = "replayed"
    """Rates of the flows of modelled regions on links that emulated regions use: those of the model
    over time, their average over an iteration, or no flows. The latter two show what is missed
    without the first."""


class FabricChoice(NicsSpec):
    """A fabric to compare: its NICs, and the policy that plans its circuits."""

    name: section.Name
    """Name of the fabric in results."""
    eps: EpsSpec | None = None
    """Electrical packet switches of this fabric. Default: those of the wiring."""
    policy: references.PolicyReference
    """Policy that plans circuits and splits bytes over circuits and EPS: a name that
    `moefabric policy list` prints, or `package.module:Name`."""
    start: references.PolicyReference | None = None
    """Policy whose circuits are lit before the job, such as `random`, until `policy` moves them. It
    must be one that sets circuits once. With `dispatch_light: reuse`, the first all-to-all takes
    them. Default: no circuit is lit at first."""
    dispatch_light: DispatchLight = "block"
    """What the first all-to-all of a layer does until its circuits are lit: `block` waits for them,
    `reuse` takes the present ones, `predict` has them moved early for a predicted demand, `divert`
    starts over the EPS."""
    split_demand: SplitDemandSource = "known"
    """Demand for which the split of a layer's first all-to-all is computed; each pair's bytes take
    their paths in the proportions of that split. `known` is its own demand, `last` that of the
    layer an iteration ago, `predicted` Copilot's prediction, and `none` that of a gate that chooses
    all experts alike. `recent` suits the worst of the layer's last eight demands. In the first
    iteration without `gating.history`, `last`, `recent` and `predicted` are as `none`."""
    demand_error: float = Field(default=0.0, ge=0.0, le=1.0)
    """Part by which each pair's bytes in `split_demand` are too high or too low, at random."""
    place: references.PlacementReference | None = None
    """Ranks of the experts on this fabric. Default: `gating.placement`."""
    transform: references.PayloadReference | None = None
    """Form of tokens on this fabric, on their way to experts and back. Default:
    `training.dispatch_payload` and `training.combine_payload`."""
    collective: references.CollectiveOrderReference | None = None
    """Order of the transfers of an all-to-all: `concurrent` starts all at once, others, such as
    `aurora` of the studies, divide it into phases that follow each other. Default: `concurrent`."""
    copies: CopyUnit = "expert"
    """To what a token goes once: to each of its experts (`expert`), to each rank that has one or
    more of them (`rank`), or to each such server (`server`). Ranks and servers return one sum for
    the token. `rank` and `server` need routes of single tokens in `gating.trace`."""
    copy_limit: int = Field(default=0, ge=0)
    """The most ranks or servers, as in `copies`, to which a token goes: those with the largest sum
    of the gate's scores, or most of its experts if scores are unknown. Other experts there compute
    it instead of its experts elsewhere. 0: all."""
    experts: references.ExpertExchangeReference | None = None
    """Experts that move to the servers of tokens, such as `hybridep(leaf=4, dcs=2)` of the studies.
    Default: all tokens go to the servers of experts."""
    transport: references.TransportReference | None = None
    """How flows are carried on this fabric. Default: the experiment's `transport`."""
    hosts: bool = False
    """Whether this fabric consists of the real servers in `hosts`."""

    @property
    def copy_rule(self) -> CopyRule:
        """The number of copies of a token that travel."""
        return CopyRule(self.copies, self.copy_limit)

    @property
    def planner(self) -> Policy:
        """The policy."""
        return policy_named(self.policy)

    @property
    def first_policy(self) -> Policy | None:
        """The policy of the circuits that are lit before the job, if `policy` moves them then."""
        return None if self.start is None else policy_named(self.start)

    @property
    def forwards(self) -> bool:
        """Whether servers forward for other servers."""
        return super().forwards or self.planner.forwards

    def policy_errors(self, place: str) -> Iterator[section.InputError]:
        """Yield an error if the policy doesn't suit the NICs."""
        if nic_errors := tuple(self.nic_errors(place)):
            yield from nic_errors
        elif self.patch_panel_nics and not self.planner.suits_patch_panel:
            policies = f"{self.policy} is not one of {', '.join(patch_panel_policies())}"
            yield f"{place}.policy", f"a patch panel is laid once, before the job: {policies}"
        elif not self.electrical and not self.patch_panel_nics:
            message = "pairs without a circuit use the EPS: give each server an electrical NIC"
            yield f"{place}.electrical", message
        elif self.dispatch_light != "block" and not self.planner.reconfigures:
            missing = f"changing circuits, which {self.policy} has not: leave it out"
            yield f"{place}.dispatch_light", f"{self.dispatch_light} needs {missing}"
        elif self.policy != "eps" and not self.circuit_nics:
            yield f"{place}.policy", f"{self.policy} needs optical NICs, {self.name} has none"
        else:
            yield from self._start_errors(place)
            yield from self._split_demand_errors(place)
            yield from self._collective_errors(place)

    def _start_errors(self, place: str) -> Iterator[section.InputError]:
        first = self.first_policy
        if first is None:
            return
        if not self.planner.reconfigures:
            yield f"{place}.start", f"circuits of {self.policy} never move: leave it out"
        elif self.start == "eps" or first.reconfigures:
            yield f"{place}.start", f"{self.start} sets no circuits once: give random or static"

    @property
    def is_ordered(self) -> bool:
        """Whether all-to-alls may have several phases."""
        return self.collective not in {None, CONCURRENT.name}

    def _collective_errors(self, place: str) -> Iterator[section.InputError]:
        if not self.is_ordered:
            return
        remedy = "give collective: concurrent, or leave it out"
        if self.dispatch_light == "divert":
            yield f"{place}.collective", f"divert moves bytes between phases: {remedy}"
        if self.split_demand != "known" or self.demand_error:
            yield f"{place}.collective", f"phases are split by their own demand: {remedy}"

    def _split_demand_errors(self, place: str) -> Iterator[section.InputError]:
        for key, default in (("split_demand", "known"), ("demand_error", 0.0)):
            if getattr(self, key) == default:
                continue
            if not self.planner.splits_by_demand:
                message = f"{self.policy} divides no pair's bytes by demand: leave it out"
                yield f"{place}.{key}", message
            elif self.dispatch_light == "divert":
                yield f"{place}.{key}", "divert splits dispatches by their own demand: leave it out"


class ExperimentSpec(section.Document):
    """An experiment file."""

    experiment: section.Name
    """Name of the experiment."""
    model: ModelSpec
    """Model that is trained."""
    training: TrainingSpec
    """Parallelism, batch, and GPUs."""
    gating: GatingSpec = Field(default_factory=GatingSpec)
    """Tokens that ranks send to experts. A program that trains chooses them by its gates."""
    train: TrainSpec | None = None
    """Program that trains, for `moefabric train`."""
    wiring: WiringSpec
    """Wiring that all fabrics share."""
    fabrics: list[FabricChoice] = Field(min_length=1)
    """Fabrics to compare."""
    hybrid: HybridSpec | None = None
    """Regions that are emulated while all others are modelled. Default: all are emulated."""
    hosts: HostList = Field(default_factory=list)
    """Real servers, in the order of the wiring's servers, or a file with `hosts:`; further ones
    stay unused."""
    scale: ScaleChoice = "auto"
    """Scale of the emulation. `auto` chooses one for each wiring that this machine can carry."""
    transport: references.TransportReference = "paced"
    """Whether flows are paced at the rates of the plan (`paced`), or left to TCP's congestion
    control: `tcp` (cubic), `reno`, `bbr`, or `package.module:Name`."""
    seed: int = Field(default=1, ge=0)
    """Seed of all random numbers."""
    failures: list[FailureSpec] = Field(default_factory=list, max_length=1000)
    """Failures to inject."""
    control_time: ControlTime = "measured"
    """Model time of the control plane for each request for circuits: plan, rules, command and proof
    of light, without settling. `measured` takes what the controllers really need; a duration shows
    what faster controllers would give. A run whose controllers need longer than that, at its
    dilation, counts their time and is degraded."""
    controller_timeout: section.DurationNs = section.quantity_field("10s")
    """Model time, besides the settling of light, after which a silent controller's region uses the
    EPS only."""

    @property
    def control_s(self) -> float | None:
        """Fixed model seconds of the control plane for a request; None if they are measured."""
        return None if self.control_time == "measured" else self.control_time / NS_PER_S

    @property
    def servers_per_region(self) -> int:
        """Servers of a region, which trains as one EP group."""
        return self.wiring.regions[0].servers

    def transport_of(self, choice: FabricChoice) -> Transport:
        """Return the transport of one of the fabrics."""
        return transport_named(choice.transport or self.transport)

    def build_fabric(self, choice: FabricChoice, name: str, scale: Scale) -> Fabric:
        """Return the fabric of one of the choices."""
        fabric = self.wiring.build_fabric(name, choice, scale, choice.eps or self.wiring.eps)
        return replace(fabric, nvlink_rate_bps=self.training.nvlink_rate)

    def wiring_groups(self) -> list[list[FabricChoice]]:
        """Return the fabrics in groups of one wiring, which share a testbed and its scale.

        A patch panel is wired anew for each policy. In a hybrid run, the part that is emulated
        depends on what the model says about each fabric.
        """
        if self.hybrid is not None:
            return [[choice] for choice in self.fabrics]

        def key(choice: FabricChoice) -> tuple[bool, int, int, int, str, float, str, str, str]:
            eps = (choice.eps or self.wiring.eps).model_dump_json()
            policy = choice.policy if choice.patch_panel_nics else ""
            nics = choice.optical, choice.electrical, choice.patch_panel_nics
            who = choice.forwarding if choice.forwarding == "host" else str(choice.forwards)
            transport = choice.transport or self.transport
            return choice.hosts, *nics, who, choice.forwarding_rate or 0.0, eps, policy, transport

        return [list(group) for _, group in groupby(sorted(self.fabrics, key=key), key=key)]

    def notes(self) -> Iterator[str]:
        """Yield what the model assumes, and NICs that may be a slip."""
        yield from self.model.build().notes
        gpus = self.wiring.gpus_per_server
        counts = [choice.circuit_nics + choice.electrical for choice in self.fabrics]
        [(usual_nics, _)] = Counter(counts).most_common(1)
        for place, (choice, nics) in enumerate(zip(self.fabrics, counts, strict=True)):
            here = f"{choice.name} (fabrics[{place}])"
            has_unused = choice.policy == "eps" and choice.optical > 0
            if has_unused:
                unused = f"none of the {choice.optical} optical NICs of a server"
                yield f"{here}: the policy eps uses {unused}, which the prices include"
            if nics > gpus:
                usual = "where one for each GPU is usual"
                yield f"{here}: {nics} NICs for {gpus} GPUs in each server, {usual}"
            elif nics != usual_nics and not has_unused:
                yield f"{here}: {nics} NICs in each server, where other fabrics have {usual_nics}"

    def given_scale(self) -> Scale | None:
        """Return the scale of the file; None if it is chosen for the machine.

        The sizes of a program that trains give the factor of bytes.
        """
        if self.scale == "auto":
            return None
        if self.train is None:
            return self.scale.build()
        factor = self.train.byte_scale(self.known_model, self.training.build())
        return Scale(max(1.0, factor), self.scale.dilation)

    @property
    def known_model(self) -> Model:
        """The model.

        Raises:
            UnknownError: If the model is wrong; its errors are reported on their own.
        """
        try:
            return self.model.build()
        except SpecError as error:
            raise section.UnknownError("model") from error

    def check_emulated_size(self) -> None:
        """Raise SpecError if there are more regions or servers than a fabric has addresses for."""
        if errors := list(self.wiring.size_errors("wiring.")):
            raise SpecError(errors)

    def errors(self) -> Iterator[section.InputError]:
        """Yield the contradictions between values that are valid by themselves."""
        yield from experiment_checks.contradictions(self)
