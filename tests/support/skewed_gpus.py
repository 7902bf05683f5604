"""An experiment whose GPUs send and receive unequal bytes, and its all-to-alls by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GATING = [[5, 1, 8, 2], [4, 4, 7, 1], [1, 3, 6, 6], [2, 1, 9, 4]]
"""Tokens [rank, expert]; rows have equal sums. Servers have two ranks, of an expert each."""
PER_SERVER = 2


def skewed_experiment(folder: Path, tp: int = 1) -> dict[str, Any]:
    """Return an experiment with pooled NICs, NICs of GPUs, and these with hashed flows.

    Args:
        folder: The gating is written there.
        tp: GPUs of a rank, which each have a NIC.
    """
    (folder / "gating.json").write_text(json.dumps({"num_global_tokens_per_expert": GATING}))
    gpus = PER_SERVER * tp
    own = {"optical": 0, "electrical": gpus, "policy": "eps"}
    tree = {"servers_per_leaf": 1, "spines": 2}
    return {
        "experiment": "skewed",
        "model": {"name": "small", "layers": 1, "hidden": 1024, "ffn": 512, "experts": 4,
                  "top_k": 1, "attention": {"heads": 8, "kv_heads": 8, "head_size": 128}},
        "training": {"ep": 4, "tp": tp, "sequence": 4096, "micro_batch": 8, "iterations": 1,
                     "token_counts": False, "gradient_sums": False},
        "gating": {"matrix": str(folder / "gating.json")},
        "wiring": {"gpus_per_server": gpus, "nic_rate": "100Gb/s", "regions": [{"servers": 2}]},
        "fabrics": [
            {"name": "pooled", **own},
            {"name": "own", **own, "eps": {"nic_per_gpu": True}},
            {"name": "hashed", **own, "eps": {"nic_per_gpu": True, "hash_seed": 1, **tree}},
        ],
        "scale": {"bytes": 100, "dilation": 20},
    }  # fmt: skip


def slowest_nic_to_pooled() -> float:
    """Return the time of an all-to-all by the slowest GPU's NIC, relative to that of pooled NICs.

    A GPU of a rank sends and receives an equal part of the rank's bytes.
    """
    remote = [
        [tokens if rank // PER_SERVER != expert // PER_SERVER else 0
         for expert, tokens in enumerate(row)]
        for rank, row in enumerate(GATING)
    ]  # fmt: skip
    nics = [sum(row) for row in remote] + [sum(column) for column in zip(*remote, strict=True)]
    servers = [sum(nics[first : first + PER_SERVER]) for first in range(0, len(nics), PER_SERVER)]
    ratio: float = max(nics) / max(servers) * PER_SERVER
    return ratio
