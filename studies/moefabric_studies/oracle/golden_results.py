"""Stored results of LogGOPSim, htsim and ASTRA-sim, and the model's answers to the same inputs.

`golden/PROVENANCE.md` says how the results were made.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from moefabric.api.networks import goodput_share
from moefabric_studies.oracle.own_simulators import max_min_ends_s
from moefabric_studies.oracle.scenario import Cable, FlowStep, RoutedFlow, Scenario

_FOLDER: Final = Path(__file__).parent / "golden"
_RATE_BPS: Final = 100e9
_MTU: Final = 9000
_GRAPH_GROUP: Final = 4


@dataclass(frozen=True)
class GoldenResult:
    """A stored result beside the model's.

    Attributes:
        simulator: Whose result it is.
        case: What was simulated.
        theirs_s: When the last flow ended there.
        ours_s: When it ends in the model's max-min simulation.
        flow_errors: The model's error for each flow, where the simulator tells flows apart.
    """

    simulator: str
    case: str
    theirs_s: float
    ours_s: float
    flow_errors: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        """The model's time over theirs, less 1: negative if the model is optimistic."""
        return self.ours_s / self.theirs_s - 1


def golden_results() -> list[GoldenResult]:
    """Return every stored result beside the model's."""
    return [*_all_to_alls(), *_astra_sim()]


def golden_matrix(name: str) -> list[list[int]]:
    """Return the bytes from host to host of a stored all-to-all-v."""
    matrix: list[list[int]] = _read("all-to-all.json")["matrices"][name]
    return matrix


@cache
def _read(name: str) -> Any:
    return json.loads((_FOLDER / name).read_text())


def _all_to_alls() -> Iterator[GoldenResult]:
    """Yield the results of LogGOPSim, whose bytes have no headers, and of htsim's transports."""
    document = _read("all-to-all.json")
    for run in document["runs"]:
        matrix = document["matrices"][run["matrix"]]
        mtu = run["frame_bytes"] or _MTU
        rate_bps = _RATE_BPS if run["frame_bytes"] else _RATE_BPS / goodput_share(_MTU)
        pairs = [(a, b, size) for a, row in enumerate(matrix) for b, size in enumerate(row) if size]
        flows = [_by_switch(*pair) for pair in pairs]
        ends_s = max_min_ends_s(_scenario([FlowStep(tuple(flows))], rate_bps, 1e-6, mtu))
        theirs = run["flow_ends_s"]
        errors = tuple(
            own / theirs[f"{a}->{b}"] - 1
            for own, (a, b, _) in zip(ends_s, pairs, strict=True)
            if theirs
        )
        yield GoldenResult(run["simulator"], run["matrix"], run["last_s"], max(ends_s), errors)


def _astra_sim() -> Iterator[GoldenResult]:
    """Yield the results of ASTRA-sim.

    Its switch stores a whole message before it sends it on, where the model stores a frame.
    """
    document = _read("astra-sim.json")
    rate_bps = 8 * document["rate_bytes_per_s"] / goodput_share(_MTU)
    delay_s, ends_s = document["latency_s"], 2 * document["endpoint_s"]
    for row in document["all_to_all"]:
        ranks, size = range(row["ranks"]), row["bytes"] / row["ranks"]
        hop = _by_switch if row["topology"] == "Switch" else _directly
        step = FlowStep(tuple(hop(a, b, size) for a in ranks for b in ranks if a != b))
        ours_s = max(max_min_ends_s(_scenario([step], rate_bps, delay_s))) + ends_s
        case = f"{row['topology']}, {row['ranks']} ranks, {row['bytes'] >> 10:,} KiB"
        yield GoldenResult("ASTRA-sim", case, row["seconds"], ours_s)
    ours_s = max(max_min_ends_s(_scenario(_graph(), rate_bps, delay_s)))
    yield GoldenResult("ASTRA-sim", "graph of 8 ranks", document["graph"]["seconds"], ours_s)


def _graph() -> list[FlowStep]:
    """Return two all-to-alls of 1 MiB in groups of four, computation, and an all-reduce of 4 MiB.

    The all-reduce of two ranks is a reduce-scatter and an all-gather of half of the bytes.
    """
    ranks = range(2 * _GRAPH_GROUP)
    all_to_all = tuple(
        _by_switch(a, b, (1 << 20) / _GRAPH_GROUP)
        for a in ranks
        for b in ranks
        if a != b and a // _GRAPH_GROUP == b // _GRAPH_GROUP
    )
    exchange = tuple(_by_switch(a, (a + _GRAPH_GROUP) % len(ranks), 2 << 20) for a in ranks)
    return [
        FlowStep(all_to_all),
        FlowStep((), (0,), 50e-6),
        FlowStep(all_to_all, (1,)),
        FlowStep(exchange, (2,)),
        FlowStep(exchange, (3,)),
    ]


def _by_switch(a: int, b: int, size: float) -> RoutedFlow:
    src, dst = f"s{a}", f"s{b}"
    return RoutedFlow(src, dst, ((f"{src}/e0", "leaf0"), ("leaf0", f"{dst}/e0")), size)


def _directly(a: int, b: int, size: float) -> RoutedFlow:
    src, dst = f"s{a}", f"s{b}"
    return RoutedFlow(src, dst, ((f"{src}/o{b}", f"{dst}/o{a}"),), size)


def _scenario(steps: list[FlowStep], rate_bps: float, delay_s: float, mtu: int = _MTU) -> Scenario:
    links = {link for step in steps for flow in step.flows for link in flow.route}
    ends = sorted({(min(link), max(link)) for link in links})
    cables = tuple(Cable(pair, rate_bps, delay_s) for pair in ends)
    return Scenario("golden", mtu, cables, tuple(steps))
