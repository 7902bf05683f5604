"""The first all-to-all of a layer on packets, under all modes of `dispatch_light`."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from moefabric.workload.iterations.iteration import DispatchLight
from tests.support.command_home import NEEDS_COMMAND, new_home
from tests.support.paths import REPOSITORY
from tests.support.slow_machines import finished_run

EXPERIMENT = """
experiment: firsts
model: {{name: mixtral-8x7b, layers: 2, experts: 16}}
training: {{ep: 8, tp: 2, sequence: 4096, micro_batch: 16, iterations: 2, gpu_tflops: 1000}}
gating: {{trace: {trace}, first_step: 600}}
wiring:
  gpus_per_server: 4
  nic_rate: 100Gb/s
  regions:
    - servers: 4
      ocs: {{settle: 25ms}}
fabrics:
  - {{name: block, optical: 1, electrical: 1, policy: mixnet}}
  - {{name: reuse, optical: 1, electrical: 1, policy: mixnet, dispatch_light: reuse}}
  - {{name: begun, optical: 1, electrical: 1, policy: mixnet, dispatch_light: reuse, start: random}}
  - {{name: predict, optical: 1, electrical: 1, policy: mixnet, dispatch_light: predict}}
  - {{name: divert, optical: 1, electrical: 1, policy: mixnet, dispatch_light: divert}}
scale: {{bytes: 2500, dilation: 1}}
"""

pytestmark = NEEDS_COMMAND


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """One run of one wiring under the four modes, and of one that begins on random circuits."""
    with new_home() as home:
        trace = REPOSITORY / "examples/data/training-1200-steps.npz"
        out = home.folder / "out.json"
        spec = home.write("firsts.yaml", EXPERIMENT.format(trace=trace))
        done = home.call("run", spec, "--json", str(out), timeout_s=100)
        run = finished_run(out, done.returncode, done.stderr)
        yield {entry["fabric"]: entry for entry in run["results"]}


def dispatches(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in entry["collectives"] if (c["kind"], c["pass"]) == ("dispatch", "forward")]


def test_blocking_exposes_longest(results: dict[str, Any]) -> None:
    exposed = {name: entry["first_all_to_all"]["exposed_s"] for name, entry in results.items()}
    assert exposed["block"] > max(exposed[name] for name in ("reuse", "predict", "divert"))
    waited = {name: entry["first_all_to_all"]["waited_s"] for name, entry in results.items()}
    told = max(waited["reuse"], waited["divert"])
    assert waited["block"] > told + 0.020, "the others wait to be told alone"


@pytest.mark.parametrize("first", get_args(DispatchLight))
def test_every_byte_arrives_once(results: dict[str, Any], first: str) -> None:
    integrity = results[first]["integrity"]
    assert integrity["bytes_sent"] == integrity["bytes_received"] > 0
    assert (integrity["corrupt"], integrity["lost_transfers"]) == (0, 0)
    owed, sent = (
        [(c["bytes"], c["layer"], c["kind"]) for c in results[name]["collectives"]]
        for name in ("block", first)
    )
    for (most, *place), (size, *other) in zip(owed, sent, strict=True):
        assert (place, size) == (other, pytest.approx(most, abs=2))


@pytest.mark.parametrize("first", get_args(DispatchLight))
def test_combine_uses_the_circuits_of_the_exact_demand(results: dict[str, Any], first: str) -> None:
    def combined(entry: dict[str, Any], field: str) -> list[int]:
        return [c[field] for c in entry["collectives"] if c["kind"] == "combine"]

    for field, tolerance in (
        ("bytes_planned_by_light", {"abs": 2}),
        ("bytes_by_light", {"rel": 1e-3}),
    ):
        planned = combined(results["block"], field)
        assert combined(results[first], field) == pytest.approx(planned, **tolerance)
    lit = [results[name]["circuits"] for name in ("block", first)]
    assert sorted(map(sorted, lit[0])) == sorted(map(sorted, lit[1]))


def test_first_all_to_all_of_a_job_takes_the_circuits_lit_before_it(
    results: dict[str, Any],
) -> None:
    first = {name: dispatches(results[name])[0] for name in ("reuse", "begun")}
    assert first["reuse"]["bytes_by_light"] == 0
    assert first["begun"]["bytes_by_light"] > 0
    for one in first.values():
        assert one["bytes_by_light"] == pytest.approx(one["bytes_planned_by_light"], rel=1e-2)
    assert results["begun"]["reconfigurations"][0]["circuits_before"]
    assert not results["reuse"]["reconfigurations"][0]["circuits_before"]


def test_offloaded_bytes_use_new_circuits_meanwhile(results: dict[str, Any]) -> None:
    moved = [c for c in dispatches(results["divert"]) if c["moved_now"]]
    assert moved
    for collective in moved:
        assert collective["dark_s"] == pytest.approx(0.025, abs=0.01)
        assert min(collective["bytes_by_light"], collective["bytes_by_eps"]) > 0
        for network in ("light", "eps"):
            planned = collective[f"bytes_planned_by_{network}"]
            assert collective[f"bytes_by_{network}"] == pytest.approx(planned, rel=1e-2)
        assert collective["misrouted"] == []


def test_predictions_are_reported(results: dict[str, Any]) -> None:
    foresight = results["predict"]["first_all_to_all"]["foresight"]
    assert (foresight["guessed"], foresight["unguessed"]) == (2, 2), (
        "nothing is learnt in the first iteration"
    )
    assert foresight["top_k_hits"] > foresight["random_hits"]
    assert foresight["wrong_guess_s"] >= 0
