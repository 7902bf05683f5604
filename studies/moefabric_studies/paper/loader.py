"""Files of `examples/paper`: jobs, published values and tables."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moefabric import GatingGenerator, Model, SpecError, Training, load_model, read_gating
from moefabric.api.plugins import Rate, Section, quantity_field, read_text, read_yaml, validate
from moefabric.api.workloads import add_noise, repeat_for_servers
from moefabric.api.workloads import gating_preset as named_gating
from moefabric_studies.paper.job import GPUS_PER_SERVER, PaperJob

DEFAULT_UTILISATION: Final = 0.4
"""Utilisation of GPUs that aren't calibrated."""
_SEED: Final = 1
S = TypeVar("S", bound=Section)


def load_section(kind: type[S], file: Path) -> S:
    """Return the contents of a YAML file.

    Raises:
        SpecError: with all faults of the file.
    """
    return validate(kind, read_yaml(file), file)


class PaperModelSpec(Section):
    """Model of a job. `experts` and `layers`: their numbers, if they aren't the model's."""

    name: str
    experts: int | None = None
    layers: int | None = None


class PaperTrainingSpec(Section):
    """Parallelism and batch of a job, and the rate of its GPUs' NVLinks in each direction."""

    ep: int
    tp: int
    pp: int
    dp: int
    sequence: int
    micro_batch: int
    micro_batches: int
    nvlink_rate: Rate = quantity_field("3600Gb/s")


class GatingMatrixSpec(Section):
    """A gating matrix: that of a step and layer of a file, or of a generator's preset."""

    file: str | None = None
    generator: str | None = None
    step: int = 0
    layer: int = 0
    noise: float = 0.0

    def generated(
        self, model: Model, ranks: int, rank_tokens: int, layer: int
    ) -> NDArray[np.int64] | None:
        """Return the tokens [rank, expert] of the generator; None if a file has them.

        Raises:
            SpecError: If there is no such preset, or both or none of file and generator are given.
        """
        if (self.file is None) == (self.generator is None):
            raise SpecError([("gating", "file or generator is needed, one of them")])
        if self.generator is None:
            return None
        try:
            parameters = named_gating(
                self.generator, experts=model.experts, top_k=model.top_k, tokens=rank_tokens
            )
        except ValueError as error:
            raise SpecError([("gating.generator", str(error))]) from error
        return GatingGenerator(parameters, ranks, _SEED).tokens(self.step, layer)


class JobSpec(Section):
    """A job."""

    name: str
    model: PaperModelSpec
    training: PaperTrainingSpec
    gating: GatingMatrixSpec

    def build(self, gpu_flops: float, memory_bytes_s: float, folder: Path) -> PaperJob:
        """Return the job, with its gating file in `folder`."""
        sizes, gating = self.training, self.gating
        model = load_model(self.model.name)
        model = replace(
            model,
            experts=self.model.experts or model.experts,
            layers=self.model.layers or model.layers,
        )
        group = (sizes.ep, sizes.tp, sizes.sequence, sizes.micro_batch)
        training = Training(
            *group,
            gpu_flops,
            DEFAULT_UTILISATION,
            sizes.nvlink_rate / 8,
            memory_bytes_s=memory_bytes_s,
        )
        tokens = gating.generated(model, sizes.ep, training.rank_tokens, gating.layer)
        if tokens is None:
            matrix = read_gating(folder / str(gating.file)).matrix(gating.step, gating.layer)
            servers = sizes.ep * sizes.tp // GPUS_PER_SERVER
            try:
                tokens = repeat_for_servers(matrix, sizes.ep, model.experts, servers, _SEED)
            except ValueError as error:
                raise SpecError([(f"{gating.file}: {self.name}", str(error))]) from error
        return PaperJob(
            name=self.name,
            model=model,
            training=training,
            pp=sizes.pp,
            dp=sizes.dp,
            micro_batches=sizes.micro_batches,
            gating=add_noise(tokens, gating.noise, _SEED, (0, 0, 0)),
        )


class JobsFile(Section):
    """`jobs.yaml`: speed and memory of GPUs, and jobs. The default is the memory of an A100."""

    gpu_tflops: float
    memory_rate: Rate = quantity_field("16.3Tb/s")
    jobs: list[JobSpec]


def load_jobs(file: Path) -> dict[str, PaperJob]:
    """Return the jobs of a file by name, on GPUs at `DEFAULT_UTILISATION`.

    Raises:
        SpecError: if the file or a gating file can't be used.
    """
    document = load_section(JobsFile, file)
    gpu = document.gpu_tflops * 1e12, document.memory_rate / 8
    return {spec.name: spec.build(*gpu, file.parent) for spec in document.jobs}


_NETWORKS: Final = {
    "fattree": "fat-tree",
    "mixnet": "mixnet",
    "rail-optimized": "rail-optimised",
    "topoopt": "topoopt",
}
Published = dict[tuple[str, float, str], float]
"""Normalised iteration time by job, NIC rate in bits per second, and network."""


def load_published(path: Path) -> Published:
    """Return the published simulation results; `Mixtral 8*22B` is the job `mixtral-8x22b`.

    Raises:
        SpecError: if the file can't be read.
    """
    return {
        (job, float(row["Bandwidth"]) * 1e9, network): float(row[column])
        for row in csv.DictReader(read_text(path).splitlines())
        for job in [row["Model"].lower().replace(" ", "-").replace("*", "x")]
        for column, network in _NETWORKS.items()
    }


Claim = Literal["value", "at-most", "at-least", "more-than"]
"""Kind of a published value: the value or range itself, or one bound of it. `more-than` excludes
values that the precision can't tell from the bound."""


class RowSpec(Section):
    """A row of a table: the paper's value or range, and the computed measure.

    `null_value`, `precision`, `reading` and `claim` default to the table's.
    """

    row: str
    paper: float | list[float]
    measure: Literal[
        "cost_ratio",
        "cost_ratio_dac",
        "efficiency",
        "speed",
        "circuits",
        "share",
        "transfer_share",
        "traffic",
        "traffic_within",
        "expert_ms",
        "testbed",
        "delay",
        "degree",
        "failure",
        "failure_difference",
        "look_ahead",
        "ocs_ports",
        "ocs_settle_ms",
        "link_up_share",
        "link_up_s",
    ]
    take: Literal["min", "max", "mean"] = "mean"
    rates: list[str] = Field(default_factory=lambda: ["400Gb/s"])
    jobs: list[str] = Field(default_factory=lambda: [""])
    base: str = ""
    network: str = "mixnet"
    replicas: int = 1
    micro_batch: int | None = None
    delay: str = "0s"
    base_delay: str = "0s"
    degree: int = 0
    base_degree: int = 0
    failed: Literal["nic", "gpu", "server", ""] = ""
    parallelism: list[Literal["tensor", "expert", "pipeline", "data"]] = Field(default_factory=list)
    gpus: Literal["server", "stage", ""] = ""
    cluster: Literal["production", "testbed"] = "production"
    profile: str = ""
    link_up: str = "0s"
    jitter: str = "0s"
    pairs: int = 1
    quantile: float | None = None
    claim: Claim = "value"
    null_value: float | Literal["price"] | None = None
    precision: float | None = None
    reading: str = ""
    source: str = ""
    kind: Literal["prediction", "calibrated", "input", "reported"] = "prediction"


class TableHeading(Section):
    """Title of a table, and the place of its values in the paper."""

    title: str
    source: str


class TableSpec(TableHeading):
    """A table.

    `null_value` is the value of its null model, or `price`: the ratio of the networks' prices.
    `null_model` says so in words. `precision` is the precision of the paper's values in the
    table's unit, and `reading` says where it comes from.
    """

    table: str
    rows: list[RowSpec]
    null_value: float | Literal["price"] = 0.0
    null_model: str = ""
    precision: float = 0.0
    reading: str = ""
    unit: str = "x"
    why: str = ""


class IterationTableSpec(TableHeading):
    """The table of the published figures.

    `why` explains differences by network. `blocked_ms` is the reconfiguration delay of additional
    rows.
    """

    null_model: str
    blocked_ms: float
    why: dict[str, str]


class CopilotTableSpec(TableHeading):
    """The table of the demand prediction.

    `above`: predictors that Copilot has to surpass by `precision` points.
    """

    above: list[str]
    precision: float
    reading: str
    null_model: str


class AimsSpec(TableHeading):
    """Aims beyond the paper, relative to the non-blocking EPS."""

    all_to_all: float
    iteration: float
    why: str


class TablesFile(Section):
    """`tables.yaml`."""

    iteration: IterationTableSpec
    tables: list[TableSpec]
    copilot: CopilotTableSpec
    aims: AimsSpec
