"""The contradictions between the keys of an experiment."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from moefabric.config.failure_schedule import FailureSpec
from moefabric.config.section import InputError, collect_errors
from moefabric.core.errors import SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.units import Scale

if TYPE_CHECKING:
    from moefabric.config.experiment import ExperimentSpec, FabricChoice


def contradictions(spec: "ExperimentSpec") -> Iterator[InputError]:
    """Yield the contradictions between values that are valid by themselves."""
    checks = (
        _model_errors,
        _expert_errors,
        _rank_errors,
        _gating_errors,
        _train_errors,
        _shape_errors,
        _server_errors,
        _region_errors,
        _fabric_errors,
        _host_errors,
        _scale_errors,
        _failure_errors,
        _hybrid_errors,
    )
    yield from collect_errors(*(partial(check, spec) for check in checks))


def _model_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    try:
        spec.model.build()
    except SpecError as error:
        yield from ((f"model.{place}", message) for place, message in error.errors)


def _expert_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    experts, ranks = spec.known_model.experts, spec.training.ep
    if experts % ranks:
        yield "model.experts", f"{experts} experts don't fill {ranks} ranks evenly"


def _rank_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    servers, ep = spec.servers_per_region, spec.training.ep
    if ep % servers:
        fault = f"{ep} ranks don't fill {servers} servers evenly"
        yield "training.ep", f"{fault}: {_region_remedy(spec)}"
    tp, gpus = spec.training.tp, servers * spec.wiring.gpus_per_server
    if ep * tp != gpus:
        which = "servers" if len(spec.wiring.expanded_regions) == 1 else "servers of a region"
        message = f"ep {ep} x tp {tp} needs {ep * tp} GPUs, {servers} {which} have {gpus}"
        yield "training", f"{message}, which it must fill: {_parallelism_that_fits(spec)} does"


def _parallelism_that_fits(spec: "ExperimentSpec") -> str:
    """Return an ep or tp, or both, that fill the GPUs of a region; the given ones if possible."""
    servers, gpus = spec.servers_per_region, spec.wiring.gpus_per_server
    ep, tp = spec.training.ep, spec.training.tp
    if servers * gpus % ep == 0 and ep % servers == 0:
        return f"tp {servers * gpus // ep}"
    return f"ep {servers * gpus // tp}" if gpus % tp == 0 else f"ep {servers} x tp {gpus}"


def _region_remedy(spec: "ExperimentSpec") -> str:
    """Return how ranks that don't fill the servers of a region would: more, or smaller regions."""
    servers, training = spec.servers_per_region, spec.training
    multiple = f"ep must be a multiple of {servers}"
    smaller, left = divmod(training.ep * training.tp, spec.wiring.gpus_per_server)
    regions = sum(region.count for region in spec.wiring.regions)
    is_single = regions == 1 and training.shape.regions == 1
    if not is_single or not smaller or left or training.ep % smaller or servers % smaller:
        return multiple
    count = servers // smaller
    return f"{multiple}, or take regions of {smaller} servers (count: {count}) and dp {count}"


def _shape_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    shape, regions = spec.training.shape, len(spec.wiring.expanded_regions)
    needed = shape.regions
    if regions % needed:
        job = f"pp {shape.pp} x dp {shape.dp}"
        yield "training", f"{job} takes {needed} regions a job, {regions} are wired"
    if (layers := spec.known_model.layers) < shape.pp:
        message = f"{shape.pp} stages need as many layers, {layers} given"
        yield "training.pp", message
    if spec.training.schedule == "lockstep" and not shape.is_single_group:
        message = "lockstep allows one stage, replica and micro-batch only: leave schedule out"
        yield "training.schedule", message
    if needed > 1 and not all(choice.electrical for choice in spec.fabrics):
        message = "stages and replicas are connected by the EPS: give servers electrical NICs"
        yield "training.pp", message


def _gating_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    if "gating" not in spec.model_fields_set:
        if spec.train is None:
            yield "gating", "is missing"
    elif spec.train is None or spec.gating.is_given:
        yield from spec.gating.errors()


def _train_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    if spec.train is None:
        return
    yield from spec.train.errors(spec.known_model, spec.training.build())
    if len(spec.wiring.expanded_regions) > 1 or spec.training.independent:
        message = "a program trains in one region: one stage, one replica, one micro-batch"
        yield "train", message
    if spec.scale != "auto" and "bytes" in spec.scale.model_fields_set:
        yield "scale.bytes", "the sizes of the program and of the model give it: leave it out"
    for number, choice in enumerate(spec.fabrics):
        if choice.place is not None:
            yield f"fabrics[{number}].place", "the program places its experts: leave it out"
        if choice.experts is not None:
            yield f"fabrics[{number}].experts", "the program's experts stay: leave it out"
        if choice.is_ordered:
            message = "the program's all-to-alls have one phase: leave it out"
            yield f"fabrics[{number}].collective", message


def _server_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    yield from spec.wiring.modelled_size_errors("wiring.")
    yield from spec.wiring.server_errors("wiring.")
    if spec.wiring.controller == "external":
        remedy = "a run moves light by the regions' controllers: own or external-eps"
        yield "wiring.controller", f"external: {remedy}"


def _region_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    first = spec.servers_per_region
    for number, region in enumerate(spec.wiring.regions):
        if region.servers != first:
            sizes = f"{first} servers in regions[0], {region.servers} here"
            place = f"wiring.regions[{number}].servers"
            yield place, f"EP groups of a job have equal sizes: {sizes}"


def _fabric_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    names: dict[str, int] = {}
    for number, choice in enumerate(spec.fabrics):
        place = f"fabrics[{number}]"
        yield from collect_errors(
            partial(_name_errors, choice, number, names),
            partial(choice.policy_errors, place),
            partial(_wiring_errors, spec, choice, place),
            partial(_eps_errors, spec, choice, place),
            partial(_real_server_errors, spec, choice, place),
        )


def _wiring_errors(
    spec: "ExperimentSpec", choice: "FabricChoice", place: str
) -> Iterator[InputError]:
    yield from spec.wiring.connection_errors(choice, place, "wiring.")
    yield from spec.wiring.forwarding_errors(choice, place)
    if choice.forwarding_rate is not None and not spec.transport_of(choice).paced:
        remedy = "give transport: paced, or leave it out"
        yield f"{place}.forwarding_rate", f"only the pace of flows keeps to it: {remedy}"


def _eps_errors(spec: "ExperimentSpec", choice: "FabricChoice", place: str) -> Iterator[InputError]:
    eps, eps_place = choice.eps, f"{place}.eps"
    if eps is None:
        eps, eps_place = spec.wiring.eps, "wiring.eps"
    yield from spec.wiring.eps_errors(choice, eps, eps_place)
    remedy = "give this fabric an eps without nic_per_gpu"
    if eps.nic_per_gpu and choice.experts:
        yield f"{place}.experts", f"moved experts leave open which GPUs send: {remedy}"
    if eps.nic_per_gpu and choice.hosts:
        yield f"{place}.hosts", f"real servers choose their NICs themselves: {remedy}"


def _real_server_errors(
    spec: "ExperimentSpec", choice: "FabricChoice", place: str
) -> Iterator[InputError]:
    if choice.hosts and choice.policy != "eps":
        yield f"{place}.policy", "real servers have a network of their own: their policy is eps"
    if choice.hosts and not spec.hosts:
        yield f"{place}.hosts", "no real servers are given: fill `hosts:`"


def _host_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    servers = spec.wiring.server_count + spec.wiring.backups
    if spec.hosts and len(spec.hosts) < servers:
        yield "hosts", f"{servers} servers are wired, {len(spec.hosts)} hosts given"


def _scale_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    if (scale := spec.given_scale()) is not None:
        place = "scale.bytes" if spec.train is None else "scale.dilation"
        yield from spec.wiring.rate_errors(scale, place)


def _failure_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    for number, failure in enumerate(spec.failures):
        place = f"failures[{number}]"
        yield from collect_errors(
            partial(failure.errors, place, spec.training.iterations),
            partial(_component_errors, spec, failure, place),
        )


def _hybrid_errors(spec: "ExperimentSpec") -> Iterator[InputError]:
    if (hybrid := spec.hybrid) is None:
        return
    shape, regions = spec.training.shape, len(spec.wiring.expanded_regions)
    for number, name in enumerate(hybrid.emulated):
        if name not in {f"r{index}" for index in range(regions)}:
            remedy = f"give r0 to r{regions - 1}"
            yield f"hybrid.emulated[{number}]", f"{name}: there is no such region; {remedy}"
    if not spec.training.independent:
        yield "hybrid", "regions depend on each other step by step: training.schedule: lockstep"
    if regions != shape.regions:
        job = f"pp {shape.pp} x dp {shape.dp}"
        yield "hybrid", f"{regions} regions are several jobs of {job}: model one job"
    for key, used in (
        ("wiring.backup", spec.wiring.backup is not None),
        ("wiring.servers", bool(spec.wiring.servers)),
        ("train", spec.train is not None),
        ("failures", bool(spec.failures)),
    ):
        if used:
            yield key, "a hybrid run has none: leave it out"
    for number, choice in enumerate(spec.fabrics):
        place = f"fabrics[{number}]"
        if choice.hosts or choice.patch_panel_nics:
            key = "hosts" if choice.hosts else "patch_panel_nics"
            yield f"{place}.{key}", "a hybrid run has none: leave it out"


def _component_errors(
    spec: "ExperimentSpec", failure: FailureSpec, place: str
) -> Iterator[InputError]:
    names = {choice.name for choice in spec.fabrics}
    if unknown := [name for name in failure.fabrics if name not in names]:
        message = f"{', '.join(unknown)}: not a fabric here; there are {', '.join(names)}"
        yield f"{place}.fabrics", message
    restarts = spec.train is not None and bool(spec.train.checkpoint_every)
    replaced = bool(spec.wiring.backups) or (failure.kind is FailureKind.GPU and restarts)
    if failure.kind.traits.loses_ranks and not replaced:
        yield f"{place}.kind", "nothing can replace it: give wiring.backup: {servers: 1}"
    has, scale = failure.kind.traits.has, Scale()
    fabrics = [spec.build_fabric(choice, "lab", scale) for choice in spec.fabrics]
    for name in failure.targets:
        if not any(has(fabric, name) for fabric in fabrics):
            yield f"{place}.targets", f"{name}: no fabric here has such a {failure.kind}"


def _name_errors(
    choice: "FabricChoice", number: int, names: dict[str, int]
) -> Iterator[InputError]:
    first = names.setdefault(choice.name, number)
    if first != number:
        yield f"fabrics[{number}].name", f"{choice.name} is taken by fabrics[{first}]"
