"""Execution graphs of inference layers on GPUs: of one model, or of several that share GPUs.

A GPU computes one thing at a time, in the order of Aurora's table 2: the gates of all its models,
their experts, their aggregations. Each model has all-to-alls of its own, which share the ports.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moefabric import ExecutionGraph
from moefabric.api.workloads import Node
from moefabric_studies.systems.aurora.colocation import Deployment

_COMPUTE_STREAM = 0


@dataclass(frozen=True)
class Token:
    """Size of a token, and its time on the port of the fastest GPU."""

    size_bytes: float
    seconds: float


def inference_graph(deployment: Deployment, token: Token, name: str = "") -> ExecutionGraph:
    """Return the operations of all GPUs; rank r is GPU r."""
    groups = {f"model{number}": hosted.gpus for number, hosted in enumerate(deployment.hosted)}
    ranks = range(len(deployment.rates))
    return ExecutionGraph({gpu: _operations(deployment, gpu, token) for gpu in ranks}, groups, name)


def _operations(deployment: Deployment, gpu: int, token: Token) -> tuple[Node, ...]:
    """Return a GPU's computations and the all-to-alls between them."""
    token_s = token.seconds / float(deployment.rates[gpu])
    models = [(n, hosted) for n, hosted in enumerate(deployment.hosted) if gpu in hosted.gpus]
    nodes: list[Node] = []
    arrived: dict[int, tuple[int, ...]] = {}
    for stage, exchange in (("gate", "dispatch"), ("expert", "combine"), ("aggregation", "")):
        for model, hosted in models:
            layer, place = hosted.layer, hosted.gpus.index(gpu)
            sent, received = layer.tokens[place], layer.tokens[:, place]
            load = layer.expert * received.sum() if stage == "expert" else layer.gate * sent.sum()
            after, seconds = arrived.get(model, ()), float(load) * token_s
            nodes.append(Node(len(nodes), "compute", stage, after, seconds, stream=_COMPUTE_STREAM))
            if not exchange:
                continue
            splits = _splits(sent if stage == "gate" else received, place, token)
            arrived[model] = (len(nodes),)
            nodes.append(
                Node(
                    len(nodes),
                    "collective",
                    exchange,
                    (len(nodes) - 1,),
                    size=sum(splits),
                    collective="all_to_all",
                    group=f"model{model}",
                    splits=splits,
                )
            )
    return tuple(nodes)


def _splits(tokens: NDArray[np.float64], gpu: int, token: Token) -> tuple[int, ...]:
    """Return the bytes to each GPU, none to the GPU itself."""
    return tuple(
        0 if place == gpu else round(count * token.size_bytes)
        for place, count in enumerate(tokens.tolist())
    )
