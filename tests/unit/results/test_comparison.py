"""Comparison of fabrics: baseline, ratios of all-to-alls, cost and performance per dollar."""

from dataclasses import replace

import pytest

from moefabric.core.eps import Eps
from moefabric.results.comparison import (
    baseline,
    joined_phases,
    network_cost,
    with_cost_ratios,
    with_ratios,
)
from moefabric.results.model import FabricResult, NetworkCost
from moefabric.results.parts import CollectiveResult
from tests.support.fabrics import fabric


def result(
    name: str, policy: str = "eps", oversubscription: float | None = None, verdict: str = "pass"
) -> FabricResult:
    eps = None if oversubscription is None else {"oversubscription": oversubscription}
    judged = {"wiring": {"eps": eps}, "fidelity": {"verdict": verdict}}
    return FabricResult.model_validate({"fabric": name, "policy": policy, **judged})


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param(
            [
                result("oversub", "eps", 3.0),
                result("mixnet", "mixnet", 1.0),
                result("tree", "eps", 1.0),
            ],
            "tree",
            id="least-oversubscribed-wherever-it-stands",
        ),
        pytest.param(
            [result("one", "eps", 1.0), result("other", "eps", 1.0)], "one", id="first-of-equals"
        ),
        pytest.param(
            [result("oversub", "eps", 3.0), result("unknown")],
            "unknown",
            id="no-eps-counts-as-non-blocking",
        ),
        pytest.param([result("mixnet", "mixnet", 1.0)], None, id="all-have-circuits"),
    ],
)
def test_baseline_is_the_least_oversubscribed_fabric_without_circuits(
    results: list[FabricResult], expected: str | None
) -> None:
    base = baseline(results)
    assert (base.fabric if base else None) == expected


def test_with_ratios_compares_each_all_to_all_with_its_counterpart() -> None:
    def entry(policy: str, measured: list[float]) -> FabricResult:
        collectives = [
            CollectiveResult(
                layer=layer, kind="dispatch", direction="forward", measured_s=s, predicted_s=2 * s
            )
            for layer, s in enumerate(measured)
        ]
        return result(policy, policy).model_copy(update={"collectives": collectives})

    mixnet, eps = with_ratios([entry("mixnet", [1.5, 2.0, 8.0]), entry("eps", [1.0, 2.0, 4.0])])
    assert mixnet.ratios.to_json() == {"measured_vs_eps": 1.5, "predicted_vs_eps": 1.5}
    assert eps.ratios.to_json() == {"measured_vs_eps": 1.0, "predicted_vs_eps": 1.0}


@pytest.mark.parametrize(
    ("verdicts", "compared"),
    [(("pass", "pass"), (1.0, 2.0)), (("pass", "invalid"), (1.0, None)),
     (("invalid", "pass"), (None, None)), (("degraded", "degraded"), (1.0, 2.0))],
)  # fmt: skip
def test_ratios_leave_invalid_results_out(
    verdicts: tuple[str, str], compared: tuple[float | None, float | None]
) -> None:
    cost = {"network_usd": 1.0}
    entries = [
        result(name, name, verdict=verdict).model_copy(
            update={
                "collectives": [CollectiveResult(kind="dispatch", measured_s=seconds)],
                "cost": NetworkCost.model_validate({**cost, "performance_per_dollar": seconds}),
            }
        )
        for (name, seconds), verdict in zip((("eps", 1.0), ("mixnet", 2.0)), verdicts, strict=True)
    ]
    ratios = [one.ratios.measured_vs_eps for one in with_ratios(entries)]
    dollars = [one.cost.perf_per_dollar_vs_eps for one in with_cost_ratios(entries)]
    assert tuple(ratios) == tuple(dollars) == compared


def test_with_ratios_adds_nothing_without_a_baseline() -> None:
    [alone] = with_ratios([result("mixnet", "mixnet")])
    assert "ratios" not in alone.to_json()


@pytest.fixture
def priced() -> list[FabricResult]:
    """4 servers of 4 NICs of 100 Gb/s: 3 optical ones and one electrical, and all electrical.

    The first one's iteration is a tenth longer.
    """
    return with_cost_ratios(
        [
            result("mixnet", "mixnet").model_copy(update={"cost": network_cost(fabric(3, 1), 2.2)}),
            result("eps").model_copy(update={"cost": network_cost(fabric(0, 4), 2.0)}),
        ]
    )


def test_performance_per_dollar_is_compared_with_the_baseline_of_the_run(
    priced: list[FabricResult],
) -> None:
    """Per server, an electrical NIC costs 659 + 6 x 99 + 5 x 187 + 3 x 150 = 2,638 USD.

    An optical one costs 659 + 99 + 520 + 150 = 1,428 USD.
    """
    mixnet, eps = (entry.cost for entry in priced)
    assert eps.network_usd == 4 * 4 * 2638
    assert mixnet.network_usd == 4 * (3 * 1428 + 2638)
    assert eps.performance_per_dollar == pytest.approx(1 / (2.0 * 42208))
    assert eps.perf_per_dollar_vs_eps == pytest.approx(1.0)
    assert mixnet.perf_per_dollar_vs_eps == pytest.approx(2.0 / 2.2 * 42208 / 27688)


def test_network_cost_of_an_oversubscribed_eps_is_lower_where_it_has_spines() -> None:
    one_leaf, two = (fabric(0, 4, eps=Eps(width, 2, 3.0)) for width in (4, 2))
    spined, single = network_cost(two, 1.0).network_usd, network_cost(one_leaf, 1.0).network_usd
    assert spined is not None
    assert single == 42208
    assert spined < single


def test_costs_without_a_baseline_are_not_compared(priced: list[FabricResult]) -> None:
    [alone] = with_cost_ratios(
        [result("mixnet", "mixnet").model_copy(update={"cost": network_cost(fabric(3, 1), 2.2)})]
    )
    assert alone.cost.network_usd == 27688
    assert alone.cost.perf_per_dollar_vs_eps is None


def test_network_cost_tells_why_a_rate_has_no_price() -> None:
    cost = network_cost(replace(fabric(3, 1), nic_rate_bps=50e9), 1.0)
    assert cost.network_usd is cost.performance_per_dollar is cost.perf_per_dollar_vs_eps is None
    assert cost.why == "nic rate: 50Gb/s has no prices; 100Gb/s, 200Gb/s, 400Gb/s, 800Gb/s have"


def test_phases_of_an_all_to_all_are_compared_as_one() -> None:
    whole = CollectiveResult(
        layer=0, kind="dispatch", direction="forward", measured_s=2.0, predicted_s=2.0, bytes=10
    )
    phases = [
        whole.model_copy(
            update={
                "measured_s": 0.9,
                "predicted_s": 1.0,
                "bytes": 5,
                "bytes_by_eps": 5,
                "phase": number,
                "phases": 2,
                "pause_s": 0.1 * number,
                "failures": [number],
            }
        )
        for number in range(2)
    ]
    tensor = whole.model_copy(update={"kind": "tensor"})
    one, *others = joined_phases([phases[0], tensor, phases[1], tensor])
    assert others == [tensor, tensor]
    assert [one.measured_s, one.predicted_s] == pytest.approx([1.9, 2.1])
    assert one.bytes == 10
    assert (one.bytes_by_eps, one.bytes_by_light, one.failures) == (10, None, [0, 1])
    undisturbed = phases[0].model_copy(update={"failures": []})
    ordered, eps = with_ratios(
        [
            result("ordered", "mixnet").model_copy(update={"collectives": [undisturbed]}),
            result("eps").model_copy(update={"collectives": [whole]}),
        ]
    )
    assert ordered.ratios.measured_vs_eps == pytest.approx(0.45)
    assert eps.ratios.measured_vs_eps == 1.0
