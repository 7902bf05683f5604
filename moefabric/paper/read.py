"""The paper's jobs and published values, as `examples/paper` has them."""

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError

from agents import traces
from moefabric.errors import SpecError
from moefabric.experiment.noise import noisy
from moefabric.model import MODELS, Known, Model, Training
from moefabric.paper.job import Job
from moefabric.spec.part import Part

DEFAULT_UTILISATION: Final = 0.4
"""Of GPUs that nothing is calibrated for."""
_SEED: Final = 1


class ModelPart(Part):
    """A known model by name, or with another number of experts."""

    name: Known
    experts: int | None = None

    def sized(self) -> Model:
        """The model with its change."""
        known = MODELS[self.name]
        return replace(known, experts=self.experts or known.experts)


class TrainingPart(Part):
    """How it trains."""

    ep: int
    tp: int
    pp: int
    dp: int
    sequence: int
    micro_batch: int
    micro_batches: int


class GatingPart(Part):
    """One gating matrix: of a file that has one, or of a step and layer of a trace. `noise` as `moefabric.experiment.noise` has it."""

    file: str
    step: int = 0
    layer: int = 0
    noise: float = 0.0


class JobPart(Part):
    """One job."""

    name: str
    model: ModelPart
    training: TrainingPart
    gating: GatingPart


class Jobs(Part):
    """`jobs.yaml`."""

    gpu_tflops: float
    jobs: list[JobPart]


def jobs(file: Path) -> dict[str, Job]:
    """Every job by its name, on GPUs at `DEFAULT_UTILISATION`. SpecError where the file or a trace can't be used."""
    said = checked(Jobs, file)
    read = cache(traces.gating)
    return {part.name: _job(part, said.gpu_tflops * 1e12, file.parent, read) for part in said.jobs}


def _job(part: JobPart, gpu_flops: float, folder: Path, read: Callable[[Path], traces.Gating]) -> Job:
    said, model = part.training, part.model.sized()
    one = read(folder / part.gating.file).matrix(part.gating.step, part.gating.layer)
    tokens = traces.repeated(one, said.ep, model.experts)
    return Job(
        name=part.name,
        model=model,
        training=Training(
            ep=said.ep,
            tp=said.tp,
            sequence=said.sequence,
            micro_batch=said.micro_batch,
            gpu_flops=gpu_flops,
            utilisation=DEFAULT_UTILISATION,
        ),
        pp=said.pp,
        dp=said.dp,
        micro_batches=said.micro_batches,
        gating=noisy(tokens, part.gating.noise, _SEED, (0, 0, 0)),
    )


P = TypeVar("P", bound=Part)


def checked(kind: type[P], file: Path) -> P:
    """What a YAML file holds. SpecError, with each fault's place, where it can't be read or isn't that."""
    try:
        said: Any = yaml.safe_load(file.read_text())
    except OSError as error:
        raise SpecError([(str(file), f"can't be read: {error.strerror}")]) from error
    except yaml.YAMLError as error:
        raise SpecError([(str(file), f"is not YAML: {error}")]) from error
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        faults = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
        raise SpecError([(f"{file}: {place}", what) for place, what in faults]) from error


NETWORK_OF: Final = {
    "fattree": "fat-tree",
    "mixnet": "mixnet",
    "rail-optimized": "rail-optimised",
    "topoopt": "topoopt",
}
JOB_OF: Final = {
    "Mixtral 8*22B": "mixtral-8x22b",
    "Mixtral 8*7B": "mixtral-8x7b",
    "Llama-MoE": "llama-moe",
    "Qwen-MoE": "qwen-moe",
}
Published = dict[tuple[str, float, str], float]
"""Normalised iteration time by job, NIC rate in bits a second, and network."""


def published(path: Path) -> Published:
    """The published simulation results. SpecError where the file isn't there."""
    if not path.is_file():
        raise SpecError([(str(path), "there is no such file")])
    with path.open(newline="") as file:
        return {
            (JOB_OF[row["Model"]], float(row["Bandwidth"]) * 1e9, NETWORK_OF[column]): float(row[column])
            for row in csv.DictReader(file)
            for column in NETWORK_OF
        }


class RowPart(Part):
    """A row: what the paper says (a value, or a range), and what to measure."""

    row: str
    paper: float | list[float]
    measure: Literal[
        "cost_ratio", "efficiency", "speed", "circuits", "share", "delay", "diverted", "degree", "failure"
    ]
    take: Literal["min", "max", "mean"] = "mean"
    rates: list[str]
    jobs: list[str] = Field(default_factory=lambda: [""])
    base: str = ""
    replicas: int = 1
    delay: str = "0s"
    base_delay: str = "0s"
    degree: int = 0
    base_degree: int = 0
    failed: Literal["nic", "gpu", "server", ""] = ""


class TablePart(Part):
    """A table of rows with one band: `relative` to the paper's value, or `absolute` in its unit."""

    table: str
    title: str
    source: str
    rows: list[RowPart]
    relative: float = 0.0
    absolute: float = 0.0
    unit: str = "x"
    why: str = ""


class IterationPart(Part):
    """The table of the published figures; `why` by network. `blocked_ms`: told beside it, each forward dispatch waiting that long."""

    title: str
    source: str
    relative: float
    blocked_ms: float
    why: dict[str, str]


class CopilotPart(Part):
    """What Copilot has to predict better than."""

    title: str
    source: str
    above: list[str]


class PastPart(Part):
    """The aims past the paper, relative to the non-blocking EPS."""

    title: str
    source: str
    all_to_all: float
    iteration: float
    why: str


class Tables(Part):
    """`tables.yaml`."""

    iteration: IterationPart
    tables: list[TablePart]
    copilot: CopilotPart
    past: PastPart
