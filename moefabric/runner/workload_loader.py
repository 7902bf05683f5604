"""Loads the workload that an experiment's specification describes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moefabric.config.experiment import ExperimentSpec
from moefabric.core.demand import Placement
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric
from moefabric.workload import gating as traces
from moefabric.workload.workload import Workload


def workload(spec: ExperimentSpec, regions: Sequence[Sequence[str]], folder: Path) -> Workload:
    """Return the workload of an experiment.

    Args:
        spec: The experiment.
        regions: The servers of each region.
        folder: Folder of the experiment's file; relative paths start there.

    Raises:
        SpecError: The gating can't be read or doesn't fit.
    """
    model, training = spec.model.build(), spec.training.build()
    gating, label = _gating(spec, folder, len(regions[0]))
    ranks, experts = gating.shape[2:]
    if (ranks, experts) != (training.ep, model.experts):
        message = f"is for {ranks} ranks and {experts} experts; the model has {training.ep} and"
        raise SpecError([("gating", f"{label} {message} {model.experts}")])
    return Workload(
        model,
        training,
        tuple(Placement(tuple(servers), training.ep, model.experts) for servers in regions),
        gating,
        spec.training.iterations,
        label,
        spec.gating.noise,
        spec.seed,
        stages=spec.training.pp,
    )


def workload_on(spec: ExperimentSpec, fabric: Fabric, folder: Path) -> Workload:
    """Return the workload of an experiment on one of its fabrics."""
    return workload(spec, list(fabric.ep_groups.values()), folder)


def _gating(spec: ExperimentSpec, folder: Path, servers: int) -> tuple[NDArray[np.int64], str]:
    file = spec.gating.matrix or spec.gating.trace
    assert file is not None
    tokens = traces.read_gating(folder / file).tokens
    for axis, (key, first) in enumerate(
        (("step", spec.gating.first_step), ("layer", spec.gating.first_layer))
    ):
        if first >= tokens.shape[axis]:
            message = f"there is no {key} {first} in the {tokens.shape[axis]} of {file.name}"
            raise SpecError([(f"gating.first_{key}", message)])
    tokens = tokens[spec.gating.first_step :: spec.gating.step_stride]
    tokens = np.roll(tokens, -spec.gating.first_layer, axis=1)
    if spec.gating.repeat:
        sizes = (spec.training.ep, spec.model.build().experts, servers)
        try:
            recorded = tokens[: spec.training.iterations]
            tokens = traces.repeat_for_servers(recorded, *sizes, spec.seed)
        except ValueError as error:
            raise SpecError([("gating.repeat", str(error))]) from error
    return tokens, file.name
