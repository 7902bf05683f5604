"""`moefabric model`: the figures that it prints, and those in the guide."""

import json
from math import comb
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from moefabric.config.model import presets
from moefabric.ui.cli.main import main
from tests.support.paths import EXAMPLES, REPOSITORY


def output(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["model", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def shown(*arguments: str) -> Any:
    return json.loads(output("show", *arguments, "--json"))


def test_list_has_all_presets() -> None:
    table = json.loads(output("list", "--json"))
    assert list(table) == list(presets())
    assert table["olmoe-1b-7b"] == {"parameters": 6919161856, "active_parameters": 1282017280}
    assert "olmoe-1b-7b               6.92 G   1.28 G          16       64      8" in output("list")


def test_show_prints_what_the_guide_says() -> None:
    guide = (REPOSITORY / "docs/guides/models.md").read_text()
    assert output("show", "deepseek-v3", "--ep", "64") in guide


def test_figures_of_mixtral_by_hand() -> None:
    figures = shown("mixtral-8x7b", "--sequence", "2048")
    attention = 2 * 4096 * (4096 + 1024) * 2 + 2 * 4096 * 2048
    layer = attention + 2 * 4096 * 8 + 2 * (2 * 3 * 4096 * 14336)
    forward = 32 * layer + 2 * 4096 * 32000
    assert figures["flops_a_token"] == {
        "sequence": 2048,
        "forward": forward,
        "forward_and_backward": 3 * forward,
    }
    assert figures["parameters"] == {"total": 46702792704, "active": 12879925248}
    assert figures["token_bytes"] == {"dispatch": 8192, "combine": 8192}
    each = {"copies": 2, "dispatch": 4096 * 2 * 8192 * 7 / 8, "combine": 4096 * 2 * 8192 * 7 / 8}
    assert figures["all_to_all"]["each_copy"] == each
    assert figures["all_to_all"]["once_a_rank"] == pytest.approx(each), "a rank has one expert"


@pytest.mark.parametrize(
    ("model", "ranks", "each_mib", "once_mib"),
    [("qwen3-30b-a3b", 8, 112, 75), ("qwen3-30b-a3b", 32, 124, 114), ("mixtral-8x22b", 8, 84, 84)],
)
def test_bytes_of_an_all_to_all(model: str, ranks: int, each_mib: int, once_mib: int) -> None:
    """MiB that a rank sends of 4,096 tokens: T k H b (N - 1) / N, and with one copy a rank."""
    all_to_all = shown(model, "--ep", str(ranks))["all_to_all"]
    assert round(all_to_all["each_copy"]["dispatch"] / 2**20) == each_mib
    assert round(all_to_all["once_a_rank"]["dispatch"] / 2**20) == once_mib


def test_copies_that_go_once_to_a_rank() -> None:
    """By enumeration for 4 ranks of 2 experts and 3 experts of a token."""
    from itertools import combinations

    from moefabric.workload.models.model import GroupedAttention, Model
    from moefabric.workload.models.model_summary import ModelSummary

    model = Model("small", 1, 64, 64, 8, 3, GroupedAttention(1, 1, 64))
    chosen = [len({expert // 2 for expert in experts}) for experts in combinations(range(8), 3)]
    assert len(chosen) == comb(8, 3)
    summary = ModelSummary(model, 128, 16, 4)
    assert summary.once_a_rank.copies == pytest.approx(sum(chosen) / len(chosen))
    assert summary.each_copy.copies == 3


def test_fp8_and_node_limit_are_shown() -> None:
    printed = output("show", "deepseek-r1", "--ep", "64")
    assert all(len(line) <= 80 for line in printed.splitlines())
    text = " ".join(printed.split())
    assert "dispatch 7,392 (fp8), combine 14,336 (bf16); at most 4 servers a token" in text
    assert "58 with experts, 3 without experts" in text


def test_what_a_configuration_leaves_open_is_noted(tmp_path: Path) -> None:
    values = json.loads((EXAMPLES / "data/olmoe-1b-7b.json").read_text())
    values |= {"model_type": "olmoe_next", "for_llm_compressor": False}
    file = tmp_path / "downloaded.json"
    file.write_text(json.dumps(values))
    text = " ".join(output("show", str(file)).split())
    assert "note: model_type olmoe_next was read as olmoe, because of its OlmoeForCausalLM" in text
    assert "taken to change no size: for_llm_compressor" in text


def test_configuration_is_shown() -> None:
    figures = shown(str(EXAMPLES / "data/olmoe-1b-7b.json"))
    assert figures["model"]["name"] == "olmoe-1b-7b"
    assert figures["parameters"]["total"] == 6919161856


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nope"], "moefabric: nope: is none of deepseek-r1"),
        (["show", "mixtral"], "; did you mean mixtral-8x7b or mixtral-8x22b?"),
        (["show", "mixtral-8x7b", "--ep", "3"], "--ep: 8 experts don't fill 3 ranks evenly"),
        (["show", "absent.json"], "absent.json: No such file"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["model", *arguments])
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1
