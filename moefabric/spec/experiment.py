"""An experiment as the user writes it: a model, how it trains, what its gates do, and the fabrics to compare."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from moefabric import topology
from moefabric.failures import Kind, has
from moefabric.iteration import First
from moefabric.model import MODELS, Known, Model, Training
from moefabric.schedule.shape import Shape
from moefabric.spec.fabric import (
    EpsSpec,
    Name,
    NicsSpec,
    ScaleSpec,
    WiringSpec,
    eps_faults,
    joining_faults,
    nic_faults,
    rate_faults,
    size_faults,
    wired,
)
from moefabric.spec.failures import FailureSpec
from moefabric.spec.part import Fault, Part, Whole, known
from moefabric.spec.quantities import DurationNs

File = Annotated[Path, Field(strict=False)]
"""A path as text; relative ones start at the experiment's file."""

Scaling = Annotated[
    Annotated[ScaleSpec, Tag("given")] | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda value: "auto" if isinstance(value, str) else "given"),
]
"""A scale, or `auto`."""


class ModelSpec(Part):
    """A known model by name, or with some sizes changed."""

    name: Known
    layers: int = Field(ge=1, le=100)
    experts: int | None = Field(default=None, ge=1, le=512)

    def sized(self) -> Model:
        """The model with its changes."""
        known = MODELS[self.name]
        return replace(known, layers=self.layers, experts=self.experts or known.experts)


class TrainingSpec(Part):
    """Parallelism, batch, and GPUs.

    A job has `pp` pipeline stages of `dp` replicas, each a region and an EP group of its own; a fabric with more regions runs several such jobs side
    by side. In `lockstep`, all regions start an all-to-all together; `apart`, each goes on as its own dependencies allow.
    """

    ep: int = Field(ge=1)
    tp: int = Field(ge=1)
    sequence: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    pp: int = Field(default=1, ge=1, le=128)
    dp: int = Field(default=1, ge=1, le=128)
    micro_batches: int = Field(default=1, ge=1, le=1024)
    regions: Literal["lockstep", "apart"] | None = None
    iterations: int = Field(default=3, ge=1, le=10_000)
    gpu_tflops: float = Field(default=312.0, gt=0)
    utilisation: float = Field(default=0.4, gt=0, le=1)
    restore: DurationNs = 0
    """Model time to load a checkpoint, when an iteration starts anew since a server or GPU was lost."""

    @property
    def shape(self) -> Shape:
        """Stages, replicas and micro-batches."""
        return Shape(self.pp, self.dp, self.micro_batches)

    @property
    def apart(self) -> bool:
        """Whether each region goes on by itself; so it does where there is a pipeline, a replica or a second micro-batch."""
        return not self.shape.plain if self.regions is None else self.regions == "apart"

    def sized(self) -> Training:
        """The values."""
        return Training(
            self.ep, self.tp, self.sequence, self.micro_batch, self.gpu_tflops * 1e12, self.utilisation
        )


class GatingSpec(Part):
    """Where the tokens go: one measured matrix for every layer, or a trace of steps. Relative paths start at the experiment's file.

    `noise` is how far regions, layers and iterations differ from it (see `moefabric.experiment.noise`). With `repeat`, ranks and experts of
    which the model has more start over at the first.
    """

    matrix: File | None = None
    trace: File | None = None
    first: int = Field(default=0, ge=0)
    every: int = Field(default=1, ge=1)
    noise: float = Field(default=0.0, ge=0.0, le=2.0)
    repeat: bool = False


class HostSpec(Part):
    """A real server: its name in ~/.ssh/config (or address), and the address that its traffic uses."""

    ssh: Annotated[str, StringConstraints(min_length=1)]
    address: str
    python: str = "python3"


PATCHED: Final = ("topoopt", "static")
"""Policies for a patch panel: those that light once."""

LIT_ONCE: Final = ("eps", "static", "topoopt")
"""Policies whose light doesn't move while a job runs."""


class FabricChoice(Part):
    """One fabric to compare: its NICs (see `NicsSpec`) and the policy of its light.

    `eps` is what joins its electrical NICs, where that isn't the wiring's. `first` is what the first all-to-all of a forward pass does about its light
    (`moefabric.iteration.FIRST`). `hosts` runs it on real servers instead of emulated ones.
    """

    name: Name
    optical: int = Field(default=0, ge=0, le=16)
    electrical: int = Field(default=0, ge=0, le=16)
    patched: int = Field(default=0, ge=0, le=16)
    eps: EpsSpec | None = None
    policy: Literal[
        "eps", "mixnet", "mixnet-htsim", "spill", "joint", "matching", "round-robin", "static", "topoopt"
    ]
    first: First = "block"
    hosts: bool = False

    @property
    def nics(self) -> NicsSpec:
        """Its NICs."""
        return NicsSpec(optical=self.optical, electrical=self.electrical, patched=self.patched)


class ExperimentSpec(Whole):
    """An experiment file."""

    experiment: Name
    model: ModelSpec
    training: TrainingSpec
    gating: GatingSpec
    wiring: WiringSpec
    fabrics: list[FabricChoice] = Field(min_length=1)
    hosts: list[HostSpec] = Field(default_factory=list)
    scale: Scaling = "auto"
    transport: Literal["paced", "tcp"] = "paced"
    seed: int = 1
    failures: list[FailureSpec] = Field(default_factory=list, max_length=1000)
    patience: DurationNs = 10_000_000_000
    """How long a controller may take, besides its light's settling, on the wall's clock; then its region is on the EPS until it answers."""

    def faults(self) -> Iterator[Fault]:
        """What single values can't tell, as far as they are known."""
        yield from known(
            self._expert_faults(),
            self._gpu_faults(),
            self._rank_faults(),
            self._gating_faults(),
            self._shape_faults(),
            self._region_faults(),
            self._fabric_faults(),
            self._host_faults(),
            self._scale_faults(),
            self._failure_faults(),
        )

    def _expert_faults(self) -> Iterator[Fault]:
        experts, ranks = self.model.sized().experts, self.training.ep
        if experts % ranks:
            yield "model.experts", f"{experts} experts don't fill {ranks} ranks evenly"

    def _gpu_faults(self) -> Iterator[Fault]:
        servers, ep, tp = self.group, self.training.ep, self.training.tp
        gpus = servers * self.wiring.gpus_per_server
        if ep * tp != gpus:
            whose = "servers" if len(self.wiring.each_region) == 1 else "servers of a region"
            yield "training", f"ep {ep} x tp {tp} needs {ep * tp} GPUs, {servers} {whose} have {gpus}"

    def _rank_faults(self) -> Iterator[Fault]:
        if self.training.ep % self.group:
            yield "training.ep", f"{self.training.ep} ranks don't fill {self.group} servers evenly"

    def _shape_faults(self) -> Iterator[Fault]:
        shape, regions = self.training.shape, len(self.wiring.each_region)
        whole = shape.regions
        if regions % whole:
            what = f"pp {shape.pp} x dp {shape.dp} takes {whole} regions a job, {regions} are wired"
            yield "training", what
        if self.model.layers % shape.pp:
            yield "training.pp", f"{self.model.layers} layers don't fill {shape.pp} stages evenly"
        if self.training.regions == "lockstep" and not shape.plain:
            what = "in lockstep there is no pipeline, replica or second micro-batch: leave regions out"
            yield "training.regions", what
        if self.training.apart and any(choice.hosts for choice in self.fabrics):
            yield "training.regions", "real servers go in lockstep"
        if whole > 1 and any(choice.patched for choice in self.fabrics):
            yield "training.pp", "stages and replicas are joined by the EPS, which a patch panel has not"

    @property
    def group(self) -> int:
        """Servers of a region: it trains as one EP group."""
        return self.wiring.regions[0].servers

    def _gating_faults(self) -> Iterator[Fault]:
        matrix, trace = self.gating.matrix, self.gating.trace
        if matrix is None and trace is None:
            yield "gating", "matrix or trace is missing"
        if matrix is not None and trace is not None:
            yield "gating", "matrix and trace are both given, one of them is needed"

    def _region_faults(self) -> Iterator[Fault]:
        yield from known(size_faults(self.wiring, "wiring."), self._group_faults())

    def _group_faults(self) -> Iterator[Fault]:
        first = self.group
        for number, region in enumerate(self.wiring.regions):
            if region.servers != first:
                what = f"EP groups of one job are of equal size: {first} servers in regions[0], {region.servers} here"
                yield f"wiring.regions[{number}].servers", what

    def _fabric_faults(self) -> Iterator[Fault]:
        names: dict[str, int] = {}
        for number, choice in enumerate(self.fabrics):
            place = f"fabrics[{number}]"
            yield from known(
                _name_faults(choice, number, names),
                _policy_faults(choice, place),
                self._joining_faults(choice, place),
                self._eps_faults(choice, place),
                self._hosted_faults(choice, place),
            )

    def _joining_faults(self, choice: FabricChoice, place: str) -> Iterator[Fault]:
        yield from joining_faults(self.wiring, choice.nics, place, "wiring.")

    def _eps_faults(self, choice: FabricChoice, place: str) -> Iterator[Fault]:
        eps = self.wiring.eps if choice.eps is None else choice.eps
        yield from eps_faults(
            self.wiring, choice.nics, eps, "wiring.eps" if choice.eps is None else f"{place}.eps"
        )

    def _hosted_faults(self, choice: FabricChoice, place: str) -> Iterator[Fault]:
        if choice.hosts and choice.policy != "eps":
            yield f"{place}.policy", "real servers are joined by their own network: their policy is eps"
        if choice.hosts and not self.hosts:
            yield f"{place}.hosts", "no real servers are given: fill `hosts:`"

    def _failure_faults(self) -> Iterator[Fault]:
        for number, failure in enumerate(self.failures):
            place = f"failures[{number}]"
            yield from known(
                failure.faults(place, self.training.iterations),
                self._absent_faults(failure, place),
                self._lockstep_faults(failure, place),
            )

    def _lockstep_faults(self, failure: FailureSpec, place: str) -> Iterator[Fault]:
        """What goes in lockstep alone."""
        if not self.training.apart:
            return
        if failure.kind in ("gpu", "server"):
            yield (
                f"{place}.kind",
                f"regions that go apart don't replace a {failure.kind}: training.regions: lockstep does",
            )
        if failure.collective is not None:
            yield (
                f"{place}.collective",
                "regions that go apart have no collectives in common: give an iteration",
            )

    def _absent_faults(self, failure: FailureSpec, place: str) -> Iterator[Fault]:
        named = {choice.name for choice in self.fabrics}
        if strange := [name for name in failure.fabrics if name not in named]:
            yield f"{place}.fabrics", f"{', '.join(strange)}: not a fabric here; there are {', '.join(named)}"
        if failure.kind in ("gpu", "server") and not self.wiring.backups:
            yield f"{place}.kind", "nothing could take its place: give wiring.backup: {servers: 1}"
        for name in failure.what:
            if not any(
                has(self.wired(choice, "lab", topology.Scale()), Kind(failure.kind), name)
                for choice in self.fabrics
            ):
                yield f"{place}.what", f"{name}: no fabric here has such a {failure.kind}"

    def _host_faults(self) -> Iterator[Fault]:
        if self.hosts and len(self.hosts) != (servers := self.wiring.servers + self.wiring.backups):
            yield "hosts", f"{servers} servers are wired, {len(self.hosts)} hosts given"

    def _scale_faults(self) -> Iterator[Fault]:
        if self.scale != "auto":
            scale = topology.Scale(self.scale.bytes, self.scale.dilation)
            yield from rate_faults(self.wiring, scale, "scale.bytes")

    def wired(self, choice: FabricChoice, name: str, scale: topology.Scale) -> topology.Fabric:
        """The fabric of one of the choices."""
        return wired(self.wiring, name, choice.nics, scale, choice.eps or self.wiring.eps)


def _name_faults(choice: FabricChoice, number: int, names: dict[str, int]) -> Iterator[Fault]:
    first = names.setdefault(choice.name, number)
    if first != number:
        yield f"fabrics[{number}].name", f"{choice.name} is taken by fabrics[{first}]"


def _policy_faults(choice: FabricChoice, place: str) -> Iterator[Fault]:
    nics = choice.nics
    wrong = tuple(nic_faults(nics, place))
    if wrong:
        yield from wrong
    elif nics.patched and choice.policy not in PATCHED:
        yield (
            f"{place}.policy",
            f"a patch panel is laid once, before the job: {choice.policy} is not one of {', '.join(PATCHED)}",
        )
    elif not nics.electrical and not nics.patched:
        yield (
            f"{place}.electrical",
            "pairs without light reach each other by the EPS: give each server an electrical NIC",
        )
    elif choice.first != "block" and choice.policy in LIT_ONCE:
        yield (
            f"{place}.first",
            f"{choice.first} is for light that moves, {choice.policy}'s doesn't: leave it out",
        )
    elif choice.policy != "eps" and not nics.lit:
        yield f"{place}.policy", f"{choice.policy} needs optical NICs, {choice.name} has none"
