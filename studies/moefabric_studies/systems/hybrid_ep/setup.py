"""Sizes and rates of the study of HybridEP."""

from typing import Any

from pydantic import Field

from moefabric.api.plugins import Name, Rate, Section
from moefabric_studies.systems.measured import one_nic_fabric

MB = 1e6


class FlatCase(Section):
    """A layer on workers that one switch joins, for which the formula has an optimum."""

    name: Name
    """Name of the case."""
    tokens: float = Field(gt=0)
    """Tokens of a worker, MB."""
    experts: float = Field(gt=0)
    """Experts of a worker, MB."""
    pre_expert_ms: float = Field(gt=0)
    """Computation before the dispatch, ms."""


class Cluster(Section):
    """Data centres, and the paper's measurements on the same number."""

    name: Name
    """Name of the cluster."""
    dcs: int = Field(ge=2)
    """Number of data centres."""
    byte_scale: float = Field(ge=1)
    """Factor by which rates are divided."""
    calibration_s: float = Field(gt=0)
    """Published seconds of an iteration of HybridEP with `calibration_tokens`."""
    published: list[float]
    """Published speed-ups over Tutel, for each number of tokens."""


class ManyDcsSpec(Section):
    """More data centres than a fabric here has, for which the formula is computed."""

    dcs: int = Field(ge=2)
    """Number of data centres."""
    uplinks: list[Rate]
    """Rates of a data centre's uplink."""
    tokens: float = Field(gt=0)
    """Tokens of a worker, MB."""
    domains: list[int]
    """Sizes of a domain of data centres that is kept for all uplinks, divisors of `dcs`."""


class CodecTraining(Section):
    """A small language model that is trained with the codec."""

    text: str
    """The text, relative to the study's file."""
    steps: int = Field(ge=1)
    """Steps of training."""
    seeds: int = Field(ge=1)
    """Number of trainings of each kind, with other seeds."""


class Setup(Section):
    """The section `setup` of the study."""

    servers: int = Field(ge=2)
    """Servers of a data centre; also half of the workers of the flat fabric."""
    nic_rate: Rate
    """Rate of a server's NIC inside a data centre."""
    uplink_rate: Rate
    """Rate of a data centre's uplink, and of a NIC of the flat fabric."""
    flat_byte_scale: float = Field(ge=1)
    """Factor by which rates of the flat fabric are divided."""
    flat: list[FlatCase]
    """Cases of the flat fabric."""
    clusters: list[Cluster]
    """The clusters, the one with fewer data centres first."""
    calibration_tokens: float = Field(gt=0)
    """Tokens of a worker in the published run that gives computation, MB."""
    tokens: list[float]
    """Tokens of a worker, MB, in rising order."""
    least_tokens: float = Field(gt=0)
    """Tokens in MB below which runs of plain EP are longer, so that its messages have packets."""
    expert: float = Field(gt=0)
    """Experts of a worker in these runs, MB."""
    layers: int = Field(ge=1)
    """MoE layers of an iteration, of which one is sent."""
    compression: float = Field(gt=1)
    """Ratio of the codec."""
    top_k: int = Field(ge=1)
    """Experts of a token, for the baseline that sends a token once to each data centre."""
    ablation: list[list[float]]
    """Pairs of tokens and experts in MB, with and without migration of compressed experts."""
    expert_sizes: list[float]
    """Sizes of uncompressed experts in MB, in falling order."""
    expert_tokens: float = Field(gt=0)
    """Tokens of a worker in these runs, MB."""
    many: ManyDcsSpec
    """Many data centres."""
    training: CodecTraining
    """Training with the codec."""
    runs: int = Field(ge=1)
    """Runs of each layer that are measured."""
    wall_s: float = Field(gt=0)
    """Wall seconds of a run, which sets its dilation."""

    def cluster_fabric(self, cluster: Cluster) -> dict[str, Any]:
        """Return the fabric of a cluster: a leaf for each data centre, joined by one spine."""
        ratio = self.servers * self.nic_rate / self.uplink_rate
        eps = {"servers_per_leaf": self.servers, "spines": 1, "oversubscription": ratio}
        workers = self.servers * cluster.dcs
        sizes = workers, self.nic_rate, cluster.byte_scale
        return {**one_nic_fabric(f"hybridep-{cluster.name}", *sizes), "eps": eps}

    def flat_fabric(self) -> dict[str, Any]:
        """Return the fabric whose servers one switch joins."""
        sizes = 2 * self.servers, self.uplink_rate, self.flat_byte_scale
        return one_nic_fabric("hybridep-flat", *sizes)
