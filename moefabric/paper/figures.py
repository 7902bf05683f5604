"""The paper's figures, drawn from the predicted scene."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from markupsafe import Markup

from moefabric.cost import cost_efficiency, paper_network_usd
from moefabric.paper import failures
from moefabric.paper.charts import Series, columns, lines
from moefabric.paper.guess import TOP_K
from moefabric.paper.measures import SERVERS, blocked_s, degree_s, diverted_s
from moefabric.paper.scene import RATES, Scene
from moefabric.paper.tables import Paper, Range, Row, iteration_ratio, known, ratio
from moefabric.report import svg
from moefabric.units import duration_text, rate_text

COLOURS: Final = {
    "fat-tree": "bar",
    "rail-optimised": "by-eps",
    "topoopt": "k-other",
    "mixnet": "light",
    "mixnet-spill": "k-dispatch",
    "mixnet-joint": "p-verify",
}
"""The class that each network is drawn in."""
NAMES: Final = {
    "mixtral-8x22b": "Mixtral 8x22B",
    "mixtral-8x7b": "Mixtral 8x7B",
    "llama-moe": "LLaMA-MoE",
    "qwen-moe": "Qwen-MoE",
    "deepseek-r1": "DeepSeek-R1",
}
_HALF = (svg.WIDTH - 24) / 2
_DELAYS_S: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 25e-3, 0.1, 1.0, 10.0)
_DEGREES: Final = (2, 3, 4, 5, 6, 7)
_PLANS: Final[tuple[failures.Plan, ...]] = ("spill", "joint")
_DEMO = "mixtral-8x22b"


def iterations(there: Scene) -> Iterator[Markup]:
    """Normalised iteration time, a picture a model."""
    for job, fit in there.calibrations.items():
        series = [
            Series(
                network,
                COLOURS[network],
                [known(partial(_normalised, there, job, network, rate, fit.unit_s)) for rate in RATES],
                [there.published[job, rate, network] for rate in RATES],
            )
            for network in ("fat-tree", "rail-optimised", "mixnet", "topoopt")
        ]
        yield columns(NAMES[job], [rate_text(rate) for rate in RATES], series, width=_HALF)


def _normalised(there: Scene, job: str, network: str, rate: float, unit_s: float) -> float:
    return there.iteration(job, network, rate).seconds / unit_s


def costs() -> Markup:
    """What each network costs."""
    series = [
        Series(network, COLOURS[network], [paper_network_usd(network, SERVERS, rate) / 1e6 for rate in RATES])
        for network in ("fat-tree", "rail-optimised", "mixnet", "topoopt")
    ]
    return columns("Million USD, 128 servers", [rate_text(rate) for rate in RATES], series, width=_HALF)


def efficiencies(there: Scene) -> Iterator[Markup]:
    """Performance per dollar relative to the fat-tree's, a picture a model; the paper's from its iteration times and prices."""
    for job, fit in there.calibrations.items():
        series = []
        for network in ("rail-optimised", "topoopt", "mixnet", "mixnet-joint"):
            ours = [known(partial(_efficiency, there, job, network, rate)) for rate in RATES]
            published = [
                there.published[job, rate, "fat-tree"]
                / there.published[job, rate, network]
                * there.usd(job, "fat-tree", rate)
                / there.usd(job, network, rate)
                if network in {"rail-optimised", "topoopt", "mixnet"}
                else None
                for rate in RATES
            ]
            series.append(Series(network, COLOURS[network], ours, published))
        title = f"{NAMES[fit.job.name]}, times the fat-tree's"
        yield columns(title, [rate_text(r) for r in RATES], series, width=_HALF, reference=1.0)


def _efficiency(there: Scene, job: str, network: str, rate: float) -> float:
    mine, base = (there.iteration(job, name, rate).seconds for name in (network, "fat-tree"))
    return cost_efficiency(mine, there.usd(job, network, rate), base, there.usd(job, "fat-tree", rate))


def shares(made: Paper) -> Markup:
    """All-to-all's share of the iteration; the paper's range as two bars behind it."""
    rows = next(table for table in made.tables if table.name == "share").rows
    series = [
        Series("emulated" if made.packets else "predicted", "k-dispatch", [row.ours for row in rows]),
        Series("paper, lowest", "by-eps", [_paper(row)[0] for row in rows]),
        Series("paper, highest", "bar", [_paper(row)[1] for row in rows]),
    ]
    return columns(
        "Part of an iteration at 400 Gb/s", [row.name for row in rows], series, unit=" %", width=_HALF
    )


def _paper(row: Row) -> Range:
    assert row.paper is not None
    return row.paper


def delays(there: Scene) -> Markup:
    """Iteration time over the reconfiguration delay, where every forward dispatch finds other light than it needs."""

    def slower(seconds: Callable[[Scene, str, float, float], float]) -> list[float | None]:
        base = known(partial(blocked_s, there, _DEMO, 400e9, 0.0))
        times = (known(partial(seconds, there, _DEMO, 400e9, delay)) for delay in _DELAYS_S)
        return [time / base if time and base else None for time in times]

    series = [Series("blocked until light settles", "light", slower(blocked_s))]
    if there.foreseen:
        series.append(Series("diverted to the EPS meanwhile", "k-dispatch", slower(diverted_s)))
    said = [
        duration_text(round(delay * 1e9)).replace("us", " µs").replace("ms", " ms") for delay in _DELAYS_S
    ]
    return lines(
        f"{NAMES[_DEMO]}, 400 Gb/s: iteration relative to no delay", list(range(len(said))), said, series, width=_HALF, logarithmic=True
    )  # fmt: skip


def degrees(there: Scene) -> Markup:
    """Iteration time over the optical degree at equal cost."""
    base = degree_s(there, _DEMO, 100e9, 6)
    spilt = [degree_s(there, _DEMO, 100e9, d, spill=True) / base for d in _DEGREES]
    series = [
        Series("mixnet", "light", [degree_s(there, _DEMO, 100e9, d) / base for d in _DEGREES]),
        Series("mixnet-spill", "k-dispatch", spilt),
    ]
    title = f"{NAMES[_DEMO]}, 100 Gb/s: iteration relative to degree 6"
    return lines(title, list(map(float, _DEGREES)), [str(d) for d in _DEGREES], series, width=_HALF)


def broken(made: Paper) -> Markup:
    """How much longer an iteration takes while something is broken."""
    rows = next(table for table in made.tables if table.name == "failures").rows
    jobs, kinds = ("deepseek-r1", "mixtral-8x22b", "deepseek-r1"), ("nic", "gpu", "server")

    def longer(plan: failures.Plan) -> list[float]:
        each = zip(jobs, kinds, strict=True)
        return [100 * failures.slow_down(made.scene.jobs[job], 400e9, kind, plan) for job, kind in each]

    series = [
        Series("mixnet", "light", [row.ours for row in rows], [_paper(row)[0] for row in rows]),
        *(Series(f"mixnet-{plan}", COLOURS[f"mixnet-{plan}"], longer(plan)) for plan in _PLANS),
    ]
    return columns("Longer iteration, 400 Gb/s", [row.name for row in rows], series, unit=" %", width=_HALF)


def guessed(there: Scene) -> Iterator[Markup]:
    """How often the busiest experts are found, and what a wrong guess costs."""
    made = there.guesses
    found = [100 * each for each in made.accuracy.values()]
    title = f"Top-{TOP_K} accuracy on the training trace"
    yield columns(
        title, list(made.accuracy), [Series("predicted", "k-dispatch", found)], unit=" %", width=_HALF
    )
    series = [
        Series(f"{optical} optical + {electrical} electrical NICs", class_, list(late.values()))
        for ((optical, electrical), late), class_ in zip(
            made.wrong_ms.items(), ("light", "k-dispatch"), strict=True
        )
    ]
    yield columns("What a wrong guess costs a dispatch", list(made.accuracy), series, unit=" ms", width=_HALF)


def past(there: Scene) -> Iterator[Markup]:
    """All-to-all and iteration relative to the non-blocking EPS, at the rate where it is worst."""
    jobs = list(there.jobs)
    for title, of in (
        ("All-to-all relative to a non-blocking EPS", ratio),
        ("Iteration relative to a non-blocking EPS", iteration_ratio),
    ):
        series = [
            Series(
                network,
                COLOURS[network],
                [known(partial(_worst, of, there, job, network)) for job in jobs],
            )
            for network in ("mixnet", "mixnet-spill", "mixnet-joint")
        ]
        yield columns(title, [NAMES[job] for job in jobs], series, width=_HALF, reference=1.0)


def _worst(of: Callable[[Scene, str, str, float], float], there: Scene, job: str, network: str) -> float:
    return max(of(there, job, network, rate) for rate in RATES)
