"""HybridEP's claims: layers on a flat fabric and on data centres, beside the paper's formula."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from moefabric.api.plugins import Section
from moefabric_studies.systems.hybrid_ep import codec_training, many_dcs, stream_model
from moefabric_studies.systems.hybrid_ep.bench import (
    Candidate,
    LayerBench,
    LayerRun,
    SpeedRow,
    running_bench,
)
from moefabric_studies.systems.hybrid_ep.graph import HybridEpPass, distinct_share, plain_pass
from moefabric_studies.systems.hybrid_ep.report import GRADIENTS, ONCE, OUTER, Report
from moefabric_studies.systems.hybrid_ep.setup import MB, Cluster, Setup
from moefabric_studies.systems.study import Outcome, StudyContext


class HybridEpStudy:
    """Measures the claims of examples/systems/hybridep.yaml."""

    setup: type[Section] = Setup

    def measure(self, setup: Setup, context: StudyContext) -> Outcome:
        """Measure all claims; see `Study`."""
        report = Report(setup)
        context.reporter.show_message("hybridep: domains of a flat fabric")
        with running_bench(setup.flat_fabric(), setup.runs, setup.wall_s, context) as bench:
            _measure_flat(setup, bench, report)
        for cluster in setup.clusters:
            context.reporter.show_message(f"hybridep: {cluster.dcs} data centres")
            document = setup.cluster_fabric(cluster)
            with running_bench(document, setup.runs, setup.wall_s, context) as bench:
                _ClusterMeasurement(setup, cluster, bench, report).run()
        context.reporter.show_message("hybridep: training with the codec")
        _train(setup, context, report)
        return report.outcome()


def _train(setup: Setup, context: StudyContext, report: Report) -> None:
    """Train without codec, with residuals of the shared expert, and without a shared expert."""
    text, steps = context.folder / setup.training.text, setup.training.steps
    for use in codec_training.CODEC_USES:
        train = partial(codec_training.trained_loss, text, use, setup.compression, steps)
        report.losses[use] = [
            context.keep(f"training, codec {use}, seed {seed}", float, partial(train, seed))
            for seed in range(setup.training.seeds)
        ]


# --- flat fabric ---------------------------------------------------------------------------------


def _measure_flat(setup: Setup, bench: LayerBench, report: Report) -> None:
    """Send each case with each size of domains."""
    workers = 2 * setup.servers
    level = stream_model.Level(workers, many_dcs.goodput(setup.uplink_rate))
    bench.open_connections(plain_pass(workers, MB, 1e-3))
    for case in setup.flat:
        layer = stream_model.MoeLayer(case.tokens * MB, case.experts * MB, case.pre_expert_ms / 1e3)
        report.flat[case.name] = []
        for (domain,) in stream_model.candidates([workers]):
            sent = HybridEpPass(
                (workers,), (domain,), (layer.token_bytes,), layer.expert_bytes, layer.pre_expert_s
            )
            run = bench.run(sent, f"{case.name}, domains of {domain}")
            seconds = stream_model.layer_s(layer, [level], [domain])
            expected = workers * stream_model.worker_bytes(layer, workers, domain)
            report.flat[case.name].append(Candidate((domain,), run, seconds, expected))


# --- data centres --------------------------------------------------------------------------------


class _ClusterMeasurement:
    """The measurements on one cluster."""

    def __init__(self, setup: Setup, cluster: Cluster, bench: LayerBench, report: Report) -> None:
        self._setup, self._cluster, self._bench, self._report = setup, cluster, bench, report
        self._sizes = (cluster.dcs, setup.servers)
        self._levels = many_dcs.levels_of(setup, cluster.dcs, setup.uplink_rate)
        self._compute_s = many_dcs.calibrated_compute_s(setup, cluster)

    def run(self) -> None:
        """Measure speed-ups, the choice of domains, migration, and sizes of experts."""
        self._bench.open_connections(plain_pass(prod(self._sizes), MB, 1e-3))
        for megabytes, published in zip(self._setup.tokens, self._cluster.published, strict=True):
            self._measure_speed(megabytes, published)
        self._measure_variants(self._setup.tokens[-1])
        for tokens, experts in self._setup.ablation:
            self._measure_migration(tokens, experts)
        if self._cluster is self._setup.clusters[-1]:
            self._measure_expert_sizes()
        self._measure_candidates(*self._setup.ablation[0])

    @property
    def _forward_s(self) -> float:
        return self._compute_s * many_dcs.FORWARD_SHARE

    def _best(self, layer: stream_model.MoeLayer, *, prefetch: bool = True) -> tuple[int, ...]:
        return stream_model.best_domains(
            layer, self._levels, prefetch=prefetch, all_to_alls=many_dcs.WITH_BACKWARD
        )

    def _plain(self, tokens: float) -> LayerRun:
        layer = plain_pass(
            prod(self._sizes), tokens * MB, self._forward_s, self._compute_s - self._forward_s
        )
        longer = max(1.0, self._setup.least_tokens / tokens)
        return self._bench.run(layer, f"plain EP, {tokens:g} MB", longer)

    def _pass(
        self, layer: stream_model.MoeLayer, domains: Sequence[int], *, prefetch: bool = True
    ) -> HybridEpPass:
        """Return a layer of HybridEP, forward and backward."""
        return HybridEpPass(
            self._sizes,
            tuple(domains),
            (layer.token_bytes,) * 2,
            layer.expert_bytes,
            self._forward_s,
            self._compute_s - self._forward_s,
            prefetch=prefetch,
        )

    def _send_coded(
        self, tokens: float, experts: float, domains: Sequence[int] | None = None
    ) -> LayerRun:
        """Send a layer whose experts are prefetched and coded, with the time of the codec."""
        layer = many_dcs.coded_layer(self._setup, tokens, experts, self._forward_s)
        cost = self._cost(experts)
        domains = domains or self._best(layer)
        sent = replace(
            self._pass(layer, domains),
            expert_bytes=float(cost.code_bytes),
            encode_s=cost.encode_s,
            decode_s=cost.decode_s,
        )
        sizes = f"{tokens:g} MB, experts of {experts:g} MB"
        return self._bench.run(sent, f"HybridEP {_text(domains)}, {sizes}")

    def _cost(self, experts: float) -> codec_training.CodecCost:
        measure = partial(codec_training.codec_cost, round(experts * MB), self._setup.compression)
        name = f"codec, experts of {experts:g} MB"
        cost = self._bench.context.keep(name, codec_training.CodecCost, measure)
        self._report.codec[experts] = cost
        return cost

    def _measure_speed(self, tokens: float, published: float) -> None:
        plain, hybrid = self._plain(tokens), self._send_coded(tokens, self._setup.expert)
        row = SpeedRow(tokens, plain, hybrid, published)
        self._report.speeds.setdefault(self._cluster.name, []).append(row)

    def _measure_variants(self, tokens: float) -> None:
        """Send layers that differ from HybridEP, or from plain EP, in one respect."""
        setup, dcs = self._setup, self._cluster.dcs
        share = distinct_share(dcs, setup.top_k)
        plain = self._pass(stream_model.MoeLayer(tokens * MB, 0.0, self._forward_s), (1, 1))
        once = replace(plain, token_bytes=(share * tokens * MB, tokens * MB))
        hybrid = self._send_coded(tokens, setup.expert).layer
        home = replace(hybrid, gradient_bytes=setup.expert * MB)
        self._report.variants[self._cluster.name] = {
            ONCE: self._bench.run(once, f"{ONCE}, {tokens:g} MB"),
            OUTER: self._send_coded(tokens, setup.expert, (dcs, 1)),
            GRADIENTS: self._bench.run(home, f"{GRADIENTS}, {tokens:g} MB"),
        }

    def _measure_migration(self, tokens: float, experts: float) -> None:
        """Send a layer with domains alone, and with prefetched and coded experts."""
        layer = stream_model.MoeLayer(tokens * MB, experts * MB, self._forward_s)
        domains = self._best(layer, prefetch=False)
        name = f"domains alone {_text(domains)}, {tokens:g} MB, experts of {experts:g} MB"
        alone = self._bench.run(self._pass(layer, domains, prefetch=False), name)
        migrated = self._send_coded(tokens, experts)
        rows = self._report.migration.setdefault((tokens, experts), [])
        rows.append((self._cluster.name, alone, migrated))

    def _measure_expert_sizes(self) -> None:
        """Send layers with experts of several sizes, prefetched as they are."""
        tokens = self._setup.expert_tokens
        plain = self._plain(tokens)
        for experts in self._setup.expert_sizes:
            layer = stream_model.MoeLayer(tokens * MB, experts * MB, self._forward_s)
            domains = self._best(layer)
            name = f"no codec {_text(domains)}, {tokens:g} MB, experts of {experts:g} MB"
            run = self._bench.run(self._pass(layer, domains), name)
            self._report.expert_sizes.append((experts, plain, run))

    def _measure_candidates(self, tokens: float, experts: float) -> None:
        """Send a layer with all domains of both levels, its experts as they are."""
        layer = stream_model.MoeLayer(tokens * MB, experts * MB, self._forward_s)
        for domains in stream_model.candidates(self._sizes):
            name = f"domains {_text(domains)}, {tokens:g} MB, experts of {experts:g} MB"
            run = self._bench.run(self._pass(layer, domains), name)
            formula_s = (
                self._compute_s
                - self._forward_s
                + stream_model.layer_s(
                    layer, self._levels, domains, all_to_alls=many_dcs.WITH_BACKWARD
                )
            )
            gather = (domains[0] - 1) * layer.expert_bytes
            tokens_bytes = (
                many_dcs.WITH_BACKWARD * layer.token_bytes * (1 - domains[0] / self._sizes[0])
            )
            expected = prod(self._sizes) * (gather + tokens_bytes)
            row = Candidate(domains, run, formula_s, expected)
            self._report.candidates.setdefault(self._cluster.name, []).append(row)


def _text(domains: Sequence[int]) -> str:
    return " x ".join(map(str, domains))
