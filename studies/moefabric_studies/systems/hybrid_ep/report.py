"""The measures, tables and pictures of the study of HybridEP."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final

from moefabric.api.charts import Axis, curve, document_picture, plot
from moefabric_studies.grids import Grid, captions, grid
from moefabric_studies.systems.hybrid_ep.bench import Candidate, LayerRun, SpeedRow
from moefabric_studies.systems.hybrid_ep.codec_training import CodecCost, CodecUse
from moefabric_studies.systems.hybrid_ep.many_dcs import ManyDcs
from moefabric_studies.systems.hybrid_ep.setup import Setup
from moefabric_studies.systems.hybrid_ep.stream_model import token_share
from moefabric_studies.systems.study import Measure, Outcome

_COUNTS: Final = {1: (56, 0), 2: (24, 8), 4: (8, 24), 8: (0, 56)}
"""Messages of an all-to-all and an all-gather of eight workers, by domain (table VII)."""


ONCE: Final = "plain EP, a token once to each data centre"
OUTER: Final = "HybridEP, domains of data centres only"
GRADIENTS: Final = "HybridEP, gradients of experts return"


Migration = list[tuple[str, LayerRun, LayerRun]]
"""Cluster, domains alone, and domains with prefetched and coded experts."""


@dataclass
class Report:
    """The measurements of the study.

    Attributes:
        setup: Sizes and rates.
        flat: Candidates of each case of the flat fabric.
        speeds: Speed-ups of each cluster, in rising order of tokens.
        variants: Layers with the most tokens that differ in one respect, by cluster and name.
        migration: Layers of each pair of tokens and experts.
        expert_sizes: Size of experts in MB, plain expert parallelism, and HybridEP without codec.
        candidates: All domains of each cluster.
        codec: Cost of the codec by size of experts in MB.
        losses: Loss of each training, by use of the codec.
    """

    setup: Setup
    flat: dict[str, list[Candidate]] = field(default_factory=dict)
    speeds: dict[str, list[SpeedRow]] = field(default_factory=dict)
    variants: dict[str, dict[str, LayerRun]] = field(default_factory=dict)
    migration: dict[tuple[float, float], Migration] = field(default_factory=dict)
    expert_sizes: list[tuple[float, LayerRun, LayerRun]] = field(default_factory=list)
    candidates: dict[str, list[Candidate]] = field(default_factory=dict)
    codec: dict[float, CodecCost] = field(default_factory=dict)
    losses: dict[CodecUse, list[float]] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        """Return all measures, tables and pictures."""
        return Outcome(
            dict(self._measures()),
            {
                "hybridep-domains": domain_picture(self.flat),
                "hybridep-speedups": speed_picture(self.speeds),
            },
            captions("systems/hybrid_ep"),
            [
                *self._domain_grids(),
                self._speed_grid(),
                self._variant_grid(),
                self._migration_grid(),
                self._codec_grid(),
                ManyDcs(self.setup).grid(),
            ],
        )

    # --- measures --------------------------------------------------------------------------------

    def _measures(self) -> Iterator[tuple[str, Measure]]:
        yield "counts", self._counts()
        yield "choice", _choices(self.flat.values())
        yield "choice-dcs", _choices(self.candidates.values())
        yield from self._speed_measures()
        yield from self._migration_measures()
        flat = [row for rows in self.flat.values() for row in rows]
        yield "bytes", _largest([_byte_error(row, row.run.result.bytes_by_eps) for row in flat])
        clusters = [row for rows in self.candidates.values() for row in rows]
        yield "bytes-dcs", _largest([_byte_error(row, row.run.uplink_bytes) for row in clusters])
        yield "many-dcs", ManyDcs(self.setup).measure()
        yield "codec", Measure.median_of([cost.ratio for cost in self.codec.values()])
        for use, losses in self.losses.items():
            pairs = zip(losses, self.losses["none"], strict=True)
            yield f"loss-{use}", Measure.median_of([loss / base for loss, base in pairs])

    def _speed_measures(self) -> Iterator[tuple[str, Measure]]:
        for name, rows in self.speeds.items():
            variants, most = self.variants[name], rows[-1]
            yield f"speed-up-{name}", speed_up(most.plain, most.hybrid)
            yield f"distinct-{name}", speed_up(variants[ONCE], most.hybrid)
            yield f"outer-{name}", speed_up(most.plain, variants[OUTER])
            yield f"gradients-{name}", speed_up(most.plain, variants[GRADIENTS])
        series = [self._speed_ups(name) for name in self.speeds]
        yield "tokens-trend", _least_step(series)
        yield "dcs-trend", _least_step(list(zip(series[0], series[-1], strict=True)))

    def _migration_measures(self) -> Iterator[tuple[str, Measure]]:
        for experts, plain, hybrid in self.expert_sizes:
            yield f"experts-{experts:g}", speed_up(plain, hybrid)
        sizes = [speed_up(plain, hybrid).value for _, plain, hybrid in self.expert_sizes]
        yield "experts-trend", _least_step([sizes])
        for number, rows in enumerate(self.migration.values()):
            gains = [x for _, alone, migrated in rows if (x := speed_up(alone, migrated).value)]
            whole = gains if len(gains) == len(rows) else []
            yield f"migration-{number}", Measure.median_of(whole, "A sample for each cluster.")

    def _counts(self) -> Measure:
        """Return how many of the published counts of messages the sent layers have."""
        agreeing = 0
        for row in next(iter(self.flat.values())):
            tokens, experts = _COUNTS[row.domains[0]]
            agreeing += row.run.messages.get("all_to_all", 0) == 2 * tokens
            agreeing += row.run.messages.get("all_gather", 0) == experts
        return Measure(float(agreeing))

    def _speed_ups(self, cluster: str) -> list[float | None]:
        return [speed_up(row.plain, row.hybrid).value for row in self.speeds[cluster]]

    # --- tables ----------------------------------------------------------------------------------

    def _domain_grids(self) -> Iterator[Grid]:
        header = ("case", "domain", "p", "measured", "formula", "simulation", "bytes", "verdict")
        rows = [
            (name, str(row.domains[0]), f"{token_share(8, row.domains[0]):.2f}", *_times(row))
            for name, candidates in self.flat.items()
            for row in candidates
        ]
        yield grid("systems/hybrid_ep/domains", rows, header=header)
        pairs = [
            (name, " x ".join(map(str, row.domains)), *_times(row, uplink=True))
            for name, candidates in self.candidates.items()
            for row in candidates
        ]
        tokens, experts = self.setup.ablation[0]
        yield grid(
            "systems/hybrid_ep/candidates",
            pairs,
            header=("cluster", "domains", *header[3:6], "bytes over uplinks", "verdict"),
            tokens=tokens,
            experts=experts,
        )

    def _speed_grid(self) -> Grid:
        layers, rows = self.setup.layers, list[tuple[str, ...]]()
        for name, speeds in self.speeds.items():
            for row in speeds:
                cells = (f"{layers * run.seconds:.2f} s" for run in (row.plain, row.hybrid))
                crossed = (f"{run.uplink_bytes / 1e9:.3f} GB" for run in (row.plain, row.hybrid))
                domains = " x ".join(map(str, row.hybrid.layer.domains))
                ratio = _ratio_text(speed_up(row.plain, row.hybrid))
                published = f"{row.published:.2f}x"
                rows.append((name, f"{row.tokens:g}", *cells, domains, ratio, published, *crossed))
        return grid("systems/hybrid_ep/speed-ups", rows, layers=layers)

    def _variant_grid(self) -> Grid:
        layers, tokens = self.setup.layers, self.setup.tokens[-1]
        rows = [
            (cluster, name, f"{layers * run.seconds:.2f} s", f"{run.uplink_bytes / 1e9:.3f} GB",
             _ratio_text(speed_up(self.speeds[cluster][-1].plain, run)))
            for cluster, variants in self.variants.items()
            for name, run in variants.items()
        ]  # fmt: skip
        return grid("systems/hybrid_ep/variants", rows, tokens=tokens, top_k=self.setup.top_k)

    def _migration_grid(self) -> Grid:
        rows = [
            (name, f"{tokens:g}", f"{experts:g}", *_gain_cells(alone, migrated))
            for (tokens, experts), own in self.migration.items()
            for name, alone, migrated in own
        ]
        tokens = f"{self.setup.expert_tokens:g}"
        rows += [
            ("plain EP, no codec", tokens, f"{experts:g}", *_gain_cells(plain, hybrid))
            for experts, plain, hybrid in self.expert_sizes
        ]
        return grid("systems/hybrid_ep/migration", rows)

    def _codec_grid(self) -> Grid:
        rows = tuple(
            (f"{size:g}", f"{cost.ratio:.2f}x", f"{1e3 * cost.encode_s:.2f} ms",
             f"{1e3 * cost.decode_s:.2f} ms")
            for size, cost in sorted(self.codec.items())
        )  # fmt: skip
        return grid("systems/hybrid_ep/codec", rows)


def speed_up(before: LayerRun, after: LayerRun) -> Measure:
    """Return how many times less a layer takes, with a sample for each run."""
    if not (before.is_valid and after.is_valid):
        return Measure(None, note="Bytes are missing, or were counted elsewhere.")
    seconds = zip(before.result.seconds, after.result.seconds, strict=True)
    return Measure.median_of([old / new for old, new in seconds])


def _choices(cases: Iterable[Sequence[Candidate]]) -> Measure:
    """Return the worst time of the formula's choice, relative to the best measured time."""
    ratios = []
    for rows in cases:
        if not all(row.run.is_valid for row in rows):
            return Measure(None)
        chosen = min(rows, key=lambda row: row.formula_s)
        ratios.append(chosen.run.seconds / min(row.run.seconds for row in rows))
    return Measure(max(ratios), tuple(ratios), "A sample for each case.")


def _least_step(series: Iterable[Sequence[float | None]]) -> Measure:
    """Return the least ratio of a value to the one before it, in any of the series."""
    steps = []
    for values in series:
        for before, after in pairwise(values):
            if before is None or after is None:
                return Measure(None)
            steps.append(after / before)
    return Measure(min(steps), tuple(steps))


def _byte_error(row: Candidate, counted: float) -> float | None:
    """Return by how many percent counted bytes differ from the expected ones.

    Where nothing is expected, it is a percentage of what the workers' tokens would be.
    """
    if not row.run.is_valid:
        return None
    whole = row.expected_bytes or sum(row.run.layer.token_bytes)
    return 100 * abs(counted - row.expected_bytes) / whole


def _largest(errors: Sequence[float | None]) -> Measure:
    known = [error for error in errors if error is not None]
    return Measure(max(known) if len(known) == len(errors) else None, tuple(known))


def _times(row: Candidate, *, uplink: bool = False) -> tuple[str, ...]:
    """Return measured time, formula, simulation, bytes beside those of the formula, verdict."""
    counted = row.run.uplink_bytes if uplink else row.run.result.bytes_by_eps
    seconds = row.run.seconds, row.formula_s, row.run.result.model_s
    return (
        *(f"{1e3 * value:.2f} ms" for value in seconds),
        f"{counted / 1e6:.1f} MB of {row.expected_bytes / 1e6:.1f} MB",
        row.run.result.verdict,
    )


def _gain_cells(before: LayerRun, after: LayerRun) -> tuple[str, ...]:
    """Return the times of two layers, and their ratio."""
    times = (f"{1e3 * run.seconds:.1f} ms" for run in (before, after))
    return *times, _ratio_text(speed_up(before, after))


def _ratio_text(measure: Measure) -> str:
    return "—" if measure.value is None else f"{measure.value:.2f}x"


def domain_picture(cases: Mapping[str, Sequence[Candidate]]) -> str:
    """Draw the time of each case over p: a line for the formula, points for measured runs."""
    panels = []
    for name, rows in cases.items():
        high = max(1e3 * max(row.formula_s, *row.run.result.seconds) for row in rows)
        workers = rows[0].run.layer.levels[0]
        shares = [(token_share(workers, row.domains[0]), row) for row in rows]
        formula = [(share, 1e3 * row.formula_s, "") for share, row in shares]
        measured = [
            (share, 1e3 * seconds, f"{name}, domains of {row.domains[0]}: {1e3 * seconds:.2f} ms")
            for share, row in shares
            for seconds in row.run.result.seconds
        ]
        x = Axis(-0.05, 1.05, {0.0: "0", 0.5: "0.5", 1.0: "1"}, name)
        curves = curve(4, formula, marks=False), curve(1, measured, joined=False)
        panels.append(plot("", x, Axis.numbers(0.0, 1.06 * high), curves))
    legend = [("t1", "measured"), ("t4", "formula")]
    title = "Forward pass over p, the share of chunks sent as tokens, ms"
    return document_picture(title, panels, columns=len(panels), legend=legend)


def speed_picture(clusters: Mapping[str, Sequence[SpeedRow]]) -> str:
    """Draw the speed-up of each cluster over the tokens, measured and published."""
    gains = {
        name: [row.plain.seconds / row.hybrid.seconds for row in rows]
        for name, rows in clusters.items()
    }
    published = (row.published for rows in clusters.values() for row in rows)
    highest = max(*published, *chain.from_iterable(gains.values()))
    y, panels = Axis.numbers(0.0, 1.06 * highest), []
    for name, rows in clusters.items():
        values = [row.published for row in rows]
        paper = [(n, value, f"published {value:g}x") for n, value in enumerate(values)]
        measured = [
            (n, gain, f"cluster {name}, {row.tokens:g} MB: {gain:.2f}x")
            for n, (row, gain) in enumerate(zip(rows, gains[name], strict=True))
        ]
        text = f"{rows[0].hybrid.layer.levels[0]} data centres: tokens of a worker, MB"
        texts = {float(n): f"{row.tokens:g}" for n, row in enumerate(rows)}
        x = Axis(-0.5, len(rows) - 0.5, texts, text)
        panels.append(plot("", x, y, (curve(4, paper), curve(1, measured))))
    legend = [("t1", "measured"), ("t4", "published")]
    title = "Speed-up of an iteration over plain expert parallelism"
    return document_picture(title, panels, columns=len(panels), legend=legend)
