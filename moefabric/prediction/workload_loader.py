"""Loads the workload that an experiment's specification describes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moefabric.config import plugins
from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.inputs import check_gating_digest
from moefabric.core.demand import Placement
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric
from moefabric.traces.gating_files import load_gating
from moefabric.traces.route_files import load_routes
from moefabric.workload.gating import traces
from moefabric.workload.gating.fit import fit
from moefabric.workload.gating.generator import GatingGenerator
from moefabric.workload.gating.job_gating import JobGating, RecordedGating
from moefabric.workload.gating.token_routes import TokenRoutes
from moefabric.workload.iterations.split_demand import SplitDemand
from moefabric.workload.models.model import Model, Training
from moefabric.workload.models.payload import Payloads, PayloadTransform
from moefabric.workload.placement.collective_order import CollectiveOrder
from moefabric.workload.placement.expert_exchange import ExpertExchange
from moefabric.workload.placement.placements import CoactivationPlacement, ExpertPlacement
from moefabric.workload.workload import Workload


@contextmanager
def _errors_at(place: str, about: str = "") -> Iterator[None]:
    """Turn a ValueError into an input error at a place of the experiment."""
    try:
        yield
    except ValueError as error:
        raise SpecError([(place, f"{about}{error}")]) from error


def workload(spec: ExperimentSpec, regions: Sequence[Sequence[str]], folder: Path) -> Workload:
    """Return the workload of an experiment.

    Args:
        regions: The servers of each region.
        folder: Folder of the experiment's file; relative paths start there.

    Raises:
        SpecError: The gating can't be read, is another one than declared, or doesn't fit.
    """
    check_gating_digest(spec, folder)
    model, training = spec.model.build(), spec.training.build()
    routes = _routes(spec, folder, model, training) if _needs_routes(spec) else None
    source: NDArray[np.int64] | GatingGenerator
    history: NDArray[np.int64] | int | None
    if spec.train is not None and not spec.gating.is_given:
        source = np.ones((1, 1, training.ep, model.experts), np.int64)
        label, history = "even gating", None
    elif spec.gating.is_generated:
        source, label = _generator(spec, folder, model, training)
        history = spec.gating.history
    else:
        tokens, label = _recorded(spec, folder, len(regions[0]), routes)
        ranks, experts = tokens.shape[2:]
        if (ranks, experts) != (training.ep, model.experts):
            message = f"is for {ranks} ranks and {experts} experts; the model has {training.ep} and"
            remedy = "gating.repeat: true if the model has more, gating.fit, or the file's sizes"
            raise SpecError([("gating", f"{label} {message} {model.experts}: {remedy}")])
        source = tokens[spec.gating.history :]
        history = tokens[: spec.gating.history] if spec.gating.history else None
    work = Workload(
        model,
        training,
        tuple(Placement(tuple(servers), training.ep, model.experts) for servers in regions),
        JobGating(source, label, spec.gating.noise, spec.seed, history, routes),
        spec.training.iterations,
        stages=spec.training.pp,
        nic_rates_bps=_nic_rates(spec, regions),
    )
    return _placed(work, spec.gating.placement, "gating.placement")


def gating_notes(spec: ExperimentSpec, folder: Path) -> Iterator[str]:
    """Yield notes if an experiment's trace is shorter, or of tokens with other experts.

    A trace of a single step or layer stands for all of them.

    Args:
        folder: Folder of the experiment's file; relative paths start there.

    Raises:
        SpecError: The trace can't be read.
    """
    gating, iterations = spec.gating, spec.training.iterations
    if gating.trace is None:
        return
    trace, model = _loaded("trace", folder / gating.trace), spec.model.build()
    recorded, layers = trace.tokens.shape[:2]
    name = gating.trace.name
    left = len(range(gating.first_step, recorded, gating.step_stride))
    if recorded > 1 and left < iterations:
        steps = f"{left} step{'s' * (left > 1)} from gating.first_step {gating.first_step} on"
        yield f"{name} has {steps}, which {iterations} iterations replay repeatedly"
    if 1 < layers < model.layers:
        yield f"{name} has {layers} layers, which the model's {model.layers} replay repeatedly"
    if trace.top_k and trace.top_k != (model.top_k,):
        chosen = " and ".join(map(str, trace.top_k))
        more = f"the model's have {model.top_k}: only the shares of experts count"
        yield f"tokens of {name} have {chosen} experts, {more}"


def _nic_rates(spec: ExperimentSpec, regions: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the rates of NICs by server; none if all are alike."""
    by_server, default = spec.wiring.own_nic_rates, spec.wiring.nic_rate
    servers = [server for region in regions for server in region] if by_server else []
    return {server: by_server.get(server, default) for server in servers}


def workload_on(spec: ExperimentSpec, fabric: Fabric, folder: Path) -> Workload:
    """Return the workload of an experiment on one of its fabrics."""
    return workload(spec, list(fabric.ep_groups.values()), folder)


def training_workload(work: Workload, gating: RecordedGating) -> Workload:
    """Return a workload whose gating comes from the gates of a program."""
    source = JobGating(gating, "gates of the program", seed=work.gating.seed)
    return replace(work, gating=source)


def workload_of(choice: FabricChoice, work: Workload) -> Workload:
    """Return a workload with the placement, payload and order that a fabric's keys choose.

    Raises:
        SpecError: The choice's placement doesn't place each expert once, or the choice needs
            routes of tokens that the gating hasn't.
    """
    if choice.place is not None:
        work = _placed(work, choice.place, "place")
    if choice.transform is not None:
        transform: PayloadTransform = plugins.load_plugin(
            plugins.PAYLOAD_TRANSFORMS, choice.transform, PayloadTransform
        )
        payloads = Payloads(transform, transform)
        work = replace(work, training=replace(work.training, payloads=payloads))
    if choice.collective is not None:
        order: CollectiveOrder = plugins.load_plugin(
            plugins.COLLECTIVE_ORDERS, choice.collective, CollectiveOrder
        )
        work = replace(work, order=order)
    with _errors_at("copies", f"{choice.copies} "):
        work = work.with_copies(choice.copy_rule)
    if choice.experts is not None:
        exchange: ExpertExchange = plugins.load_plugin(
            plugins.EXPERT_EXCHANGES, choice.experts, ExpertExchange
        )
        work = replace(work, expert_exchange=exchange)
    split_demand = SplitDemand(choice.split_demand, choice.demand_error)
    return work.with_first_all_to_alls(choice.dispatch_light, split_demand)


def _placed(work: Workload, reference: str, place: str) -> Workload:
    """Return a workload with the placement of experts that a key of the experiment names."""
    with _errors_at(place):
        return work.with_placement(_placement(reference))


def _placement(reference: str) -> ExpertPlacement:
    placement: ExpertPlacement = plugins.load_plugin(plugins.PLACEMENTS, reference, ExpertPlacement)
    return placement


def _generator(
    spec: ExperimentSpec, folder: Path, model: Model, training: Training
) -> tuple[GatingGenerator, str]:
    """Return the generator of an experiment's gating, and its name."""
    section, fitted = spec.gating, None
    with _errors_at("gating.fit" if section.fit else "gating"):
        if section.fit is not None:
            recorded = _loaded("fit", folder / section.fit).tokens
            _check_first("step", section.first_step, len(recorded), section.fit)
            fitted = fit(traces.GatingTrace(recorded[section.first_step :]), model.top_k)
        sizes = (model.experts, model.top_k, training.rank_tokens)
        parameters = section.parameters(fitted, *sizes)
    label = f"fit of {section.fit.name}" if section.fit else f"generator {section.generator}"
    return GatingGenerator(parameters, training.ep, spec.seed), label


def _loaded(key: str, file: Path) -> traces.GatingTrace:
    """Return the gating in a file that a key of the experiment names; errors name the key, too."""
    try:
        return load_gating(file)
    except SpecError as error:
        faults = [(f"gating.{key}: {place}", fault) for place, fault in error.errors]
        raise SpecError(faults) from error


def _check_first(key: str, first: int, count: int, file: Path) -> None:
    if first >= count:
        message = f"there is no {key} {first} in the {count} of {file.name}"
        raise SpecError([(f"gating.first_{key}", message)])


def _needs_routes(spec: ExperimentSpec) -> bool:
    """Return whether a fabric needs the routes of single tokens, and the gating is a trace."""
    places = [spec.gating.placement, *(one.place for one in spec.fabrics if one.place)]
    return spec.gating.trace is not None and (
        any(not choice.copy_rule.is_default for choice in spec.fabrics)
        or any(isinstance(_placement(place), CoactivationPlacement) for place in places)
    )


def _routes(spec: ExperimentSpec, folder: Path, model: Model, training: Training) -> TokenRoutes:
    """Return the routes of the history and of the iterations after it, spread over the ranks."""
    gating = spec.gating
    assert gating.trace is not None
    routes = load_routes(folder / gating.trace)
    for key in ("noise", "repeat"):
        if getattr(gating, key):
            raise SpecError([(f"gating.{key}", "only counts have it: leave it out for routes")])
    known = int(routes.experts.max()) + 1
    if routes.top_k != model.top_k or known > model.experts:
        sizes = f"{routes.top_k} of {known} or more experts; the model has {model.top_k} of"
        raise SpecError([("gating.trace", f"tokens choose {sizes} {model.experts}")])
    _check_first("step", gating.first_step, routes.experts.shape[0], gating.trace)
    _check_first("layer", gating.first_layer, routes.experts.shape[1], gating.trace)
    with _errors_at("gating.trace"):
        spread = routes.of_ranks(training.ep)
    return spread.steps(_first_known_step(spec), gating.step_stride, gating.first_layer)


def _recorded(
    spec: ExperimentSpec, folder: Path, servers: int, routes: TokenRoutes | None
) -> tuple[NDArray[np.int64], str]:
    """Return the tokens of the history and of the iterations after it, and the file's name."""
    key = "matrix" if spec.gating.matrix else "trace"
    file = spec.gating.matrix or spec.gating.trace
    assert file is not None
    if routes is not None:
        return routes.counts(spec.model.build().experts), file.name
    tokens = _loaded(key, folder / file).tokens
    _check_first("step", spec.gating.first_step, tokens.shape[0], file)
    _check_first("layer", spec.gating.first_layer, tokens.shape[1], file)
    tokens = tokens[_first_known_step(spec) :: spec.gating.step_stride]
    _check_ranks(spec, tokens[: spec.gating.history + spec.training.iterations], file)
    tokens = np.roll(tokens, -spec.gating.first_layer, axis=1)
    if spec.gating.repeat:
        sizes = (spec.training.ep, spec.model.build().experts, servers)
        with _errors_at("gating.repeat"):
            recorded = tokens[: spec.gating.history + spec.training.iterations]
            tokens = traces.repeat_for_servers(recorded, *sizes, spec.seed)
    return tokens, file.name


def _check_ranks(spec: ExperimentSpec, tokens: NDArray[np.int64], file: Path) -> None:
    """Check that each rank has tokens in all layers of the steps that an experiment takes.

    Args:
        spec: The experiment.
        tokens: Tokens [step, layer, rank, expert] from the first step that it takes.
        file: Their file.

    Raises:
        SpecError: If one has none, which leaves open where its tokens go.
    """
    empty = np.argwhere(~tokens.any(axis=-1))
    if not len(empty):
        return
    number, layer, rank = map(int, empty[0])
    step = _first_known_step(spec) + number * spec.gating.step_stride
    who = f"rank {rank} has no" if tokens[number, layer].any() else "no rank has"
    fault = f"{file}: {who} tokens in layer {layer} of step {step}"
    why = "each rank's row says where all its tokens go"
    key = "gating.matrix" if spec.gating.matrix else "gating.trace"
    raise SpecError([(key, f"{fault}, and {why}")])


def _first_known_step(spec: ExperimentSpec) -> int:
    """Return the step of the trace with which the history begins."""
    gating, before = spec.gating, spec.gating.history * spec.gating.step_stride
    if gating.first_step >= before:
        return gating.first_step - before
    steps = f"{gating.history} steps before it, {gating.step_stride} apart"
    message = f"step {gating.first_step} has no {steps}: start at step {before} or later"
    raise SpecError([("gating.history", message)])
