"""Sample of a run's JSON: the prototype's experiment, from a simple fluid model and a seed.

`python -m tests.support.report_sample` writes it to `tests/golden/report/sample.json`.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moefabric.report.summary import FabricSummary, summaries
from moefabric.results.model import RunResult
from tests.support.paths import EXAMPLES

LAYERS, ITERATIONS, REGION = 7, 3, "r0"
ATTENTION_S, EXPERT_S, SETTLE_S = 0.031, 0.074, 0.025
NIC_BYTES_PER_S = 12.5e9
TOKEN_BYTES = 8192
GATING: list[list[int]] = json.loads((EXAMPLES / "data/gating-8x8.json").read_text())[
    "num_global_tokens_per_expert"
]
FABRICS = (  # name, policy, optical NICs, spill, share by light, changes light
    ("eps", "eps", 0, False, 0.0, False),
    ("mixnet", "mixnet", 3, False, 1.0, True),
    ("mixnet-spill", "spill", 3, True, 0.81, True),
    ("static", "static", 3, False, 0.94, False),
)
ORDER = {
    "forward": ("attention", "dispatch", "expert", "combine"),
    "backward": ("combine", "expert", "dispatch", "attention"),
}


def demand(servers: int, layer: int, rng: random.Random) -> list[list[float]]:
    """Return bytes between servers: the gating matrix, scaled per layer, folded to the servers."""
    heat = [rng.uniform(0.75, 1.3) for _ in range(servers)] if layer else [1.0] * servers
    per = max(1, 8 // servers)
    matrix = [[0.0] * servers for _ in range(servers)]
    for i in range(servers):
        for j in range(servers):
            ranks = [
                (a, b) for a in range(i * per, i * per + per) for b in range(j * per, j * per + per)
            ]
            matrix[i][j] = round(
                sum(GATING[a % 8][b % 8] for a, b in ranks) * heat[j] * TOKEN_BYTES
            )
    return matrix


def busiest(matrix: list[list[float]]) -> float:
    """Return the most bytes that any server sends or receives."""
    n = range(len(matrix))
    sends = [sum(matrix[i][j] for j in n if j != i) for i in n]
    receives = [sum(matrix[i][j] for i in n if j != i) for j in n]
    return max(sends + receives)


def completion(matrix: list[list[float]], optical: int, *, spill: bool) -> float:
    """Return the completion time over all four NICs, or over one circuit per pair."""
    if optical and not spill:
        n = range(len(matrix))
        return max(matrix[i][j] for i in n for j in n if i != j) / NIC_BYTES_PER_S
    return busiest(matrix) / (4 * NIC_BYTES_PER_S)


def circuits(servers: int, optical: int) -> list[list[str]]:
    """Return the circuits of a round-robin tournament, one round per optical NIC."""
    lit, ring = [], list(range(servers))
    for nic in range(optical):
        lit += [
            [f"s{a}/o{nic}", f"s{b}/o{nic}"]
            for a, b in zip(ring[: servers // 2], ring[: -servers // 2 - 1 : -1], strict=True)
        ]
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return lit


def change(rng: random.Random, layer: int) -> dict[str, Any]:
    """Return a reconfiguration whose control phases take some milliseconds."""
    phases = {
        "demand_s": rng.gauss(0.0006, 0.0001),
        "plan_s": rng.gauss(0.0004, 0.00005),
        "divert_s": rng.gauss(0.0021, 0.0004),
        "command_s": rng.gauss(0.0009, 0.0001),
        "settle_s": SETTLE_S,
        "verify_s": rng.gauss(0.0007, 0.0001),
        "admit_s": rng.gauss(0.0024, 0.0005) * (3.0 if rng.random() < 0.08 else 1.0),
    }
    phases = {name: round(abs(value), 6) for name, value in phases.items()}
    return {
        "region": REGION,
        "reason": f"layer {layer}",
        "circuits_before": ["s0/o0~s1/o0"],
        "circuits_after": ["s0/o0~s3/o0"],
        **phases,
        "total_s": round(sum(phases.values()), 6),
    }


def result(fabric: tuple[str, str, int, bool, float, bool], servers: int) -> dict[str, Any]:
    """Return one fabric's result."""
    name, policy, optical, spill, _, moves = fabric
    rng = random.Random(f"sample {name} {servers}")
    row: dict[str, Any] = {
        "fabric": name,
        "policy": policy,
        "iterations": [],
        "collectives": [],
        "reconfigurations": [],
    }
    for iteration in range(ITERATIONS):
        tasks = Iteration(iteration, servers, rng, fabric)
        exposed = tasks.add(row, moves=moves)
        compute = LAYERS * (ATTENTION_S + EXPERT_S) * 3
        measured = compute + exposed
        row["iterations"].append(
            {
                "measured_s": round(measured, 6),
                "predicted_s": round(measured * rng.uniform(0.985, 0.998), 6),
                "compute_s": round(compute, 6),
                "exposed_comm_s": round(exposed, 6),
            }
        )
        row["timeline"] = tasks.timeline
    shown = demand(servers, 0, rng)
    sent = sum(c["bytes"] for c in row["collectives"])
    even = 1.9 if name == "static" else 1.0
    ratio = completion(shown, optical, spill=spill) / completion(shown, 0, spill=False) * even
    return row | {
        "ratios": {
            "measured_vs_eps": round(ratio * (1.0 if name == "eps" else 1.006), 4),
            "predicted_vs_eps": round(ratio, 4),
        },
        "wiring": {
            "servers": servers,
            "gpus_per_server": 8,
            "optical_nics": optical,
            "electrical_nics": 4 - optical,
            "nic_rate_bps": 1e11,
            "emulated_nic_rate_bps": 5e7,
            "bytes_scale": 1000,
            "dilation": 2,
        },
        "demand": shown,
        "demand_label": "layer 0, dispatch",
        "circuits": circuits(servers, optical),
        "integrity": {
            "bytes_sent": sent,
            "bytes_received": sent,
            "corrupt": 0,
            "lost_transfers": 0,
        },
        "fidelity": {
            "verdict": "pass",
            "reasons": [],
            "link_rate_error_p95": 0.006,
            "cpu_idle_min": 0.41,
            "completion_error_p50": 0.009,
            "completion_error_p95": 0.024,
        },
    }


class Iteration:
    """One forward and one backward pass, task by task."""

    def __init__(
        self,
        iteration: int,
        servers: int,
        rng: random.Random,
        fabric: tuple[str, str, int, bool, float, bool],
    ) -> None:
        self.iteration, self.servers, self.rng = iteration, servers, rng
        self.name, _, self.optical, self.spill, self.light, _ = fabric
        self.timeline: list[dict[str, Any]] = []
        self.now = 0.0

    def add(self, row: dict[str, Any], *, moves: bool) -> float:
        """Add the tasks to the timeline and to `row`; return the exposed communication."""
        exposed = 0.0
        for passing, layer in self._order():
            matrix = demand(self.servers, layer, random.Random(f"layer {layer}"))
            for kind in ORDER[passing]:
                before = "dispatch" if passing == "forward" else "expert"
                if moves and kind == before:
                    exposed += self._relight(row, passing, layer, waits=passing == "forward")
                if kind in ("attention", "expert"):
                    span = ATTENTION_S if kind == "attention" else EXPERT_S
                    span *= 2 if passing == "backward" else 1
                    self._all(kind, passing, layer, span, 0.002)
                else:
                    exposed += self._collective(row, kind, passing, layer, matrix)
        return exposed

    def _order(self) -> Iterator[tuple[str, int]]:
        yield from (("forward", layer) for layer in range(LAYERS))
        yield from (("backward", layer) for layer in reversed(range(LAYERS)))

    def _all(self, kind: str, passing: str, layer: int, span: float, jitter: float) -> None:
        for server in range(self.servers):
            end = self.now + span - self.rng.uniform(0, jitter)
            self._mark(f"s{server}", kind, passing, layer, (self.now, end))
        self.now += span

    def _mark(
        self, server: str, kind: str, passing: str, layer: int, span: tuple[float, float]
    ) -> None:
        self.timeline.append(
            {
                "iteration": self.iteration,
                "server": server,
                "kind": kind,
                "pass": passing,
                "layer": layer,
                "start_s": round(span[0], 5),
                "end_s": round(span[1], 5),
            }
        )

    def _relight(self, row: dict[str, Any], passing: str, layer: int, *, waits: bool) -> float:
        entry = change(self.rng, layer)
        row["reconfigurations"].append(entry)
        before = (
            self.now + entry["demand_s"] + entry["plan_s"] + entry["divert_s"] + entry["command_s"]
        )
        for server in range(self.servers):
            self._mark(
                f"s{server}",
                "reconfiguration",
                passing,
                layer,
                (self.now, self.now + entry["total_s"]),
            )
            self._mark(f"s{server}", "dark", passing, layer, (before, before + SETTLE_S))
        if waits:
            self.now += entry["total_s"]
        return float(entry["total_s"]) if waits else 0.0

    def _collective(
        self, row: dict[str, Any], kind: str, passing: str, layer: int, matrix: list[list[float]]
    ) -> float:
        predicted = completion(matrix, self.optical, spill=self.spill)
        if self.name == "static":
            predicted *= 1.9
        measured = predicted * (1 + abs(self.rng.gauss(0.008, 0.006)))
        first = (kind, passing) == ("dispatch", "forward")
        is_dark = self.optical and first and self.name != "static"
        owed = sum(map(sum, matrix)) - sum(matrix[i][i] for i in range(self.servers))
        row["collectives"].append(
            {
                "iteration": self.iteration,
                "layer": layer,
                "kind": kind,
                "pass": passing,
                "region": REGION,
                "measured_s": round(measured, 6),
                "predicted_s": round(predicted, 6),
                "bytes": owed,
                "bytes_by_light": round(owed * self.light),
                "bytes_by_eps": owed - round(owed * self.light),
                "bytes_planned_by_light": round(owed * self.light),
                "bytes_planned_by_eps": owed - round(owed * self.light),
                "dark_s": SETTLE_S if is_dark else 0.0,
            }
        )
        self._all(kind, passing, layer, measured, measured * 0.15)
        return measured


def sample(servers: int = 4) -> dict[str, Any]:
    """Return the whole run with 4, 8 or 16 servers."""
    return {
        "experiment": "prototype",
        "version": "0.1.0",
        "manifest": {
            "kernel": "6.1.0-27-amd64",
            "datapath": "ovs (netdev)",
            "crossbar": "tc-bpf",
            "scale": {"bytes": 1000, "dilation": 2},
            "transport": "paced",
            "seed": 13,
            "started": "2026-01-05T09:12:44Z",
            "host": "lab-3",
        },
        "results": [result(fabric, servers) for fabric in FABRICS],
    }


def fabrics_of(run: dict[str, Any]) -> list[FabricSummary]:
    """Summarise the fabrics of a run given as JSON."""
    return summaries(RunResult.model_validate(run))


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "golden" / "report" / "sample.json"
    path.write_text(json.dumps(sample(), separators=(",", ":")) + "\n")
