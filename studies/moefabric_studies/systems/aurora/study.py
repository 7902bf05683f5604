"""Aurora: orders of all-to-alls with packets, and deployments of experts in its own model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from moefabric import Result
from moefabric.api.plugins import InputPath, Section, experiment_of
from moefabric.api.results import FabricResult, joined_phases
from moefabric.api.workloads import CollectiveOrder, load_gating
from moefabric_studies.grids import Grid, captions, grid
from moefabric_studies.systems.aurora import orders, packets
from moefabric_studies.systems.aurora.colocation import moving
from moefabric_studies.systems.aurora.deployment import Deployments
from moefabric_studies.systems.aurora.pictures import OrderRatios, orders_picture, phases_picture
from moefabric_studies.systems.measured import ONE_NIC, cells_of, times_s, valid_fabrics
from moefabric_studies.systems.study import Measure, Outcome, StudyContext

TCP, AURORA_TCP = "concurrent-tcp", "aurora-tcp"
SOLVE_REPEATS: Final = 9
"""Computations of the phases of each demand, of whose times the median counts."""
CONCURRENT: Final = "concurrent"
_COMPARED: Final = (
    orders.Aurora(), orders.AuroraGreedy(), orders.RingShift(), orders.RandomOrder(),
    orders.ShortestFirst(),
)  # fmt: skip
ORDERS: Final[Mapping[str, CollectiveOrder]] = {order.name: order for order in _COMPARED}
AURORA, GREEDY, RING, RCS, SJF = ORDERS
_DRAWS: Final = 8
"""Demands of each exponent."""
Demand = NDArray[np.float64]
"""Bytes or tokens [from, to] that leave their server."""


class Setup(Section):
    """Inputs and sizes of the measurement."""

    trace: InputPath
    """Tokens [step, layer, rank, expert]."""
    steps: list[int] = Field(min_length=1)
    """Steps of the trace that are modelled; the first one is replayed with packets."""
    layers: int = Field(ge=1)
    """First layers of the trace that are replayed with packets."""
    barrier_s: float = Field(ge=0)
    """Model seconds of the barrier between synchronous phases."""
    shortest: float = Field(gt=0, lt=1)
    """Part of the busiest port's bytes below which phases are joined."""
    shallow_queue: str
    """Room of the queues of NICs and switch ports in the run with shallow queues."""
    rates: list[float] = Field(min_length=2)
    """Rates of GPUs of different speed, relative to the fastest."""
    wrong_traffic: float = Field(ge=0, le=1)
    """Part of the traffic that is random when experts are placed for the wrong traffic."""
    expert: float = Field(gt=0)
    """Time of a token in an expert, relative to that on a port."""
    gate: float = Field(ge=0)
    """Time of a token in the gate, and in the aggregation, relative to that on a port."""
    deployed_layers: int = Field(ge=1)
    """Layers, spread evenly over all steps, whose deployments are replayed with packets."""
    deployed_wall_s: float = Field(gt=0)
    """Wall seconds of each of these replays."""
    matrix: InputPath
    """Tokens [rank, expert] of one more demand in the fluid model."""
    zipf: list[float] = Field(min_length=1)
    """Exponents of Zipf's law of generated demands in the fluid model."""
    experiment: dict[str, Any]
    """The experiment, without gating and fabrics."""


class AuroraStudy:
    """Measures the claims of Aurora."""

    setup = Setup

    def measure(self, setup: Setup, context: StudyContext) -> Outcome:
        """Replay all-to-alls in every order, and compute the times of deployments."""
        trace = _rank_traffic(load_gating(context.folder / setup.trace).tokens[setup.steps])
        demands = [moving(tokens) for tokens in trace[0, : setup.layers]]
        layers = tuple(tokens for step in trace for tokens in step)
        solve = partial(_solve_s, demands, setup.shortest)
        solve_s = context.keep("solving", list[float], solve)  # a part of the experiment
        document = _document(setup, median(solve_s))
        run = context.run(document, flows=True)
        shallow = context.run(_shallow(setup, document))
        deployments = Deployments(
            layers, np.array(setup.rates), setup.expert, setup.gate, setup.wrong_traffic
        )
        replays = packets.replayed(
            list(packets.comparisons(deployments, setup.deployed_layers)),
            {
                False: packets.server_fabric("aurora-uneven", document, deployments.rates),
                True: packets.server_fabric("aurora-even", document, deployments.even),
            },
            experiment_of(document).model.build().token_bytes,
            setup.deployed_wall_s,
            context,
        )
        modelled = deployments.measures()
        ratios = fluid_ratios([moving(tokens) for tokens in layers]), _measured_ratios(run)
        matrix = _rank_traffic(load_gating(context.folder / setup.matrix).tokens)[0, 0]
        first = valid_fabrics(run[name] for name in (AURORA, GREEDY, SJF))
        return Outcome(
            {
                **_order_measures(run, median(solve_s)),
                "shallow_tcp_over_aurora": Measure.median_of(
                    _ratios(shallow, TCP, AURORA_TCP),
                    f"Segments sent again: {_sent_again(shallow)}.",
                ).on(shallow.experiment),
                **{
                    name: replace(one, runs=())
                    for name, one in packets.deployment_measures(modelled, replays).items()
                },
            },
            {
                "aurora": orders_picture(ratios[0], _valid(run, ratios[1])),
                **({"aurora-phases": phases_picture(first, _bounds_s(run)[0])} if first else {}),
            },
            captions("systems/aurora"),
            [
                _orders(run, *ratios),
                other_demands(moving(matrix), setup.zipf),
                packets.deployment_grid(replays),
                deployments.computation_costs(),
            ],
            [run, shallow],
        )


def _rank_traffic(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return tokens [step, layer, from, to] between ranks, which host equally many experts each."""
    *places, ranks, experts = tokens.shape
    hosted = tokens.reshape(*places, ranks, ranks, experts // ranks)
    traffic: NDArray[np.float64] = hosted.sum(axis=-1).astype(np.float64)
    return traffic


def _solve_s(demands: Sequence[NDArray[np.float64]], shortest: float) -> list[float]:
    """Return the wall seconds in which Aurora's phases of each demand are computed."""
    order = orders.Aurora(shortest=shortest)
    return [median(times_s(partial(order.phases, demand), SOLVE_REPEATS)) for demand in demands]


def _document(setup: Setup, solve_s: float) -> dict[str, Any]:
    """Return the experiment: a fabric for each order, and two with plain TCP."""
    short = f"shortest={setup.shortest:g}"
    synchronous = f"({short}, barrier_s={setup.barrier_s:.3g}, solve_s={solve_s:.3g})"
    references = {
        AURORA: f"{AURORA}{synchronous}",
        GREEDY: f"{GREEDY}{synchronous}",
        **{name: f"{name}({short})" for name in (RING, RCS, SJF)},
    }
    paced = {CONCURRENT: CONCURRENT, **references}
    tcp = {TCP: CONCURRENT, AURORA_TCP: references[AURORA]}
    choices = [(*one, "paced") for one in paced.items()] + [(*one, "tcp") for one in tcp.items()]
    return {
        **setup.experiment,
        "model": {**setup.experiment["model"], "layers": setup.layers},
        "gating": {"trace": str(setup.trace), "first_step": setup.steps[0]},
        "fabrics": [
            {"name": name, **ONE_NIC, "collective": reference, "transport": transport}
            for name, reference, transport in choices
        ],
    }


def _shallow(setup: Setup, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment with plain TCP alone, and queues of few packets."""
    return {
        **document,
        "experiment": f"{document['experiment']}-shallow",
        "wiring": {**document["wiring"], "queue": setup.shallow_queue},
        "fabrics": [one for one in document["fabrics"] if one["transport"] == "tcp"],
    }


def _sent_again(run: Result) -> str:
    """Return the TCP segments that each fabric sent again."""
    counts = {one.fabric: sum(c.retransmits for c in one.collectives) for one in run.results}
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def order_seconds(fabric: FabricResult) -> list[float]:
    """Return the seconds of each all-to-all with its barriers, if its phases are known before."""
    solved = (
        one if one.phase else one.model_copy(update={"pause_s": 0.0}) for one in fabric.collectives
    )
    return [one.measured_s for one in joined_phases(solved)]


def _ratios(run: Result, above: str, below: str) -> list[float]:
    pairs = zip(*(order_seconds(run[name]) for name in (above, below)), strict=True)
    return [one / other for one, other in pairs]


def _bounds_s(run: Result) -> list[float]:
    """Return the bound of each all-to-all: the time of the busiest port's bytes."""
    return [one.planned_s or 0.0 for one in run[CONCURRENT].collectives]


def _measured_ratios(run: Result) -> OrderRatios:
    """Return the ratios of measured seconds to the bound, by fabric."""
    return {
        fabric.fabric: [s / b for s, b in zip(order_seconds(fabric), _bounds_s(run), strict=True)]
        for fabric in run.results
    }


def _valid(run: Result, ratios: OrderRatios) -> OrderRatios:
    """Return the ratios of the fabrics that aren't invalid."""
    names = {one.fabric for one in valid_fabrics(run.results)}
    return {name: values for name, values in ratios.items() if name in names}


def _order_measures(run: Result, solve_s: float) -> dict[str, Measure]:
    gains = _ratios(run, SJF, AURORA)
    seconds, bounds = order_seconds(run[AURORA]), _bounds_s(run)
    known = [one / bound for one, bound in zip(seconds, bounds, strict=True)]
    solved = [(one + solve_s) / bound for one, bound in zip(seconds, bounds, strict=True)]
    took = f"Computing the phases took {1e3 * solve_s:.2f} ms."
    concurrent, tcp = (_ratios(run, name, AURORA) for name in (CONCURRENT, TCP))
    sent_again = f"Segments sent again: {_sent_again(run)}."
    measures: dict[str, tuple[Measure, Sequence[str]]] = {
        "sjf_over_aurora": (Measure.median_of(gains), (SJF, AURORA)),
        "sjf_over_aurora_most": (Measure(max(gains), tuple(gains)), (SJF, AURORA)),
        "sjf_over_rcs": (Measure.median_of(_ratios(run, SJF, RCS)), (SJF, RCS)),
        "aurora_over_bound": (Measure.median_of(known), (AURORA,)),
        "aurora_solved_over_bound": (Measure.median_of(solved, took), (AURORA,)),
        "concurrent_over_aurora": (Measure.median_of(concurrent), (CONCURRENT, AURORA)),
        "tcp_over_aurora": (Measure.median_of(tcp, sent_again), (TCP, AURORA)),
    }
    return {name: one.on(run.experiment, *names) for name, (one, names) in measures.items()}


def _orders(run: Result, fluid: OrderRatios, measured: OrderRatios) -> Grid:
    """Return the times of all orders relative to the bound."""
    rows = []
    for name, ratios in measured.items():
        fabric = run[name]
        phases = [one.phases for one in fabric.collectives if not one.phase]
        modelled = fluid.get(name.removesuffix("-tcp"), [])
        again = str(sum(one.retransmits for one in fabric.collectives))
        measured_cells = cells_of(fabric, _spread(ratios, 3), again)
        rows.append((name, f"{median(phases):.0f}", _spread(modelled, 3), *measured_cells))
    demands, bounds = len(fluid[CONCURRENT]), _bounds_s(run)
    return grid("systems/aurora/orders", rows, demands=demands, all_to_alls=len(bounds))


def fluid_ratios(demands: Sequence[Demand]) -> OrderRatios:
    """Return the times of demands in the fluid model over their bounds, by order."""
    ratios: dict[str, list[float]] = {CONCURRENT: [1.0] * len(demands)}
    for name, order in ORDERS.items():
        ratios[name] = [
            sum(map(orders.port_bytes, order.phases(demand))) / orders.port_bytes(demand)
            for demand in demands
        ]
    return ratios


def other_demands(matrix: Demand, exponents: Sequence[float]) -> Grid:
    """Return the times of MixNet's demand and of generated ones in the fluid model, by order.

    Args:
        matrix: MixNet's demand; the generated ones have as many servers.
        exponents: Exponents of Zipf's law.
    """
    cases = {"MixNet's matrix": [matrix]}
    cases |= {f"Zipf, exponent {s:g}": zipf_demands(len(matrix), s) for s in exponents}
    ratios = {name: fluid_ratios(demands).values() for name, demands in cases.items()}
    rows = ((name, *(_spread(one, 2) for one in of_case)) for name, of_case in ratios.items())
    header = ("demand", CONCURRENT, *ORDERS)
    return grid("systems/aurora/demands", rows, header=header, draws=_DRAWS)


def _spread(ratios: Sequence[float], digits: int) -> str:
    """Return the median of ratios, and the least and the largest of them."""
    return f"{median(ratios):.{digits}f} ({min(ratios):.2f} to {max(ratios):.2f})"


def zipf_demands(servers: int, exponent: float) -> list[Demand]:
    """Return demands in which the receivers' popularity follows Zipf's law."""
    rng = np.random.default_rng(1)
    popularity = np.arange(1, servers + 1) ** -float(exponent)
    return [moving(popularity * rng.lognormal(0, 0.3, (servers, servers))) for _ in range(_DRAWS)]
