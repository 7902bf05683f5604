"""Deployments of Aurora with packets: layers on servers of equal and of different speed.

A GPU computes one thing at a time, in the order of Aurora's table 2: the gates of all its models,
their experts, their aggregations. Each model has all-to-alls of its own, which share the ports.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric import ExecutionGraph, Fabric, rate_bps
from moefabric.api import testbeds
from moefabric.api.networks import goodput_share
from moefabric.api.plugins import fabric_of
from moefabric.api.workloads import Node
from moefabric_studies.grids import Grid, grid
from moefabric_studies.systems.aurora.colocation import Deployment, Rates
from moefabric_studies.systems.aurora.deployment import Deployments, typical
from moefabric_studies.systems.study import Measure, StudyContext

ASSIGNED, EVEN, UNEVEN, SMALL, MISLED = (
    "assignment, different speed",
    "co-location, equal speed",
    "co-location, different speed",
    "co-location over the best, four GPUs",
    "co-location for the wrong traffic",
)
"""Kinds of comparisons in the table."""
_MEASURES: Final[Mapping[str, str]] = {
    ASSIGNED: "random_over_sorted",
    EVEN: "lina_over_colocated",
    UNEVEN: "lina_over_colocated_uneven",
}
"""Measure in the model of each comparison with packets."""
_COMPUTE_STREAM = 0


@dataclass(frozen=True)
class Token:
    """Size of a token, and its time on the port of the fastest GPU."""

    size_bytes: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two deployments of the same layers; the second one is expected to take longer."""

    kind: str
    layers: str
    ours: Deployment
    other: Deployment

    @property
    def is_even(self) -> bool:
        """True if all GPUs are equally fast."""
        return len(set(self.ours.rates.tolist())) == 1


Replays = tuple[testbeds.ReplayResult, testbeds.ReplayResult]


@dataclass(frozen=True)
class Replayed:
    """A comparison with packets.

    Attributes:
        comparison: The deployments.
        results: The replay of each.
        token_s: Seconds of a token on the fastest port.
    """

    comparison: Comparison
    results: Replays
    token_s: float

    @property
    def modelled(self) -> float:
        """Ratio of the second deployment's time to the first's in the paper's model."""
        return self.comparison.other.seconds() / self.comparison.ours.seconds()

    @property
    def measured(self) -> float:
        """Ratio of the second deployment's time to the first's with packets."""
        ours, other = (median(result.seconds) for result in self.results)
        return other / ours

    @property
    def errors(self) -> tuple[float, float]:
        """Times with packets over those in the paper's model, minus 1."""
        deployments = self.comparison.ours, self.comparison.other
        first, second = (
            median(sent.seconds) / (modelled.seconds() * self.token_s) - 1
            for sent, modelled in zip(self.results, deployments, strict=True)
        )
        return first, second


def comparisons(deployments: Deployments, layers: int) -> Iterator[Comparison]:
    """Yield the comparisons to replay: evenly spread layers, and a spot check of each other claim.

    Aurora's deployment stands against the one whose time in the model is the median of its rivals.
    """
    rates, even = deployments.rates, deployments.even
    every, pairs = deployments.layers, list(deployments.pairs)
    chosen = np.linspace(0, len(every) - 1, layers).round().astype(int).tolist()
    for number in chosen:
        ours, others = deployments.assignments(every[number])
        yield Comparison(ASSIGNED, f"{number}", ours, typical(others))
    for kind, speeds in ((EVEN, even), (UNEVEN, rates)):
        for number in chosen:
            ours, others = deployments.colocations(pairs[number], speeds)
            layer_pair = f"{number} and {(number + 1) % len(every)}"
            yield Comparison(kind, layer_pair, ours, typical(others))
    ours, others = deployments.small(0)
    yield Comparison(SMALL, "generated", min(others, key=Deployment.seconds), ours)
    yield Comparison(MISLED, "0 and 1", *deployments.misled(pairs[0], rates))


def replayed(
    pairs: Sequence[Comparison],
    fabrics: Mapping[bool, Fabric],
    token_bytes: float,
    wall_s: float,
    context: StudyContext,
) -> list[Replayed]:
    """Replay comparisons with packets. Needs root.

    Args:
        fabrics: The fabric of GPUs of different speed, and that of equal ones (True).
        token_bytes: Bytes of a token.
        wall_s: Wall seconds of a replay.
        context: Keeps what has been measured.
    """
    results, kind = [], tuple[testbeds.ReplayResult, testbeds.ReplayResult]
    for is_even, fabric in fabrics.items():
        fastest_bps = max(fabric.rates_bps) * goodput_share(fabric.mtu)
        token = Token(token_bytes, 8 * token_bytes / fastest_bps)
        with testbeds.emulated_programs(fabric) as programs:
            for pair in (pair for pair in pairs if pair.is_even == is_even):
                replay, name = partial(_replays, programs, pair, token, wall_s), pair.kind
                both = context.keep(f"{name}, layers {pair.layers}", kind, replay)
                results.append(Replayed(pair, both, token.seconds))
    return results


def _replays(
    programs: testbeds.ProgramFabric, pair: Comparison, token: Token, wall_s: float
) -> Replays:
    options = testbeds.ReplayOptions(runs=1, wall_s=wall_s)
    first, second = (
        testbeds.TraceReplay(programs, inference_graph(deployment, token), options).run()
        for deployment in (pair.ours, pair.other)
    )
    return first, second


def server_fabric(name: str, experiment: Mapping[str, Any], rates: Rates) -> Fabric:
    """Return a fabric with one server for each GPU, whose NICs are as fast as the GPU.

    Args:
        name: Name of the fabric.
        experiment: Has the wiring and the scale of the emulation.
        rates: Rates of the GPUs, relative to the fastest.
    """
    fastest = rate_bps(experiment["wiring"]["nic_rate"])
    document = {
        **experiment["wiring"],
        "fabric": name,
        "nics": {"electrical": 1},
        "scale": experiment["scale"],
        "servers": {
            f"s{n}": {"nic_rate": f"{rate}b/s"} for n, rate in enumerate((rates * fastest).tolist())
        },
    }
    return fabric_of(document).build()


def deployment_measures(
    modelled: Mapping[str, Measure], results: Sequence[Replayed]
) -> dict[str, Measure]:
    """Return the measures of deployments, with packets where replays exist.

    Args:
        modelled: Measures in the paper's model, which notes quote.
    """
    measures = dict(modelled)
    for name, kind in (("colocated_over_best", SMALL), ("loss_by_wrong_traffic", MISLED)):
        note = f"{modelled[name].note} {_spot_check(results, kind)}"
        measures[name] = replace(modelled[name], note=note)
    for kind, name in _MEASURES.items():
        replays = [replay for replay in results if replay.comparison.kind == kind]
        gaps = [100 * (replay.measured / replay.modelled - 1) for replay in replays]
        broken = any(one.verdict == "invalid" for replay in replays for one in replay.results)
        measure = modelled[name]
        note = (
            f"The paper's model has {median(replay.modelled for replay in replays):.3g}x for the "
            f"same deployments ({median(gaps):+.1f} % with packets), and {measure.value:.3g}x for "
            f"all {len(measure.samples)} layers. {measure.note}"
        )
        ratios = [] if broken else [replay.measured for replay in replays]
        measures[name] = Measure.median_of(ratios, note.strip())
    return measures


def _spot_check(results: Sequence[Replayed], kind: str) -> str:
    """Return a sentence about a comparison that was replayed once."""
    [check] = [r for r in results if r.comparison.kind == kind]
    return (
        f"One spot check with packets: {check.measured:.3g}x, in the model {check.modelled:.3g}x "
        f"({100 * (check.measured / check.modelled - 1):+.1f} %)."
    )


def deployment_grid(results: Sequence[Replayed]) -> Grid:
    """Return the times of both deployments of each comparison, in the model and with packets."""
    rows = [
        (
            replay.comparison.kind,
            replay.comparison.layers,
            f"{replay.modelled:.3f}x",
            f"{replay.measured:.3f}x",
            *(f"{100 * error:+.1f} %" for error in replay.errors),
            *(f"{100 * result.error:+.1f} %" for result in replay.results),
        )
        for replay in results
    ]
    verdicts = [result.verdict for replay in results for result in replay.results]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
    return grid("systems/aurora/deployments", rows, counts=counts)


def inference_graph(deployment: Deployment, token: Token, name: str = "") -> ExecutionGraph:
    """Return the operations of all GPUs; rank r is GPU r."""
    groups = {f"model{number}": hosted.gpus for number, hosted in enumerate(deployment.hosted)}
    ranks = range(len(deployment.rates))
    return ExecutionGraph({gpu: _operations(deployment, gpu, token) for gpu in ranks}, groups, name)


def _operations(deployment: Deployment, gpu: int, token: Token) -> tuple[Node, ...]:
    """Return a GPU's computations and the all-to-alls between them."""
    token_s = token.seconds / float(deployment.rates[gpu])
    models = [(n, hosted) for n, hosted in enumerate(deployment.hosted) if gpu in hosted.gpus]
    nodes: list[Node] = []
    arrived: dict[int, tuple[int, ...]] = {}
    for stage, exchange in (("gate", "dispatch"), ("expert", "combine"), ("aggregation", "")):
        for model, hosted in models:
            layer, place = hosted.layer, hosted.gpus.index(gpu)
            sent, received = layer.tokens[place], layer.tokens[:, place]
            load = layer.expert * received.sum() if stage == "expert" else layer.gate * sent.sum()
            after, seconds = arrived.get(model, ()), float(load) * token_s
            nodes.append(Node(len(nodes), "compute", stage, after, seconds, stream=_COMPUTE_STREAM))
            if not exchange:
                continue
            splits = _splits(sent if stage == "gate" else received, place, token)
            arrived[model] = (len(nodes),)
            nodes.append(
                Node(
                    len(nodes),
                    "collective",
                    exchange,
                    (len(nodes) - 1,),
                    size=sum(splits),
                    collective="all_to_all",
                    group=f"model{model}",
                    splits=splits,
                )
            )
    return tuple(nodes)


def _splits(tokens: NDArray[np.float64], gpu: int, token: Token) -> tuple[int, ...]:
    """Return the bytes to each GPU, none to the GPU itself."""
    return tuple(
        0 if place == gpu else round(count * token.size_bytes)
        for place, count in enumerate(tokens.tolist())
    )
