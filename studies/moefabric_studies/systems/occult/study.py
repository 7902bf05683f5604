"""Occult: one copy of a token for each device, placement by co-activation, and pruning."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import linregress

from moefabric.api.plugins import ExperimentSpec, Section, experiment_of, read_yaml
from moefabric.api.predictions import workload, workload_of
from moefabric.api.results import FabricResult, RunResult
from moefabric.api.workloads import coactivation, load_routes
from moefabric_studies.grids import Grid, captions, grid
from moefabric_studies.systems.measured import (
    ONE_NIC,
    all_to_all_s,
    cells_of,
    iteration_ratios,
    port_bytes,
    valid_fabrics,
)
from moefabric_studies.systems.occult import structure
from moefabric_studies.systems.occult.pictures import gain_curves, time_points
from moefabric_studies.systems.occult.placement import Occult
from moefabric_studies.systems.occult.structure import sum_at_servers
from moefabric_studies.systems.study import Measure, Outcome, StudyContext

EXPERTS, TOP_K = 64, 8
STEPS: Final = 2
"""Training steps from which placements are chosen, before those that are replayed."""
_STRENGTHS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


class Setup(Section):
    """Sizes and rates of the measurement."""

    routes: str
    """File with routes of single tokens, 8 of 64 experts each."""
    model: str
    """Configuration of the model whose sizes tokens and experts have."""
    nic_rate: str
    """Rate of a server's NIC."""
    sequence: int
    """Tokens of a rank in an iteration."""
    steps: int
    """Iterations that are replayed."""
    layers: int = 3
    """Layers of the model."""


@dataclass(frozen=True)
class Variant:
    """Variant of sending tokens, on a fabric.

    Attributes:
        copies: CT of each layer [iteration, layer].
        load: Standard deviation of servers' tokens, relative to the mean [iteration, layer].
        result: Measurements of the variant.
    """

    name: str
    copies: NDArray[np.float64]
    load: NDArray[np.float64]
    result: FabricResult

    @property
    def port_bytes(self) -> float:
        """Bytes of all all-to-alls at ports."""
        return float(sum(port_bytes(self.result)))

    @property
    def iterations_s(self) -> list[float]:
        """Seconds of each iteration."""
        return [one.measured_s or 0.0 for one in self.result.iterations]

    @property
    def share(self) -> float:
        """Part of the iterations in which only all-to-alls run."""
        exposed = sum(one.exposed_comm_s or 0.0 for one in self.result.iterations)
        return exposed / sum(self.iterations_s)

    def points(self) -> list[tuple[float, float]]:
        """Return CT and median seconds of an all-to-all of each layer."""
        layers = range(self.copies.shape[1])
        seconds = [
            [one.measured_s for one in self.result.collectives if one.layer == n] for n in layers
        ]
        return [(float(self.copies[:, n].mean()), median(seconds[n])) for n in layers]


class OccultStudy:
    """Measures Occult's claims on routes of a trained model."""

    setup = Setup

    def measure(self, setup: Setup, context: StudyContext) -> Outcome:
        """Emulate 4 and 8 servers, and two servers of two GPUs."""
        documents = {
            "4": document(setup, context.folder, 4, 1),
            "8": document(setup, context.folder, 8, 1),
            "2x2": document(setup, context.folder, 2, 2),
        }
        runs = {name: context.run(experiment) for name, experiment in documents.items()}
        ways = {
            name: variants(experiment_of(experiment), context, runs[name])
            for name, experiment in documents.items()
        }
        routes = load_routes(context.folder / setup.routes)
        generated = structure.generated_gains(_STRENGTHS, EXPERTS, TOP_K, 4)
        trained = structure.recorded_gains(routes, STEPS, 4)
        sums = sum_at_servers(routes.layer(STEPS, 0), np.arange(EXPERTS) * 4 // EXPERTS)
        pairs = coactivation(routes.experts[:STEPS, 0], EXPERTS)
        measures = {
            **_of(runs["4"], exact_measures(ways["4"], "4") | time_measures(ways["4"])),
            **_of(runs["8"], exact_measures(ways["8"], "8")),
            **_of(runs["2x2"], hierarchy_measures(ways["2x2"])),
            "swap_saved_4": _saved(
                ways["4"]["occult"].copies.mean(axis=0),
                ways["4"]["occult-swap"].copies.mean(axis=0),
            ),
            "sums_difference": Measure(sums.difference),
            "sums_time": Measure.median_of(sums.time_ratios),
            "greedy_ms": Measure.median_of(structure.placement_ms(pairs, Occult(), 4)),
        }
        return Outcome(
            measures,
            {
                "occult-time": time_points(
                    {
                        n: {k: v.points() for k, v in ways[n].items() if valid_fabrics([v.result])}
                        for n in ("4", "8")
                    }
                ),
                "occult-structure": gain_curves(generated, trained),
            },
            captions("systems/occult"),
            [
                _variants_grid("4", ways["4"]),
                _variants_grid("8", ways["8"]),
                _share_grid(ways["4"]),
                _structure_grid(generated, trained),
            ],
            list(runs.values()),
        )


def document(setup: Setup, folder: Path, servers: int, gpus: int) -> dict[str, Any]:
    """Return the experiment that compares ways to send tokens.

    Args:
        setup: Sizes and rates.
        folder: Folder of the study's file, where the path of the model starts.
        servers: Number of servers.
        gpus: GPUs of a server.
    """
    name = f"{servers}x{gpus}"
    fabrics = read_yaml(Path(__file__).with_name("fabrics.yaml"))[name]
    return {
        "experiment": f"occult-{name}",
        "model": {"config": str(folder / setup.model), "layers": setup.layers},
        "training": {
            "ep": servers * gpus, "tp": 1, "sequence": setup.sequence, "micro_batch": 1,
            "iterations": setup.steps, "gradient_sums": False,
        },
        "gating": {"trace": setup.routes, "first_step": STEPS, "history": STEPS},
        "wiring": {
            "gpus_per_server": gpus,
            "nic_rate": setup.nic_rate,
            "regions": [{"servers": servers}],
        },
        "fabrics": [{"name": name, **ONE_NIC, **keys} for name, keys in fabrics.items()],
        "scale": "auto",
    }  # fmt: skip


def variants(spec: ExperimentSpec, context: StudyContext, run: RunResult) -> dict[str, Variant]:
    """Return each way to send tokens, with its exact copies and its measurements."""
    servers = [f"s{n}" for n in range(spec.servers_per_region)]
    work = workload(spec, [servers], context.folder)
    tokens = spec.training.ep * work.training.rank_tokens
    token_bytes = work.training.dispatch_token_bytes(work.model)
    ways = {}
    for choice, result in zip(spec.fabrics, run.results, strict=True):
        sent = workload_of(choice, work)
        layers = [sent.layers(iteration) for iteration in range(work.iterations)]
        sent_bytes = [[layer.demand.array.sum() for layer in row] for row in layers]
        copies = np.array(sent_bytes) / token_bytes / tokens
        loads = np.array([[layer.busiest_tokens for layer in row] for row in layers])
        spread = loads.std(axis=-1) / loads.mean(axis=-1)
        ways[choice.name] = Variant(choice.name, copies, spread, result)
    return ways


def exact_measures(ways: dict[str, Variant], servers: str) -> dict[str, Measure]:
    """Return linearity, and the savings of the placement at exact results."""
    once, greedy = (ways[n].copies for n in ("once", "occult"))
    points = [point for variant in ways.values() for point in variant.points()]
    fit = linregress(*zip(*points, strict=True))
    each_ms, start_ms = 1e3 * fit.slope, 1e3 * fit.intercept
    note = f"{len(points)} points: {each_ms:.3g} ms for each copy, {start_ms:.3g} ms at none."
    spread, even = (ways[n].load / ways["once"].load for n in ("occult", "balanced"))
    bytes_saved = 1 - ways["occult"].port_bytes / ways["once"].port_bytes
    return {
        f"linear_{servers}": Measure(float(fit.rvalue**2), note=note),
        f"ct_saved_{servers}": _saved(once.mean(axis=0), greedy.mean(axis=0)),
        f"bytes_saved_{servers}": Measure(100 * bytes_saved),
        f"load_ratio_{servers}": Measure.median_of(spread.ravel().tolist()),
        f"even_load_ratio_{servers}": Measure.median_of(even.ravel().tolist()),
    }


def time_measures(ways: dict[str, Variant]) -> dict[str, Measure]:
    """Return the gains of whole iterations, against a copy for each expert."""
    plain = ways["each-expert"]
    note = f"All-to-alls take {plain.share:.0%} of the iteration with a copy for each expert."
    variants = {
        "gain_once": "once", "gain_balanced": "balanced", "gain_exact": "occult",
        "gain_pruned_2": "prune-2", "gain_pruned_1": "prune-1",
    }  # fmt: skip
    return {
        name: Measure.median_of(iteration_ratios(plain.result, ways[variant].result), note)
        for name, variant in variants.items()
    }


def hierarchy_measures(ways: dict[str, Variant]) -> dict[str, Measure]:
    """Return the savings of one copy for each server, against one for each GPU."""
    gpu, server = ways["each-gpu"], ways["each-server"]
    pairs = zip(gpu.points(), server.points(), strict=True)
    return {
        "hierarchical_bytes": Measure(100 * (1 - server.port_bytes / gpu.port_bytes)),
        "hierarchical_time": Measure.median_of(
            [100 * (1 - once[1] / twice[1]) for twice, once in pairs]
        ),
    }


def _of(run: RunResult, measures: dict[str, Measure]) -> dict[str, Measure]:
    """Return the measures, each with the run that gave it."""
    return {name: measure.on(run.experiment) for name, measure in measures.items()}


def _saved(before: NDArray[np.float64], after: NDArray[np.float64]) -> Measure:
    return Measure.median_of((100 * (1 - after / before)).tolist())


def _variants_grid(servers: str, ways: dict[str, Variant]) -> Grid:
    plain = ways["each-expert"]
    rows = [
        (
            name, f"{variant.copies.mean():.2f}",
            *cells_of(
                variant.result,
                f"{variant.port_bytes / plain.port_bytes:.1%}",
                f"{1e3 * all_to_all_s(variant.result):.3g} ms",
            ),
            f"{variant.load.mean():.1%}",
            *cells_of(
                variant.result,
                f"{sum(plain.iterations_s) / sum(variant.iterations_s):.2f}x",
                f"{variant.share:.0%}",
            ),
        )
        for name, variant in ways.items()
    ]  # fmt: skip
    random = structure.expected_copies(EXPERTS, TOP_K, int(servers))
    return grid(
        "systems/occult/variants", rows, name=f"occult-{servers}", servers=servers, random=random
    )


def _share_grid(ways: dict[str, Variant]) -> Grid:
    """Return the gain of an iteration for other shares of all-to-alls (Amdahl's law)."""
    shares, plain = (0.4, 0.5, 0.6, 0.7, 0.8), all_to_all_s(ways["each-expert"].result)
    rows = []
    for name in ("once", "occult", "occult-swap", "balanced", "prune-2", "prune-1"):
        ratio = all_to_all_s(ways[name].result) / plain
        gains = [1 / (1 - share + share * ratio) for share in shares]
        rows.append((name, *cells_of(ways[name].result, *(f"{gain:.2f}x" for gain in gains))))
    return grid(
        "systems/occult/occult-share",
        rows,
        header=("tokens", *(f"{share:.0%}" for share in shares)),
    )


def _structure_grid(
    generated: list[structure.StructureGain], trained: list[structure.StructureGain]
) -> Grid:
    rows = [
        (one.name, f"{one.structure:.3f}", f"{one.greedy:.1f}%", f"{one.swap:.1f}%")
        for one in (*generated, *trained)
    ]
    return grid("systems/occult/occult-structure", rows)
