"""Compares a step of the training example on several ranks with a dense model of one process.

torchrun starts it with the path of the example's program. The dense model holds all experts and
runs every expert on every token, so that it has neither routing nor all-to-alls. Rank 0 prints the
largest relative deviations of loss and gradients, and the all-to-alls of the step.
"""

import json
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional


def load_program(path: Path) -> Any:
    """Return the program as a module."""
    spec = spec_from_file_location("train", path)
    assert spec is not None
    assert spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def gathered(own: Tensor) -> Tensor:
    """Return the parts of all ranks, joined along the first axis."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.contiguous())
    return torch.cat(parts)


def whole_parameters(program: Any, model: Any) -> dict[str, Tensor]:
    """Return all parameters, with the experts of all ranks, as leaves of a new graph."""
    return {
        name: (gathered(value.data) if program.is_expert(name) else value.data.clone())
        .detach()
        .requires_grad_()
        for name, value in model.named_parameters()
    }


def dense_loss(
    program: Any, model: Any, weights: dict[str, Tensor], inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cross entropy of one rank's samples, and with it the auxiliary loss."""

    def run(part: str, module: Any, x: Tensor) -> Tensor:
        own = {
            name.removeprefix(f"{part}."): value
            for name, value in weights.items()
            if name.startswith(f"{part}.")
        }
        result: Tensor = torch.func.functional_call(module, own, (x,))
        return result

    x, balance = weights["embedding.weight"][inputs], torch.zeros(())
    for number, layer in enumerate(model.layers):
        place = f"layers.{number}"
        normed = run(f"{place}.attention_norm", layer.attention_norm, x)
        x = x + run(f"{place}.attention", layer.attention, normed)
        normed = run(f"{place}.experts_norm", layer.experts_norm, x)
        scores = normed @ weights[f"{place}.experts.gate.weight"].T
        best = scores.topk(layer.experts.choices).indices
        mask = torch.zeros_like(scores).scatter(-1, best, 1.0)
        shares = scores.masked_fill(mask == 0, -torch.inf).softmax(-1)
        into, out = weights[f"{place}.experts.into"], weights[f"{place}.experts.out"]
        gates, values = torch.einsum("bsh,ehf->bsef", normed, into).chunk(2, dim=-1)
        results = torch.einsum("bsef,efh->bseh", functional.silu(gates) * values, out)
        x = x + (shares[..., None] * results).sum(-2)
        loads = mask.mean((0, 1)) / layer.experts.choices
        balance = balance + len(loads) * (loads * scores.softmax(-1).mean((0, 1))).sum()
    logits = run("head", model.head, run("norm", model.norm, x))
    entropy = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return entropy, entropy + program.BALANCE * balance / len(model.layers)


def deviation(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected value."""
    return float((found - expected).abs().max() / expected.abs().max())


def main() -> None:
    """Make one step both ways."""
    program = load_program(Path(sys.argv.pop(1)))
    args = program.arguments()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    model = program.Model(args)
    weights = whole_parameters(program, model)
    inputs, targets = program.sample(text, 0, args)

    calls: list[bool] = []
    original = dist.all_to_all_single

    def counted(output: Tensor, tensor: Tensor, *splits: Any) -> Any:
        calls.append(tensor.is_floating_point())
        return original(output, tensor, *splits)

    still = torch.optim.SGD(model.parameters(), lr=0.0)
    with patch.object(dist, "all_to_all_single", counted):
        loss = program.train_step(model, still, inputs, targets)

    samples = [gathered(part[None]) for part in (inputs, targets)]
    dense = [dense_loss(program, model, weights, *pair) for pair in zip(*samples, strict=True)]
    entropy, total = (torch.stack(part).mean() for part in zip(*dense, strict=True))
    torch.autograd.backward(total)
    deviations = {"loss": abs(loss / float(entropy) - 1)}
    for name, parameter in model.named_parameters():
        gradient = gathered(parameter.grad) if program.is_expert(name) else parameter.grad
        expected = weights[name].grad
        assert expected is not None
        deviations[name] = deviation(gradient, expected)
    if dist.get_rank() == 0:
        exchanges = {"float": calls.count(True), "integer": calls.count(False)}
        print(json.dumps({"deviations": deviations, "exchanges": exchanges}), flush=True)
    dist.destroy_process_group()
    # A thread of gloo may still release tensors of the last exchange, which aborts the process
    # when the interpreter is being finalized.
    os._exit(0)


if __name__ == "__main__":
    main()
