"""`moefabric model`: presets, and what a model computes and sends."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moefabric import SpecError, size_text
from moefabric.api.commands import print_result
from moefabric.report.formatting import wrapped
from moefabric.ui.cli.command import cli_group, completed, json_beside_files_option, json_option

if TYPE_CHECKING:
    from moefabric.workload.models.model_summary import AllToAllBytes, ModelSummary


@cli_group("moefabric model list", "moefabric model show mixtral-8x7b")
def model() -> None:
    """Show sizes, FLOPs and bytes of models."""


@model.command(
    "list",
    short_help="List the presets.",
    examples=["moefabric model list", "moefabric model list --json"],
)
@json_option
def list_(as_json: Path | None) -> None:
    """List the presets: names that `model.name` takes in an experiment."""
    from moefabric.config.model import preset, presets

    rows = [(name, preset(name)) for name in presets()]
    table = {
        name: {"parameters": sizes.parameters, "active_parameters": sizes.active_parameters}
        for name, sizes in rows
    }
    lines = [f"{'':<20}{'parameters':>12}{'active':>9}{'MoE layers':>12}{'experts':>9}{'top-k':>7}"]
    lines += [
        f"{name:<20}{_billions(sizes.parameters):>12}{_billions(sizes.active_parameters):>9}"
        f"{sizes.layers:>12}{sizes.experts:>9}{sizes.top_k:>7}"
        for name, sizes in rows
    ]
    print_result(table, lines, as_json=as_json)


@model.command(
    short_help="Show a model's FLOPs and bytes.",
    examples=["moefabric model show deepseek-v3", "moefabric model show config.json --json"],
)
@click.argument("reference", metavar="MODEL", shell_complete=completed("models"))
@click.option(
    "--sequence", type=click.IntRange(1), default=4096,
    help="Tokens of a sequence, for the FLOPs of attention's scores.",
)  # fmt: skip
@click.option("--tokens", type=click.IntRange(1), default=4096, help="Tokens of a rank.")
@click.option("--ep", type=click.IntRange(2), default=8, help="Expert-parallel ranks.")
@json_beside_files_option
def show(reference: str, sequence: int, tokens: int, ep: int, as_json: Path | None) -> None:
    """Show what a model computes and sends.

    MODEL is a preset, a `config.json` of Hugging Face or its folder, or a YAML file with the keys
    of `model:` in an experiment. Bytes of an all-to-all are those that a rank sends the others for
    one layer, if the gate chooses all experts alike.
    """
    from moefabric import ModelSummary, load_model

    chosen = load_model(reference)
    if chosen.experts % ep:
        raise SpecError([("--ep", f"{chosen.experts} experts don't fill {ep} ranks evenly")])
    summary = ModelSummary(chosen, sequence, tokens, ep)
    print_result(_document(summary), _lines(summary), as_json=as_json)


def _document(summary: "ModelSummary") -> dict[str, Any]:
    from dataclasses import asdict

    model = summary.model
    return {
        "model": asdict(model),
        "parameters": {"total": model.parameters, "active": model.active_parameters},
        "flops_a_token": {
            "sequence": summary.sequence,
            "forward": summary.forward_flops,
            "forward_and_backward": summary.training_flops,
        },
        "token_bytes": {
            "dispatch": model.dispatch_token_bytes,
            "combine": model.combine_token_bytes,
        },
        "all_to_all": {
            "tokens": summary.tokens,
            "ranks": summary.ranks,
            "each_copy": asdict(summary.each_copy),
            "once_a_rank": asdict(summary.once_a_rank),
        },
    }


def _lines(summary: "ModelSummary") -> list[str]:
    model, width = summary.model, 20
    dense = f", {model.dense_layers} without experts" if model.dense_layers else ""
    shared = f", shared expert of {model.shared_ffn}" if model.shared_ffn else ""
    limit = f"; at most {model.node_limit} servers a token" if model.node_limit else ""
    total, active = _billions(model.parameters), _billions(model.active_parameters)
    forward, training = summary.forward_flops / 1e9, summary.training_flops / 1e9
    rows = {
        "layers": f"{model.layers} with experts{dense}; hidden size {model.hidden}",
        "experts": f"{model.experts} of {model.ffn}, {model.top_k} a token{shared}",
        "parameters": f"{total}, {active} active (embeddings counted)",
        "FLOPs a token": f"{forward:.2f} G forward, {training:.2f} G forward and backward "
        f"(sequence of {summary.sequence})",
        "bytes a token": f"dispatch {model.dispatch_token_bytes:,} ({model.dispatch_type}), "
        f"combine {model.combine_token_bytes:,} ({model.combine_type}){limit}",
        "all-to-all a layer": f"bytes that each of {summary.ranks} ranks sends the others, "
        f"{summary.tokens} tokens a rank, even gating",
        "  each copy": _all_to_all_text(summary.each_copy),
        "  once a rank": _all_to_all_text(summary.once_a_rank),
    }
    lines = [f"{name:<{width}}{wrapped(text, width)}" for name, text in rows.items()]
    return [model.name, *lines, *(wrapped(f"note: {note}") for note in model.notes)]


def _all_to_all_text(all_to_all: "AllToAllBytes") -> str:
    dispatch, combine = size_text(all_to_all.dispatch), size_text(all_to_all.combine)
    return f"dispatch {dispatch}, combine {combine} ({all_to_all.copies:.2f} copies of a token)"


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} G"
