"""The examples, in the fluid model alone: the paper's figures, without root and without a packet."""

import os
from pathlib import Path

import pytest

from moefabric.errors import SpecError
from moefabric.experiment.predict import predicted, proposed_scale
from moefabric.experiment.results import Json
from moefabric.experiment.workload import workload
from moefabric.scaling import shortest_wall_s
from moefabric.spec import load
from moefabric.topology import Scale

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = ("s0", "s1", "s2", "s3")


@pytest.fixture(scope="module")
def prototype() -> dict[str, Json]:
    said = predicted(load.experiment(EXAMPLES / "prototype.yaml"), EXAMPLES)
    assert said["experiment"] == "prototype"
    return {entry["fabric"]: entry for entry in said["fabrics"]}


@pytest.mark.parametrize(
    ("fabric", "all_to_all_s", "ratio"),
    [
        pytest.param("eps", 0.031418, 1.0, id="eps"),
        pytest.param("mixnet", 0.044369, 1.412, id="mixnet"),
        pytest.param("mixnet-spill", 0.0314, 1.0, id="mixnet-spill"),
    ],
)
def test_the_prototypes_all_to_all_against_a_full_eps(
    prototype: dict[str, Json], fabric: str, all_to_all_s: float, ratio: float
) -> None:
    assert prototype[fabric]["all_to_all_s"] == pytest.approx(all_to_all_s, rel=5e-3)
    assert prototype[fabric]["all_to_all_vs_eps"] == pytest.approx(ratio, abs=5e-3)


def test_one_gating_matrix_moves_the_prototypes_light_once(prototype: dict[str, Json]) -> None:
    moved = {name: entry["reconfigurations"] for name, entry in prototype.items()}
    assert moved["eps"] == moved["static"] == 0
    assert moved["mixnet"] >= 1


def test_a_full_mesh_of_light_takes_every_byte(prototype: dict[str, Json]) -> None:
    assert prototype["eps"]["light_share"] == 0
    assert prototype["mixnet"]["light_share"] == pytest.approx(1.0)
    assert 0.5 < prototype["mixnet-spill"]["light_share"] < 1


def test_an_iteration_computes_attention_and_the_busiest_experts_three_times_a_layer(
    prototype: dict[str, Json],
) -> None:
    tokens_of_expert_0 = 2 * (9810 + 9278 + 10684 + 10897 + 8684 + 8361 + 10208 + 9781)
    expert_s = tokens_of_expert_0 * 352_321_536 / 499.2e12
    attention_s = 32768 * 117_440_512 / 499.2e12
    for entry in prototype.values():
        assert entry["compute_s"] == pytest.approx(7 * 3 * (attention_s + expert_s))
        assert entry["exposed_comm_s"] == pytest.approx(entry["iteration_s"] - entry["compute_s"])


def test_training_sees_new_demand_and_moves_light_again_and_again() -> None:
    said = predicted(load.experiment(EXAMPLES / "training.yaml"), EXAMPLES)
    moved = {entry["fabric"]: entry["reconfigurations"] for entry in said["fabrics"]}
    assert moved["mixnet"] > 4
    assert moved["static"] == 0


def test_a_workload_takes_its_steps_from_the_trace_and_starts_over_at_its_end() -> None:
    spec = load.experiment(EXAMPLES / "training.yaml", ["gating.first=900", "gating.every=200"])
    work = workload(spec, [SERVERS], EXAMPLES)
    assert work.gating.shape == (2, 4, 8, 16)
    assert work.layers(0) == work.layers(2) != work.layers(1)
    assert len(work.demands()) == 4 * 4
    assert len(work.operations(0)) == 4 * (5 + 4)


@pytest.mark.parametrize(
    "name", ["past", "past-llama-moe", "past-qwen-moe", "past-deepseek-r1", "past-mixtral-8x7b"]
)
def test_spill_or_joint_is_as_fast_as_an_eps_that_never_blocks_for_every_model(name: str) -> None:
    """At the price of MixNet: six NICs of eight are optical."""
    spec = load.experiment(EXAMPLES / f"{name}.yaml")
    made = {each["fabric"]: each for each in predicted(spec, EXAMPLES)["fabrics"]}
    assert made["mixnet"]["all_to_all_vs_eps"] > 1.3
    assert made["mixnet-joint"]["all_to_all_vs_eps"] < 1.025
    assert made["mixnet-joint"]["iteration_s"] < 1.015 * made["eps"]["iteration_s"]


def test_a_trace_that_is_short_of_experts_is_told_unless_it_may_repeat() -> None:
    spec = load.experiment(EXAMPLES / "past-llama-moe.yaml", ["gating.repeat=false"])
    with pytest.raises(SpecError, match=r"gating: .*is for 8 ranks and 16 experts; the model has 16 and 16"):
        predicted(spec, EXAMPLES)


def test_a_scale_that_is_given_is_taken_and_auto_is_proposed() -> None:
    given = load.experiment(EXAMPLES / "prototype.yaml", ["scale={bytes: 2500, dilation: 4}"])
    assert proposed_scale(given, EXAMPLES, "ovs-netdev") == Scale(2500, 4)
    auto = load.experiment(EXAMPLES / "prototype.yaml")
    dilation = proposed_scale(auto, EXAMPLES, "ovs-netdev").dilation
    assert 0.0314 * (dilation - 1) < shortest_wall_s(4, os.cpu_count() or 1) <= 0.0315 * dilation


def test_the_kinds_of_fabric_against_one_that_never_blocks() -> None:
    made = predicted(load.experiment(EXAMPLES / "fabrics.yaml"), EXAMPLES)
    ratios = {fabric["fabric"]: fabric["all_to_all_vs_eps"] for fabric in made["fabrics"]}
    assert ratios == pytest.approx(
        {"fat-tree": 1.0, "oversub": 2.14, "rail": 1.0, "topoopt": 1.34, "topoopt-5": 2.14, "mixnet": 1.34},
        abs=0.006,
    )
