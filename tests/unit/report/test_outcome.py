"""The result of a run in sentences: what is fastest, what is best per dollar, how sure that is."""

from collections.abc import Mapping, Sequence
from typing import Any

from moefabric.report.outcome import outcome
from moefabric.report.remarks import circuit_lines, moving_lines
from moefabric.report.summary import summaries
from moefabric.results.circuit_use import measured_use, with_circuit_use
from moefabric.results.model import FabricResult, RunResult

REGION = ["s0", "s1", "s2"]
MESH = ["s0/o0~s1/o0", "s0/o1~s2/o0", "s1/o1~s2/o1"]


def fabric(
    name: str, seconds: Sequence[float], verdict: str = "pass", dollars: float | None = None
) -> dict[str, Any]:
    iterations = [{"iteration": n, "measured_s": one} for n, one in enumerate(seconds)]
    fidelity = {"verdict": verdict, "reasons": ["a reason"]}
    cost = {"perf_per_dollar_vs_eps": dollars}
    return {
        "fabric": name, "policy": name, "iterations": iterations, "fidelity": fidelity, "cost": cost
    }  # fmt: skip


def said(*fabrics: Mapping[str, Any]) -> str:
    return outcome(summaries(RunResult.model_validate({"results": fabrics})))


def test_fastest_and_best_per_dollar_are_named_with_their_lead() -> None:
    assert said(
        fabric("eps", [2.0, 2.2, 2.4], dollars=1.0),
        fabric("static", [1.8, 2.0, 2.1], dollars=1.37),
        fabric("mixnet", [1.9, 2.1, 2.2], dollars=1.35),
    ) == (
        "Fastest is static: iteration 2.000 s, 9.1 % less than eps (9.1 to 12.5 % in 3 iterations)."
        " Best per dollar is static: 1.37x of eps."
    )


def test_fabrics_that_are_equally_good_per_dollar_are_all_named() -> None:
    text = said(
        fabric("eps", [2.0], dollars=1.0),
        fabric("mixnet", [2.1], dollars=2.061),
        fabric("own", [2.1], dollars=2.062),
    )
    assert text.endswith("Best per dollar are mixnet and own: 2.06x of eps.")


def test_order_that_iterations_contradict_is_not_certain() -> None:
    text = said(fabric("eps", [2.0, 2.0, 2.0]), fabric("mixnet", [1.9, 1.9, 2.1]))
    assert "mixnet: iteration 1.900 s, 5.0 % less than eps (-5.0 to 5.0 % in 3" in text
    assert text.endswith(
        "Which of mixnet and eps is faster is not certain: eps was in 1 of 3 iterations."
    )


def test_spread_of_one_iteration_is_unknown() -> None:
    text = said(fabric("eps", [2.0], dollars=1.0), fabric("mixnet", [2.5], dollars=0.9))
    assert "20.0 % less than mixnet (1 iteration: its spread is unknown)" in text
    assert text.endswith("Best per dollar is eps; mixnet has 0.90x of it.")


def test_invalid_fabrics_are_not_compared_and_degraded_ones_are_named() -> None:
    text = said(
        fabric("eps", [1.0], "invalid"),
        fabric("mixnet", [2.0], "degraded"),
        fabric("static", [3.0]),
    )
    assert text.startswith("Fastest is mixnet: iteration 2.000 s, 33.3 % less than static")
    assert text.endswith("mind the reasons: mixnet. Invalid, so not compared: eps.")
    assert said(fabric("eps", [1.0], "invalid")).startswith("No result: ")
    assert said() == ""


def test_predictions_of_invalid_fabrics_are_said_and_marked() -> None:
    eps, mixnet = fabric("eps", [1.9], "invalid"), fabric("mixnet", [2.5], "invalid")
    for one, predicted_s in ((eps, 2.0), (mixnet, 1.5)):
        one["iterations"][0]["predicted_s"] = predicted_s
    predicted = (
        "Predicted with the control times of this run, and not measured: fastest is mixnet: "
        "iteration 1.500 s, 25.0 % less than eps."
    )
    nothing = "No result: no fabric has figures that can be trusted."
    assert said(eps, mixnet) == f"{nothing} {predicted}"
    valid = {**mixnet, "fidelity": {"verdict": "pass"}}
    alone = "mixnet: iteration 2.500 s, and no other valid fabric to compare it with."
    assert said(eps, valid) == f"{alone} Invalid, so not compared: eps. {predicted}"
    assert "Predicted" not in said(fabric("eps", [1.9]), valid)


def use(after: Sequence[Sequence[str]], **values: Any) -> FabricResult:
    changes = [{"region": "r0", "circuits_after": circuits} for circuits in after]
    wiring = {"regions": {"r0": REGION}, "optical_nics": 2}
    document = {"reconfigurations": changes, "wiring": wiring, "fidelity": {"verdict": "pass"}}
    return FabricResult.model_validate(document | values)


def compared(*results: FabricResult) -> list[str]:
    return [*circuit_lines(with_circuit_use(results, [*map(measured_use, results)]))]


def test_fabrics_with_the_same_circuits_are_named_once() -> None:
    pair, other = ["s0/o0~s1/o0"], ["s0/o1~s1/o1"]
    lines = compared(
        use([pair, MESH], fabric="greedy"), use([other, MESH], fabric="mixnet"),
        use([MESH, pair], fabric="late"), use([], fabric="eps"), use([], fabric="tree"),
    )  # fmt: skip
    assert lines == [
        "greedy, mixnet: the same circuits as each other in every all-to-all",
        "late: other circuits than greedy in 2 of 2 requests for circuits",
    ]


def test_circuits_that_differ_are_counted_by_request() -> None:
    pair, other = ["s0/o0~s1/o0"], ["s0/o0~s2/o0"]
    ends = [circuit.split("~") for circuit in pair]
    lines = compared(
        use([pair, pair, other], fabric="mixnet"), use([], fabric="eps"),
        use([], fabric="static", circuits=ends), use([other], fabric="short"),
    )  # fmt: skip
    assert lines == [
        "static: other circuits than mixnet in 1 of 3 requests for circuits",
        "short: other circuits than mixnet in 2 of 3 requests for circuits",
    ]
    two = compared(
        use([], fabric="static", circuits=ends),
        use([], fabric="turned", circuits=[["s0/o0", "s2/o0"]]),
    )
    assert two == ["turned: other circuits than static in all all-to-alls"]


def test_gain_and_cost_of_moving_are_said_beside_circuits_that_stay() -> None:
    changes = [
        {"circuits_before": before, "circuits_after": after}
        for before, after in ((MESH[:1], MESH[1:2]), (MESH[1:2], MESH[1:2]))
    ]
    moving = fabric("joint", [1.0]) | {
        "collectives": [{"kind": "dispatch", "measured_s": 0.04, "dark_s": 0.02}],
        "reconfigurations": changes,
    }
    still = fabric("uniform", [1.2]) | {
        "collectives": [{"kind": "dispatch", "measured_s": 0.07}],
        "circuits": [circuit.split("~") for circuit in MESH],
    }

    def lines(*fabrics: Mapping[str, Any]) -> list[str]:
        return [*moving_lines(summaries(RunResult.model_validate({"results": fabrics})))]

    (line,) = lines(moving, still)
    assert line == (
        "joint: circuits moved in 1 of 2 requests; an all-to-all took 40.0 ms, and 70.0 ms on "
        "uniform, whose circuits stay; circuits were dark for 20.0 ms of an iteration"
    )
    assert lines(moving) == lines(moving, still | {"fidelity": {"verdict": "invalid"}}) == []


def test_full_mesh_is_why_circuits_stay() -> None:
    ends = [circuit.split("~") for circuit in MESH]
    lines = compared(use([MESH, MESH], fabric="mixnet"), use([], fabric="static", circuits=ends))
    reason = "3 servers with 2 optical NICs each are a full mesh"
    same = "mixnet, static: the same circuits as each other in every all-to-all"
    assert lines == [f"{same}, and once lit, none moves: {reason}"]
    assert compared(use([MESH[:2]], fabric="mixnet")) == []
