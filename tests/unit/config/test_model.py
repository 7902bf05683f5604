"""The `model:` section: presets, configurations, sizes, and what replaces what."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from moefabric.config.input_file import read_yaml
from moefabric.config.loader import load_experiment
from moefabric.config.model import ModelSpec, load_model, preset, presets, read_configuration
from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.workload_loader import workload_on
from moefabric.simulator.fluid import goodput_share
from moefabric.workload.models.hugging_face import model_from_configuration
from moefabric.workload.models.model import GroupedAttention, LatentAttention, Model
from moefabric.workload.models.payload import WIRE_FORMATS
from tests.support.paths import EXAMPLES, REPOSITORY

CONFIGURATIONS: dict[str, dict[str, Any]] = json.loads(
    (REPOSITORY / "tests/data/model-configurations.json").read_text()
)
SIZES: dict[str, Any] = {"layers": 3, "hidden": 512, "ffn": 256, "experts": 16, "top_k": 2}
HEADS: dict[str, Any] = {"heads": 8, "kv_heads": 2, "head_size": 64}


def build(**section: Any) -> Model:
    return ModelSpec.model_validate(section).build()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_presets_have_the_sizes_of_their_configuration(name: str) -> None:
    """The wire isn't in a configuration: DeepSeek-V3 dispatches in FP8."""
    described = model_from_configuration(CONFIGURATIONS[name], name)
    assert replace(preset(name), dispatch_type="bf16") == described


def test_presets_that_differ_from_their_configuration() -> None:
    """DeepSeek-R1 is DeepSeek-V3 of another training; the paper counts 64 experts of Qwen-MoE."""
    assert set(presets()) - set(CONFIGURATIONS) == {"deepseek-r1", "llama-moe", "qwen-moe"}
    assert preset("deepseek-r1") == replace(preset("deepseek-v3"), name="deepseek-r1")
    qwen = preset("qwen1.5-moe-a2.7b")
    assert preset("qwen-moe") == replace(qwen, name="qwen-moe", experts=64)
    assert preset("llama-moe").weights / 1e9 == pytest.approx(6.7, rel=0.01)
    assert preset("llama-moe").active_weights / 1e9 == pytest.approx(3.5, rel=0.01)


@pytest.mark.parametrize("name", presets())
def test_presets_name_their_source(name: str) -> None:
    document = read_yaml(Path(str(files("moefabric.config.models") / f"{name}.yaml")))
    source = ModelSpec.model_validate(document).source
    assert (source or "").startswith("https://huggingface.co/")


def test_sizes_make_a_model() -> None:
    model = build(name="mine", attention=HEADS, dispatch_type="mxfp4", node_limit=2, **SIZES)
    attention = GroupedAttention(**HEADS)
    expected = Model("mine", attention=attention, dispatch_type="mxfp4", node_limit=2, **SIZES)
    assert model == expected
    assert model.dispatch_token_bytes == 512 // 2 + 512 // 32


def test_sizes_of_latent_attention() -> None:
    sizes: dict[str, Any] = {
        "heads": 4,
        "query_rank": 0,
        "kv_rank": 64,
        "plain_size": 32,
        "rotary_size": 16,
    }
    model = build(attention={"kind": "latent", "value_size": 32, **sizes}, **SIZES)
    assert model.attention == LatentAttention(value_size=32, **sizes)
    assert model.name == "model"


def test_sizes_replace_those_of_a_preset() -> None:
    changed = build(name="mixtral-8x7b", layers=7, experts=16, combine_type="fp8")
    expected = replace(
        preset("mixtral-8x7b"), layers=7, whole_layers=32, experts=16, combine_type="fp8"
    )
    assert changed == expected
    assert changed.combine_ratio == (4096 + 4096 // 128 * 4) / 8192


def test_sizes_replace_those_of_a_configuration() -> None:
    file = EXAMPLES / "data/olmoe-1b-7b.json"
    assert build(config=str(file)).name == "olmoe-1b-7b"
    changed = build(config=str(file), name="wide", experts=128)
    assert changed == replace(read_configuration(file), name="wide", experts=128)


def test_configuration_is_named_after_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "Some-MoE" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(CONFIGURATIONS["olmoe-1b-7b"]))
    assert read_configuration(file).name == "some-moe"
    assert load_model(str(file.parent)) == read_configuration(file)
    assert ModelSpec(config=file.parent).config == file


def test_more_layers_than_a_preset_has_are_noted() -> None:
    assert build(name="mixtral-8x7b", layers=32).notes == ()
    [note] = build(name="mixtral-8x7b", layers=100).notes
    assert note == "model.layers: 100 are more than the 32 of mixtral-8x7b"


def test_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=rf"{tmp_path}/config.json: No such file"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "No such file"),
        ("{", "config.json:1: not JSON"),
        ("[1]", "a mapping of keys is needed"),
        ('{"model_type": "olmoe"}', "config.json: hidden_size: is missing"),
    ],
)
def test_configuration_that_cannot_be_read_is_named(
    tmp_path: Path, text: str | None, fault: str
) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SpecError) as error:
        build(config=str(file))
    assert all(place == "config" for place, _ in error.value.errors)
    assert fault in str(error.value)
    with pytest.raises(SpecError, match=r"No such file|not JSON|needed|missing"):
        load_model(str(file))


def test_models_are_loaded_by_name_and_by_path(tmp_path: Path) -> None:
    assert load_model("llama-moe") == preset("llama-moe")
    assert load_model(str(EXAMPLES / "data/olmoe-1b-7b.json")).layers == 16
    file = tmp_path / "mine.yaml"
    file.write_text("{name: mixtral-8x7b, layers: 2}")
    assert load_model(str(file)) == replace(preset("mixtral-8x7b"), layers=2, whole_layers=32)
    file.write_text("{config: olmoe-1b-7b.json, layers: 2}")
    with pytest.raises(SpecError, match=r"mine.yaml: config: .*olmoe-1b-7b.json: No such file"):
        load_model(str(file))
    with pytest.raises(SpecError, match="nope: is none of deepseek-r1"):
        load_model("nope")


@pytest.mark.parametrize(
    ("kind", "numbers", "size"),
    [
        ("fp32", 100, 400),
        ("bf16", 100, 200),
        ("fp16", 100, 200),
        ("fp8", 2880, 2880 + 23 * 4),
        ("mxfp8", 2880, 2880 + 90),
        ("mxfp4", 2880, 1440 + 90),
    ],
)
def test_bytes_of_numbers_on_the_wire(kind: str, numbers: int, size: int) -> None:
    formats = {str(name): form for name, form in WIRE_FORMATS.items()}
    assert formats[kind].bytes(numbers) == size


def test_experiment_with_a_configuration_is_predicted() -> None:
    """Layers and bytes are those of the configuration, whose path starts at the file."""
    settings = ["training.iterations=1", "model.layers=2", "training.token_counts=false"]
    spec = load_experiment(EXAMPLES / "olmoe.yaml", settings)
    model = spec.model.build()
    assert (model.name, model.layers, model.experts) == ("olmoe-1b-7b", 2, 64)
    work = workload_on(spec, spec.build_fabric(spec.fabrics[0], "lab", Scale()), EXAMPLES)
    demands = [layer.demand for layer in work.layers(0)]
    assert len(demands) == 2
    # 32 ranks send 16,384 tokens to 8 experts each; some 7 of 8 servers are others.
    for demand in demands:
        assert demand.total_bytes == pytest.approx(32 * 16384 * 8 * 4096 * 7 / 8, rel=0.03)
    eps, *_ = predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]
    bound_s = (
        sum(demand.port_bytes.max() for demand in demands)
        / len(demands)
        / 1e11
        / goodput_share(1500)
    )
    assert eps["all_to_all_s"] == pytest.approx(bound_s, rel=1e-3)
    whole = load_experiment(EXAMPLES / "olmoe.yaml", ["model={config: data/olmoe-1b-7b.json}"])
    assert whole.model.build().layers == 16
