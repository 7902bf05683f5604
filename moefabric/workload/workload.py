"""The workload of an experiment: its gating, placed on servers, as the layers of each iteration."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix, Placement
from moefabric.workload.gating.copilot import GatingPrediction, GatingPredictor
from moefabric.workload.gating.job_gating import JobGating
from moefabric.workload.iterations.iteration import (
    Collective,
    DispatchLight,
    Layer,
    Operation,
    Reconfigure,
    Tokens,
    iteration_operations,
    merge_layers,
    moe_layer,
)
from moefabric.workload.iterations.job import stage_layers
from moefabric.workload.iterations.split_demand import KNOWN, RECENT_ITERATIONS, SplitDemand
from moefabric.workload.models.model import Model, Training
from moefabric.workload.placement.collective_order import CONCURRENT, CollectiveOrder
from moefabric.workload.placement.copy_rule import EACH_EXPERT, CopyRule, routed_layer
from moefabric.workload.placement.expert_exchange import ExpertExchange
from moefabric.workload.placement.placements import ExpertPlacement, expert_order

_Place = tuple[int, int, int, int]
"""Numbers of an iteration, a layer, a region and a micro-batch."""


@dataclass(frozen=True)
class Workload:
    """The training job of an experiment, iteration after iteration.

    Attributes:
        training: How the model is trained.
        placements: Placement of each region, which is one EP group.
        gating: The tokens of each iteration, by the experts' numbers.
        iterations: Number of iterations.
        dispatch_light: The circuits of forward dispatches.
        predictor: Predicts the demand of forward dispatches, for `predict`, and that of splits.
        stages: Number of pipeline stages. Successive regions are successive stages, and each has
            its part of the layers.
        split_demand: The demand for which splits of first all-to-alls are computed.
        expert_orders: The experts of each layer in the order of their ranks; empty if that is the
            order of their numbers.
        order: The order of the transfers of each all-to-all.
        copy_rule: How often a token travels; any but the default needs routes. Predicted demands,
            and those for which splits are computed, have a copy for each expert nevertheless: they
            count in their proportions only.
        expert_exchange: The experts that move to tokens; None if all tokens go to experts.
        nic_rates_bps: Rates of NICs by server; empty if all are alike.
    """

    model: Model
    training: Training
    placements: tuple[Placement, ...]
    gating: JobGating
    iterations: int
    dispatch_light: DispatchLight = "block"
    predictor: GatingPredictor | None = None
    stages: int = 1
    split_demand: SplitDemand = KNOWN
    expert_orders: tuple[tuple[int, ...], ...] = ()
    order: CollectiveOrder = CONCURRENT
    copy_rule: CopyRule = EACH_EXPERT
    expert_exchange: ExpertExchange | None = None
    nic_rates_bps: Mapping[str, float] = field(default_factory=dict)

    def layers_of(self, region: int) -> range:
        """Return the numbers of a region's layers."""
        return stage_layers(self.model.layers, self.stages)[region % self.stages]

    def with_first_all_to_alls(
        self, dispatch_light: DispatchLight = "block", split_demand: SplitDemand = KNOWN
    ) -> "Workload":
        """Return the workload with other circuits and splits of forward dispatches.

        A predictor, if one of them needs it, has learnt nothing yet.
        """
        predictor = None
        if dispatch_light == "predict" or split_demand.source == "predicted":
            layers, regions = self.model.layers, len(self.placements)
            predictor = GatingPredictor(self._tokens, layers, regions, self.gating.first)
        return replace(
            self, dispatch_light=dispatch_light, split_demand=split_demand, predictor=predictor
        )

    def with_copies(self, rule: CopyRule) -> "Workload":
        """Return the workload with another rule of how often a token travels.

        Raises:
            ValueError: If the rule needs routes, and there are none.
        """
        if self.gating.routes is None and not rule.is_default:
            raise ValueError(
                "needs routes of single tokens, the gating has counts by expert: give "
                "gating.trace a file of routes (JSON lines, Parquet, or NumPy with `routes`)"
            )
        return replace(self, copy_rule=rule)

    def with_placement(self, placement: ExpertPlacement) -> "Workload":
        """Return the workload with other ranks of the experts.

        They are chosen, layer by layer, from the history, or the first iteration if there is none.
        A placement that was chosen before has no effect.

        Raises:
            ValueError: If the placement doesn't return each expert once, or needs routes.
        """
        known = range(self.gating.first, 0) or range(1)
        seed = self.gating.seed * self.model.layers
        servers, rates = len(self.placements[0].servers), self._rank_rates_bps

        def order(number: int) -> tuple[int, ...]:
            regions = [r for r in range(len(self.placements)) if number in self.layers_of(r)]
            counts = [self.gating.tokens(one, number, r) for one in known for r in regions]
            tokens = np.sum(counts, axis=0)
            pairs = self.gating.pairs(known, number, self.model.experts)
            return expert_order(placement, tokens, seed + number, pairs, servers, rates)

        return replace(self, expert_orders=tuple(map(order, range(self.model.layers))))

    @property
    def _rank_rates_bps(self) -> list[float]:
        """Rate of a NIC of each rank's server, the slowest of all regions; empty if all are alike.

        Experts have the same ranks in all regions.
        """
        if not self.nic_rates_bps:
            return []
        homes = ([p.servers[p.home(rank)] for rank in range(p.ranks)] for p in self.placements)
        return [min(map(self.nic_rates_bps.__getitem__, s)) for s in zip(*homes, strict=True)]

    def layers(self, iteration: int) -> tuple[Layer, ...]:
        """Return the MoE layers of an iteration, each of all regions."""
        return tuple(self._layer(iteration, number) for number in range(self.model.layers))

    def _layer(self, iteration: int, number: int) -> Layer:
        regions = range(len(self.placements))
        return merge_layers([self.layer_of(iteration, number, region) for region in regions])

    def layer_of(self, iteration: int, number: int, region: int, micro_batch: int = 0) -> Layer:
        """Return one MoE layer of one region; micro-batches differ by their noise alone."""
        place = iteration, number, region, micro_batch
        layer = self._actual_layer(place)
        if self.split_demand.is_exact:
            return layer
        assumed = [self._gated_layer(region, gating) for gating in self._assumed_gatings(place)]
        with_error, seed = self.split_demand.with_error, self.gating.seed
        demands = (with_error(one.demand, seed, (*place, n)) for n, one in enumerate(assumed))
        return replace(layer, split_demands=tuple(demands))

    def _actual_layer(self, place: _Place) -> Layer:
        """Return a layer with its own demand, without that of splits."""
        iteration, number, region, _ = place
        if self.copy_rule.is_default:
            return self._gated_layer(region, self._gating(place))
        order = self.expert_orders[number] if self.expert_orders else range(self.model.experts)
        job, routes = (self.model, self.training), self.gating.layer_routes(iteration, number)
        slots = np.argsort(order)
        return routed_layer(*job, self.placements[region], routes, slots, self.copy_rule)

    def _gated_layer(self, region: int, gating: Tokens) -> Layer:
        return moe_layer(self.model, self.training, self.placements[region], gating)

    def _assumed_gatings(self, place: _Place) -> list[Tokens]:
        """Return the gatings for which splits are computed."""
        (iteration, number, region, _), source = place, self.split_demand.source
        prediction = self.predictions(iteration)[number] if source == "predicted" else None
        if prediction is not None:
            return [prediction.tokens[region]]
        if source == "known":
            return [self._gating(place)]
        iterations = {"last": 1, "recent": RECENT_ITERATIONS}.get(source, 0)
        before = range(max(self.gating.first, iteration - iterations), iteration)
        if not before:
            return [np.ones((self.training.ep, self.model.experts))]
        return [self._gating((earlier, *place[1:])) for earlier in before]

    def _gating(self, place: _Place) -> NDArray[np.int64]:
        tokens = self.gating.tokens(*place)
        return tokens[:, self.expert_orders[place[1]]] if self.expert_orders else tokens

    def _tokens(self, iteration: int, number: int, region: int) -> NDArray[np.float64]:
        return self._gating((iteration, number, region, 0)).astype(np.float64)

    def predictions(self, iteration: int) -> tuple[GatingPrediction | None, ...]:
        """Return the gating predictions of an iteration's layers; none without a predictor."""
        return () if self.predictor is None else self.predictor.predictions(iteration)

    def predicted_demands(self, iteration: int) -> tuple[DemandMatrix | None, ...]:
        """Return the predicted demand of each layer's dispatch, of all regions."""
        numbers = range(self.model.layers if self.predictor else 0)
        return tuple(self.predicted_demand(iteration, number) for number in numbers)

    def predicted_demand(self, iteration: int, number: int) -> DemandMatrix | None:
        """Return the predicted demand of a layer's dispatch; None in the first iteration.

        The prediction uses the gates of the layer before.
        """
        if self.predictor is None:
            return None
        tokens = self.predictor.predicted_tokens(iteration, number)
        if tokens is None:
            return None
        return merge_layers([self._gated_layer(*region) for region in enumerate(tokens)]).demand

    def operations(self, iteration: int) -> tuple[Operation, ...]:
        """Return the operations of an iteration, in order."""
        layers, predicted = self.layers(iteration), self.predicted_demands(iteration)
        job = self.model, self.training
        return tuple(iteration_operations(*job, layers, self.dispatch_light, predicted))

    def warm_up(self) -> tuple[Operation, ...]:
        """Return a reconfiguration, a dispatch and a combine.

        They open connections and fill caches before anything is measured.
        """
        demand = self._layer(0, 0).demand
        back = demand.combine(self.training.combine_ratio(self.model))
        return (
            Reconfigure("forward", 0, demand),
            Collective("dispatch", "forward", 0, demand),
            Collective("combine", "forward", 0, back),
        )

    def total_demand(self) -> DemandMatrix:
        """Return the sum of all dispatches of the job, for circuits that are set once."""

        def of_region(region: int) -> DemandMatrix:
            layers = product(range(self.iterations), self.layers_of(region), [region], [0])
            return DemandMatrix.sum_of([self._actual_layer(place).demand for place in layers])

        return DemandMatrix.block_diagonal(list(map(of_region, range(len(self.placements)))))
