"""Predictions of the examples: the paper's figures without root and without a packet."""

import os
from statistics import mean

import numpy as np
import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.prediction.experiment import experiment_scale, predict_fabrics
from moefabric.prediction.scaling import shortest_wall_s
from moefabric.prediction.workload_loader import workload
from moefabric.results.parts import Json
from tests.support.paths import EXAMPLES

SERVERS = ("s0", "s1", "s2", "s3")


@pytest.mark.parametrize(
    ("experiment", "layers", "longer"),
    [("prototype", 7, 1.44), ("prototype-llama-moe", 16, 1.36), ("prototype-qwen-moe", 12, 1.36)],
)
def test_prototypes_are_the_testbed_of_the_paper(
    experiment: str, layers: int, longer: float
) -> None:
    """Its figure 10: 4 servers of 8 GPUs, 3 optical NICs and 1 electrical one, or 4 of these."""
    spec = load_experiment(EXAMPLES / f"{experiment}.yaml")
    fabrics = {choice.name: spec.build_fabric(choice, "x", Scale()) for choice in spec.fabrics}
    assert spec.model.build().layers == layers
    assert (fabrics["eps"].optical, fabrics["eps"].electrical) == (0, 4)
    assert (fabrics["mixnet"].optical, fabrics["mixnet"].electrical) == (3, 1)
    assert (fabrics["mixnet"].servers, fabrics["mixnet"].gpus) == (SERVERS, 8)
    predicted = {one["fabric"]: one for one in predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]}
    assert predicted["mixnet"]["all_to_all_vs_eps"] == pytest.approx(longer, abs=0.02)


@pytest.fixture(scope="module")
def prototype() -> dict[str, Json]:
    said = predict_fabrics(load_experiment(EXAMPLES / "prototype.yaml"), EXAMPLES).to_json()
    assert said["experiment"] == "prototype"
    return {entry["fabric"]: entry for entry in said["fabrics"]}


@pytest.mark.parametrize(
    ("fabric", "all_to_all_s", "ratio"),
    [
        pytest.param("eps", 0.031418, 1.0, id="eps"),
        pytest.param("mixnet", 0.045253, 1.440, id="mixnet"),
        pytest.param("mixnet-spill", 0.0320, 1.018, id="mixnet-spill"),
    ],
)
def test_prototype_all_to_all_against_a_full_eps(
    prototype: dict[str, Json], fabric: str, all_to_all_s: float, ratio: float
) -> None:
    """Three quarters of a circuit's bytes come from and go to GPUs that are not next to it."""
    assert prototype[fabric]["all_to_all_s"] == pytest.approx(all_to_all_s, rel=5e-3)
    assert prototype[fabric]["all_to_all_vs_eps"] == pytest.approx(ratio, abs=5e-3)


def test_constant_gating_moves_the_circuits_of_the_prototype_once(
    prototype: dict[str, Json],
) -> None:
    moved = {name: entry["reconfigurations"] for name, entry in prototype.items()}
    assert moved["eps"] == moved["static"] == 0
    assert moved["mixnet"] >= 1


def test_full_mesh_of_circuits_takes_every_byte(prototype: dict[str, Json]) -> None:
    assert prototype["eps"]["light_share"] == 0
    assert prototype["mixnet"]["light_share"] == pytest.approx(1.0)
    assert 0.5 < prototype["mixnet-spill"]["light_share"] < 1


def test_iteration_computes_attention_and_busiest_experts_three_times_a_layer(
    prototype: dict[str, Json],
) -> None:
    tokens_of_expert_0 = 2 * (9810 + 9278 + 10684 + 10897 + 8684 + 8361 + 10208 + 9781)
    expert_s = tokens_of_expert_0 * 352_321_536 / 499.2e12
    attention_and_router_s = 32768 * (117_440_512 + 65_536) / 499.2e12
    all_reduces_s = 4 * 2 * 3 / 4 * 32768 * 8192 / 450e9
    layer_s = 3 * (attention_and_router_s + expert_s) + all_reduces_s
    part, head = 7 / 32, 4096 * 32_000
    head_s = 3 * part * 32768 * 2 * head / 499.2e12
    weights = 7 * (41_943_040 + 32_768 + 176_160_768) + 2 * part * head
    optimiser_s = 28 * weights / 4 / (16.3e12 / 8)
    entries = prototype.values()
    compute_s = pytest.approx([7 * layer_s + head_s + optimiser_s] * 4)
    assert [entry["compute_s"] for entry in entries] == compute_s
    assert [entry["iteration_s"] - entry["exposed_comm_s"] for entry in entries] == compute_s


def seconds(*settings: str) -> dict[str, float]:
    """Iterations of the prototype with other settings, by fabric."""
    spec = load_experiment(EXAMPLES / "prototype.yaml", settings)
    return {f.fabric: f.iteration_s for f in predict_fabrics(spec, EXAMPLES).fabrics}


def test_gathering_and_scattering_lengthen_all_to_alls_over_circuits_alone() -> None:
    whole, free = seconds(), seconds("wiring.server_paths.gather=none")
    assert whole["eps"] == pytest.approx(free["eps"]), "a NIC next to each pair of GPUs"
    assert whole["mixnet"] - free["mixnet"] == pytest.approx(
        7 * 4 * (0.045253 - 0.044369), rel=0.01
    )
    by_pcie = seconds("wiring.server_paths.gather=pcie")
    assert by_pcie["mixnet"] > whole["mixnet"] > free["mixnet"]


def test_counts_of_tokens_precede_each_forward_dispatch() -> None:
    """Seven messages of a rank in a ring, of 8 numbers, in each of seven layers."""
    whole, silent = seconds(), seconds("training.token_counts=false")
    counts_s = 7 * (2.7e-6 + 8 * 8 * 8 / (100e9 * 1448 / 1514))
    for fabric, iteration_s in whole.items():
        assert iteration_s - silent[fabric] == pytest.approx(7 * counts_s, rel=1e-6)


def test_training_has_new_demand_and_moves_circuits_repeatedly() -> None:
    said = predict_fabrics(load_experiment(EXAMPLES / "training.yaml"), EXAMPLES).to_json()
    moved = {entry["fabric"]: entry["reconfigurations"] for entry in said["fabrics"]}
    assert moved["mixnet"] > 4
    assert moved["static"] == 0


def test_workload_takes_its_steps_from_the_trace_and_starts_over() -> None:
    spec = load_experiment(
        EXAMPLES / "training.yaml", ["gating.first_step=900", "gating.step_stride=200"]
    )
    work = workload(spec, [SERVERS], EXAMPLES)
    assert isinstance(work.gating.source, np.ndarray)
    assert work.gating.source.shape == (2, 4, 8, 16)
    assert work.layers(0) == work.layers(2) != work.layers(1)
    assert [len(work.layers(n)) for n in range(work.iterations)] == [4] * 4
    assert len(work.operations(0)) == 4 * (5 + 4)


@pytest.mark.parametrize(
    "name",
    [
        "beyond-paper",
        "beyond-paper-llama-moe",
        "beyond-paper-qwen-moe",
        "beyond-paper-deepseek-r1",
        "beyond-paper-mixtral-8x7b",
    ],
)
def test_spill_or_joint_is_as_fast_as_a_non_blocking_eps_for_every_model(name: str) -> None:
    """At the price of MixNet: six NICs of eight are optical.

    The control plane, sums of gradients and times inside servers are left out, and by the median of
    four iterations the light of the first one.
    """
    alone = ["control_time=0s", "training.gradient_sums=false", "training.iterations=4"]
    alone += ["wiring.server_paths.gather=none"]
    spec = load_experiment(EXAMPLES / f"{name}.yaml", alone)
    made = {each["fabric"]: each for each in predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]}
    assert made["mixnet"]["all_to_all_vs_eps"] > 1.3
    assert made["mixnet-joint"]["all_to_all_vs_eps"] < 1.025
    assert made["mixnet-joint"]["iteration_s"] < 1.015 * made["eps"]["iteration_s"]


def test_layers_start_at_the_first_layer_and_repeat_the_trace() -> None:
    spec = load_experiment(EXAMPLES / "training.yaml", ["gating.first_layer=3"])
    plain = load_experiment(EXAMPLES / "training.yaml")
    shifted, whole = (workload(each, [SERVERS], EXAMPLES).gating.source for each in (spec, plain))
    assert isinstance(shifted, np.ndarray)
    assert isinstance(whole, np.ndarray)
    assert (shifted[:, 0] == whole[:, 3]).all()
    assert (shifted[:, 1] == whole[:, 0]).all()
    with pytest.raises(SpecError, match=r"gating\.first_layer: there is no layer 4 in the 4 of"):
        predict_fabrics(
            load_experiment(EXAMPLES / "training.yaml", ["gating.first_layer=4"]), EXAMPLES
        ).to_json()


def test_repetition_that_makes_servers_alike_is_refused() -> None:
    settings = [
        'gating={"trace": "data/training-1200-steps.npz", "first_step": 600, "repeat": true}'
    ]
    spec = load_experiment(EXAMPLES / "beyond-paper-deepseek-r1.yaml", settings)
    message = r"gating\.repeat: with copies of 16 experts the busiest server has 1\.\d\d times the"
    with pytest.raises(SpecError, match=message):
        predict_fabrics(spec, EXAMPLES).to_json()


def test_uneven_stages_share_whole_layers() -> None:
    spec = load_experiment(EXAMPLES / "pipeline.yaml", ["model.layers=5"])
    regions = [tuple(f"s{4 * region + n}" for n in range(4)) for region in range(4)]
    work = workload(spec, regions, EXAMPLES)
    assert [list(work.layers_of(region)) for region in range(4)] == 2 * [[0, 1, 2], [3, 4]]


def test_recomputation_lengthens_the_backward_pass() -> None:
    seconds = [
        predict_fabrics(
            load_experiment(
                EXAMPLES / "prototype.yaml",
                [f"training.recomputation={choice}", "training.whole_model=false"],
            ),
            EXAMPLES,
        ).to_json()["fabrics"][0]["compute_s"]
        for choice in ("false", "true")
    ]
    assert 4 / 3 < seconds[1] / seconds[0] < 4 / 3 * 1.01, "all-reduces are repeated too"


def test_short_trace_is_reported_unless_it_may_repeat() -> None:
    spec = load_experiment(EXAMPLES / "forwarding-llama-moe.yaml", ["gating.repeat=false"])
    with pytest.raises(
        SpecError, match=r"gating: .*is for 8 ranks and 16 experts; the model has 16 and 16"
    ):
        predict_fabrics(spec, EXAMPLES).to_json()


def test_given_scale_is_used_and_auto_is_proposed() -> None:
    given = load_experiment(EXAMPLES / "prototype.yaml", ["scale={bytes: 2500, dilation: 4}"])
    assert experiment_scale(given, EXAMPLES, "bpf").slowest.scale == Scale(2500, 4)
    auto = load_experiment(EXAMPLES / "prototype.yaml")
    dilation = experiment_scale(auto, EXAMPLES, "bpf").slowest.scale.dilation
    assert 0.0314 * dilation >= shortest_wall_s(4, os.cpu_count() or 1)


def test_proposed_scale_makes_the_shortest_transfer_between_regions_measurable() -> None:
    """A server of Mixtral 8x7B sends a stage's activations in 11 ms, its all-to-alls take 26."""
    spec = load_experiment(EXAMPLES / "spines.yaml")
    activations = 8 / 4 * 8 * 4096 * 4096 * 2
    alone_s = 8 * activations / (4 * 100e9 * 1448 / 1514)
    dilation = experiment_scale(spec, EXAMPLES, "bpf").slowest.scale.dilation
    assert alone_s * dilation >= shortest_wall_s(4, os.cpu_count() or 1)


def test_fabric_kinds_against_a_non_blocking_one() -> None:
    made = predict_fabrics(load_experiment(EXAMPLES / "fabrics.yaml"), EXAMPLES).to_json()
    ratios = {fabric["fabric"]: fabric["all_to_all_vs_eps"] for fabric in made["fabrics"]}
    assert ratios == pytest.approx(
        {
            "fat-tree": 1.0,
            "oversub": 2.14,
            "rail": 1.0,
            "topoopt": 1.41,
            "topoopt-5": 2.20,
            "mixnet": 1.41,
        },
        abs=0.006,
    )


def test_hashed_flows_of_the_example_cost_what_the_guide_says() -> None:
    """Circuits have no paths to choose from, so that hashing costs MixNet less than an EPS."""
    hashed, mixnet = [], []
    for seed in range(1, 6):
        settings = [f"fabrics[{n}].eps.hash_seed={seed}" for n in (1, 2)]
        spec = load_experiment(EXAMPLES / "hashed.yaml", settings)
        fabrics = {f["fabric"]: f for f in predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]}
        hashed.append(fabrics["hashed"]["all_to_all_vs_eps"])
        mixnet.append(fabrics["mixnet"]["all_to_all_vs_eps"])
    guide = (EXAMPLES.parent / "docs/guides/compare-fabrics.md").read_text()
    assert f"{min(hashed):.2f} to {max(hashed):.2f} times" in guide
    assert f"{min(mixnet):.2f} to {max(mixnet):.2f} times" in guide
    assert 1.3 < mean(hashed) < 1.7
