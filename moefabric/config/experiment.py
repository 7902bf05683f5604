"""An experiment as users write it, and the contradictions between its keys."""

from collections.abc import Iterator
from functools import partial

from moefabric.config.experiment_keys import ExperimentKeys, FabricChoice
from moefabric.config.failure_schedule import FailureSpec
from moefabric.config.section import InputError, collect_errors
from moefabric.core.errors import SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.units import Scale


class ExperimentSpec(ExperimentKeys):
    """An experiment file."""

    def errors(self) -> Iterator[InputError]:
        """Yield the contradictions between values that are valid by themselves."""
        yield from collect_errors(
            self._model_errors,
            self._expert_errors,
            self._gpu_errors,
            self._rank_errors,
            self._gating_errors,
            self._train_errors,
            self._shape_errors,
            lambda: self.wiring.modelled_size_errors("wiring."),
            lambda: self.wiring.server_errors("wiring."),
            self._region_errors,
            self._fabric_errors,
            self._host_errors,
            self._scale_errors,
            self._failure_errors,
            self._hybrid_errors,
        )

    def _model_errors(self) -> Iterator[InputError]:
        try:
            self.model.build()
        except SpecError as error:
            yield from ((f"model.{place}", message) for place, message in error.errors)

    def _expert_errors(self) -> Iterator[InputError]:
        experts, ranks = self.known_model.experts, self.training.ep
        if experts % ranks:
            yield "model.experts", f"{experts} experts don't fill {ranks} ranks evenly"

    def _gpu_errors(self) -> Iterator[InputError]:
        servers, ep, tp = self.servers_per_region, self.training.ep, self.training.tp
        gpus = servers * self.wiring.gpus_per_server
        if ep * tp != gpus:
            which = "servers" if len(self.wiring.expanded_regions) == 1 else "servers of a region"
            message = f"ep {ep} x tp {tp} needs {ep * tp} GPUs, {servers} {which} have {gpus}"
            yield "training", message

    def _rank_errors(self) -> Iterator[InputError]:
        ranks, servers = self.training.ep, self.servers_per_region
        if ranks % servers:
            yield "training.ep", f"{ranks} ranks don't fill {servers} servers evenly"

    def _shape_errors(self) -> Iterator[InputError]:
        shape, regions = self.training.shape, len(self.wiring.expanded_regions)
        needed = shape.regions
        if regions % needed:
            job = f"pp {shape.pp} x dp {shape.dp}"
            yield "training", f"{job} takes {needed} regions a job, {regions} are wired"
        if (layers := self.known_model.layers) < shape.pp:
            message = f"{shape.pp} stages need as many layers, {layers} given"
            yield "training.pp", message
        if self.training.schedule == "lockstep" and not shape.is_single_group:
            message = "lockstep allows one stage, replica and micro-batch only: leave schedule out"
            yield "training.schedule", message
        if needed > 1 and not all(choice.electrical for choice in self.fabrics):
            message = "stages and replicas are connected by the EPS: give servers electrical NICs"
            yield "training.pp", message

    def _gating_errors(self) -> Iterator[InputError]:
        if "gating" not in self.model_fields_set:
            if self.train is None:
                yield "gating", "is missing"
        elif self.train is None or self.gating.is_given:
            yield from self.gating.errors()

    def _train_errors(self) -> Iterator[InputError]:
        if self.train is None:
            return
        yield from self.train.errors(self.known_model, self.training.build())
        if len(self.wiring.expanded_regions) > 1 or self.training.independent:
            message = "a program trains in one region: one stage, one replica, one micro-batch"
            yield "train", message
        if self.scale != "auto" and "bytes" in self.scale.model_fields_set:
            yield "scale.bytes", "the sizes of the program and of the model give it: leave it out"
        for number, choice in enumerate(self.fabrics):
            if choice.place is not None:
                yield f"fabrics[{number}].place", "the program places its experts: leave it out"
            if choice.experts is not None:
                yield f"fabrics[{number}].experts", "the program's experts stay: leave it out"
            if choice.is_ordered:
                message = "the program's all-to-alls have one phase: leave it out"
                yield f"fabrics[{number}].collective", message

    def _region_errors(self) -> Iterator[InputError]:
        first = self.servers_per_region
        for number, region in enumerate(self.wiring.regions):
            if region.servers != first:
                sizes = f"{first} servers in regions[0], {region.servers} here"
                place = f"wiring.regions[{number}].servers"
                yield place, f"EP groups of a job have equal sizes: {sizes}"

    def _fabric_errors(self) -> Iterator[InputError]:
        names: dict[str, int] = {}
        for number, choice in enumerate(self.fabrics):
            place = f"fabrics[{number}]"
            yield from collect_errors(
                partial(_name_errors, choice, number, names),
                partial(choice.policy_errors, place),
                partial(self._wiring_errors, choice, place),
                partial(self._eps_errors, choice, place),
                partial(self._real_server_errors, choice, place),
            )

    def _wiring_errors(self, choice: FabricChoice, place: str) -> Iterator[InputError]:
        yield from self.wiring.connection_errors(choice, place, "wiring.")
        yield from self.wiring.forwarding_errors(choice, place)
        if choice.forwarding_rate is not None and not self.transport_of(choice).paced:
            remedy = "give transport: paced, or leave it out"
            yield f"{place}.forwarding_rate", f"only the pace of flows keeps to it: {remedy}"

    def _eps_errors(self, choice: FabricChoice, place: str) -> Iterator[InputError]:
        eps, eps_place = choice.eps, f"{place}.eps"
        if eps is None:
            eps, eps_place = self.wiring.eps, "wiring.eps"
        yield from self.wiring.eps_errors(choice, eps, eps_place)

    def _real_server_errors(self, choice: FabricChoice, place: str) -> Iterator[InputError]:
        if choice.hosts and choice.policy != "eps":
            yield f"{place}.policy", "real servers have a network of their own: their policy is eps"
        if choice.hosts and not self.hosts:
            yield f"{place}.hosts", "no real servers are given: fill `hosts:`"

    def _host_errors(self) -> Iterator[InputError]:
        servers = self.wiring.server_count + self.wiring.backups
        if self.hosts and len(self.hosts) < servers:
            yield "hosts", f"{servers} servers are wired, {len(self.hosts)} hosts given"

    def _scale_errors(self) -> Iterator[InputError]:
        if (scale := self.given_scale()) is not None:
            place = "scale.bytes" if self.train is None else "scale.dilation"
            yield from self.wiring.rate_errors(scale, place)

    def _failure_errors(self) -> Iterator[InputError]:
        for number, failure in enumerate(self.failures):
            place = f"failures[{number}]"
            yield from collect_errors(
                partial(failure.errors, place, self.training.iterations),
                partial(self._component_errors, failure, place),
            )

    def _hybrid_errors(self) -> Iterator[InputError]:
        if (hybrid := self.hybrid) is None:
            return
        shape, regions = self.training.shape, len(self.wiring.expanded_regions)
        yield from hybrid.region_errors(regions)
        if not self.training.independent:
            yield "hybrid", "regions depend on each other step by step: training.schedule: lockstep"
        if regions != shape.regions:
            job = f"pp {shape.pp} x dp {shape.dp}"
            yield "hybrid", f"{regions} regions are several jobs of {job}: model one job"
        for key, used in (
            ("wiring.backup", self.wiring.backup is not None),
            ("wiring.servers", bool(self.wiring.servers)),
            ("train", self.train is not None),
            ("failures", bool(self.failures)),
        ):
            if used:
                yield key, "a hybrid run has none: leave it out"
        for number, choice in enumerate(self.fabrics):
            place = f"fabrics[{number}]"
            if choice.hosts or choice.patch_panel_nics:
                key = "hosts" if choice.hosts else "patch_panel_nics"
                yield f"{place}.{key}", "a hybrid run has none: leave it out"

    def _component_errors(self, failure: FailureSpec, place: str) -> Iterator[InputError]:
        names = {choice.name for choice in self.fabrics}
        if unknown := [name for name in failure.fabrics if name not in names]:
            message = f"{', '.join(unknown)}: not a fabric here; there are {', '.join(names)}"
            yield f"{place}.fabrics", message
        restarts = self.train is not None and bool(self.train.checkpoint_every)
        replaced = bool(self.wiring.backups) or (failure.kind is FailureKind.GPU and restarts)
        if failure.kind.traits.loses_ranks and not replaced:
            yield f"{place}.kind", "nothing can replace it: give wiring.backup: {servers: 1}"
        has, scale = failure.kind.traits.has, Scale()
        fabrics = [self.build_fabric(choice, "lab", scale) for choice in self.fabrics]
        for name in failure.targets:
            if not any(has(fabric, name) for fabric in fabrics):
                yield f"{place}.targets", f"{name}: no fabric here has such a {failure.kind}"


def _name_errors(choice: FabricChoice, number: int, names: dict[str, int]) -> Iterator[InputError]:
    first = names.setdefault(choice.name, number)
    if first != number:
        yield f"fabrics[{number}].name", f"{choice.name} is taken by fabrics[{first}]"
