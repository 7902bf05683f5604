"""An experiment as the user writes it: a model, how it trains, what its gates do, and the fabrics to compare."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from moefabric import topology
from moefabric.model import MODELS, Model, Training
from moefabric.spec.fabric import (
    Name,
    NicsSpec,
    ScaleSpec,
    WiringSpec,
    joining_faults,
    nic_faults,
    rate_faults,
    size_faults,
    wired,
)
from moefabric.spec.part import Fault, Part, Whole, known

File = Annotated[Path, Field(strict=False)]
"""A path as text; relative ones start at the experiment's file."""

Scaling = Annotated[
    Annotated[ScaleSpec, Tag("given")] | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda value: "auto" if isinstance(value, str) else "given"),
]
"""A scale, or `auto`."""


class ModelSpec(Part):
    """A known model by name, or with some sizes changed."""

    name: Literal["mixtral-8x7b", "mixtral-8x22b"]
    layers: int = Field(ge=1, le=100)
    experts: int | None = Field(default=None, ge=1, le=512)

    def sized(self) -> Model:
        """The model with its changes."""
        known = MODELS[self.name]
        return replace(known, layers=self.layers, experts=self.experts or known.experts)


class TrainingSpec(Part):
    """Parallelism, batch, and GPUs."""

    ep: int = Field(ge=1)
    tp: int = Field(ge=1)
    sequence: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    iterations: int = Field(default=3, ge=1, le=10_000)
    gpu_tflops: float = Field(default=312.0, gt=0)
    utilisation: float = Field(default=0.4, gt=0, le=1)

    def sized(self) -> Training:
        """The values."""
        return Training(
            self.ep, self.tp, self.sequence, self.micro_batch, self.gpu_tflops * 1e12, self.utilisation
        )


class GatingSpec(Part):
    """Where the tokens go: one measured matrix for every layer, or a trace of steps. Relative paths start at the experiment's file.

    `noise` is how far regions, layers and iterations differ from it (see `moefabric.experiment.noise`).
    """

    matrix: File | None = None
    trace: File | None = None
    first: int = Field(default=0, ge=0)
    every: int = Field(default=1, ge=1)
    noise: float = Field(default=0.0, ge=0.0, le=2.0)


class HostSpec(Part):
    """A real server: its name in ~/.ssh/config (or address), and the address that its traffic uses."""

    ssh: Annotated[str, StringConstraints(min_length=1)]
    address: str
    python: str = "python3"


class FabricChoice(Part):
    """One fabric to compare: its NICs and the policy of its light. `hosts` runs it on real servers instead of emulated ones."""

    name: Name
    optical: int = Field(ge=0, le=16)
    electrical: int = Field(ge=0, le=16)
    policy: Literal[
        "eps", "mixnet", "mixnet-htsim", "spill", "joint", "matching", "round-robin", "static", "topoopt"
    ]
    hosts: bool = False

    @property
    def nics(self) -> NicsSpec:
        """Its NICs."""
        return NicsSpec(optical=self.optical, electrical=self.electrical)


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

    def faults(self) -> Iterator[Fault]:
        """What single values can't tell, as far as they are known."""
        yield from known(
            self._expert_faults(),
            self._gpu_faults(),
            self._rank_faults(),
            self._gating_faults(),
            self._region_faults(),
            self._fabric_faults(),
            self._host_faults(),
            self._scale_faults(),
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
                self._hosted_faults(choice, place),
            )

    def _joining_faults(self, choice: FabricChoice, place: str) -> Iterator[Fault]:
        yield from joining_faults(self.wiring, choice.nics, place, "wiring.")

    def _hosted_faults(self, choice: FabricChoice, place: str) -> Iterator[Fault]:
        if choice.hosts and choice.policy != "eps":
            yield f"{place}.policy", "real servers are joined by their own network: their policy is eps"
        if choice.hosts and not self.hosts:
            yield f"{place}.hosts", "no real servers are given: fill `hosts:`"

    def _host_faults(self) -> Iterator[Fault]:
        if self.hosts and len(self.hosts) != self.wiring.servers:
            yield "hosts", f"{self.wiring.servers} servers are wired, {len(self.hosts)} hosts given"

    def _scale_faults(self) -> Iterator[Fault]:
        if self.scale != "auto":
            scale = topology.Scale(self.scale.bytes, self.scale.dilation)
            yield from rate_faults(self.wiring, scale, "scale.bytes")

    def wired(self, choice: FabricChoice, name: str, scale: topology.Scale) -> topology.Fabric:
        """The fabric of one of the choices."""
        return wired(self.wiring, name, choice.nics, scale)


def _name_faults(choice: FabricChoice, number: int, names: dict[str, int]) -> Iterator[Fault]:
    first = names.setdefault(choice.name, number)
    if first != number:
        yield f"fabrics[{number}].name", f"{choice.name} is taken by fabrics[{first}]"


def _policy_faults(choice: FabricChoice, place: str) -> Iterator[Fault]:
    nics = choice.nics
    if not nics.optical + nics.electrical:
        yield from nic_faults(nics, place)
    elif not nics.electrical:
        yield (
            f"{place}.electrical",
            "pairs without light reach each other by the EPS: give each server an electrical NIC",
        )
    elif choice.policy != "eps" and not nics.optical:
        yield f"{place}.policy", f"{choice.policy} needs optical NICs, {choice.name} has none"
