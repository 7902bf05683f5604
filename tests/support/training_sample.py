"""Sample of a training run's JSON: the sample of a run with losses, tokens and moving circuits."""

import random
from typing import Any

from tests.support.report_sample import sample

LAYERS, RANKS, EXPERTS = 3, 4, 8
ITERATION_S = {"eps": 0.14, "mixnet": 0.19, "mixnet-spill": 0.15, "static": 0.22}
CIRCUITS = (["s0/o0~s1/o0", "s2/o0~s3/o0"], ["s0/o0~s3/o0", "s2/o0~s3/o1"])


def training_sample(iterations: int = 6) -> dict[str, Any]:
    """Return a run whose fabrics train alike, at different speeds."""
    run = sample()
    losses = [5.5 / (number + 1) + 2 for number in range(iterations)]
    for result in run["results"]:
        took_s = ITERATION_S[result["fabric"]]
        result["iterations"] = [
            {"iteration": n, "measured_s": took_s, "exposed_comm_s": took_s / 4}
            for n in range(iterations)
        ]
        result["training"] = {
            "program": "train.py",
            "byte_scale": 640.0,
            "losses": [
                {"iteration": n, "model_s": took_s * (n + 1), "loss": loss, "text": repr(loss)}
                for n, loss in enumerate(losses)
            ],
            "tokens": tokens(iterations),
            "computation": {"count": 96, "late": 2, "worst_rank": 3},
        }
        if result["reconfigurations"]:
            result["reconfigurations"] = [
                reconfiguration(n, layer) for n in range(iterations) for layer in range(LAYERS)
            ]
    return run


def tokens(iterations: int) -> list[list[list[list[int]]]]:
    """Return tokens by iteration, layer, rank and expert; expert 5 of layer 1 is the busiest."""
    random_numbers = random.Random("tokens")
    return [
        [
            [
                [
                    random_numbers.randint(40, 80) * (3 if (layer, expert) == (1, 5) else 1)
                    for expert in range(EXPERTS)
                ]
                for _ in range(RANKS)
            ]
            for layer in range(LAYERS)
        ]
        for _ in range(iterations)
    ]


def reconfiguration(iteration: int, layer: int) -> dict[str, Any]:
    """Return a request that moves both circuits for layer 1, and back for layer 2."""
    before, after = CIRCUITS[layer == 2], CIRCUITS[layer == 1]
    return {
        "region": "r0",
        "iteration": iteration,
        "layer": layer,
        "pass": "forward",
        "circuits_before": before,
        "circuits_after": after,
        "settle_s": 0.025,
        "total_s": 0.03,
    }
