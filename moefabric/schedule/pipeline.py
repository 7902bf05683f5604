"""The order in which a pipeline stage works: one forward, one backward (1F1B), as PipeDream-flush and Megatron-LM have it.

A stage runs as many forward passes ahead as there are stages after it, then one forward and one backward in turn, then what is left of the backward
passes. So no stage holds the activations of more micro-batches than there are stages from it to the end.
"""

from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Pass:
    """One micro-batch through one stage, one way."""

    direction: str
    micro_batch: int


def one_forward_one_backward(stages: int, stage: int, micro_batches: int) -> tuple[Pass, ...]:
    """What stage `stage` (0 is first) of `stages` does in an iteration, in order."""
    ahead = min(stages - 1 - stage, micro_batches)
    order = [Pass(FORWARD, number) for number in range(ahead)]
    for number in range(micro_batches - ahead):
        order += [Pass(FORWARD, ahead + number), Pass(BACKWARD, number)]
    order += [Pass(BACKWARD, number) for number in range(micro_batches - ahead, micro_batches)]
    return tuple(order)


def bubble(stages: int, micro_batches: int) -> float:
    """The share of an iteration in which a stage waits for others, were nothing but computing: (p-1)/(m+p-1)."""
    return (stages - 1) / (micro_batches + stages - 1)
