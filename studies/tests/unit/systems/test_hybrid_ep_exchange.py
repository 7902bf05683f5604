"""Experts that move to tokens: demands that are left, transfers, tasks and predicted times."""

from typing import Any

import numpy as np
import pytest
from moefabric_studies.systems.hybrid_ep.exchange import HybridEp

from moefabric.config.loader import load_experiment
from moefabric.config.model import preset
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError
from moefabric.prediction.experiment import predict_fabrics
from moefabric.workload.iterations.iteration import (
    Collective,
    Compute,
    Operation,
    Reconfigure,
    Transfer,
)
from moefabric.workload.iterations.pipeline import lockstep_tasks
from moefabric.workload.placement.expert_exchange import with_expert_exchange
from tests.support.paths import EXAMPLES

SERVERS = tuple(f"s{n}" for n in range(8))
BYTES = DemandMatrix(SERVERS, np.arange(64.0).reshape(8, 8))


def operations(demand: DemandMatrix) -> tuple[Operation, ...]:
    seconds = (1.0,) * 8
    return (
        Compute("attention", "forward", 0, seconds),
        Collective("dispatch", "forward", 0, demand),
        Compute("expert", "forward", 0, seconds),
        Collective("combine", "forward", 0, demand.combine()),
        Collective("combine", "backward", 0, demand),
        Collective("dispatch", "backward", 0, demand.combine()),
        Compute("attention", "backward", 0, seconds, Reconfigure("backward", 0, demand)),
    )


def moved(exchange: HybridEp, groups: int = 1) -> tuple[Operation, ...]:
    size = len(SERVERS) // groups
    listed = [SERVERS[n : n + size] for n in range(0, len(SERVERS), size)]
    model = preset("mixtral-8x7b")
    return tuple(with_expert_exchange(operations(BYTES), exchange, listed, model))


def test_domains_of_one_server_change_nothing() -> None:
    assert moved(HybridEp(leaf=4)) == operations(BYTES)


@pytest.mark.parametrize(("dcs", "servers"), [(1, 1), (2, 1), (1, 4), (2, 2), (2, 4)])
def test_tokens_reach_a_server_that_has_their_expert(dcs: int, servers: int) -> None:
    exchange = HybridEp(leaf=4, dcs=dcs, servers=servers)
    computing = exchange.computing(8)
    attention = moved(exchange)[0]
    assert isinstance(attention, Compute)
    pairs = attention.transfer.pairs if attention.transfer else ()
    held = {(SERVERS[n], SERVERS[n]) for n in range(8)} | set(pairs)
    assert len(held) == 8 * dcs * servers
    for a in range(8):
        for b in range(8):
            assert (SERVERS[b], SERVERS[computing[a, b]]) in held


def test_bytes_stay_the_same_and_return_the_way_they_went() -> None:
    dispatch, combine = (moved(HybridEp(leaf=4, dcs=2))[n] for n in (1, 3))
    assert isinstance(dispatch, Collective)
    assert isinstance(combine, Collective)
    assert dispatch.demand.array.sum() == BYTES.array.sum()
    assert combine.demand == dispatch.demand.combine()
    crossing = dispatch.demand.array[:4, 4:].sum() + dispatch.demand.array[4:, :4].sum()
    assert crossing == 0


def test_reconfigurations_are_planned_for_the_tokens_that_are_left() -> None:
    *_, attention = moved(HybridEp(leaf=4, dcs=2))
    dispatch = moved(HybridEp(leaf=4, dcs=2))[1]
    assert isinstance(attention, Compute)
    assert isinstance(dispatch, Collective)
    assert attention.concurrent is not None
    assert attention.concurrent.demand == dispatch.demand


def test_groups_exchange_nothing_with_each_other() -> None:
    attention = moved(HybridEp(leaf=2, dcs=2), groups=2)[0]
    assert isinstance(attention, Compute)
    assert attention.transfer is not None
    assert {(a in SERVERS[:4], b in SERVERS[:4]) for a, b in attention.transfer.pairs} == {
        (True, True),
        (False, False),
    }


def test_dispatch_waits_for_attention_and_for_experts() -> None:
    tasks = lockstep_tasks(moved(HybridEp(leaf=4, dcs=2, ratio=50)), ["r0"])
    assert [type(task.work) for task in tasks[:3]] == [Compute, Transfer, Collective]
    assert [task.after for task in tasks[:3]] == [(), (), (0, 1)]
    assert [task.barrier for task in tasks[:3]] == [True, False, True]
    transfer = tasks[1].work
    assert isinstance(transfer, Transfer)
    # 8 experts of 3 x 4096 x 14336 weights of two bytes on 8 servers
    assert transfer.bytes == pytest.approx(2 * 3 * 4096 * 14336 / 50)


def test_servers_that_are_no_whole_domains_are_a_fault() -> None:
    with pytest.raises(SpecError, match="8 servers are not whole data centres of 4, domains of 3"):
        HybridEp(leaf=4, dcs=3).computing(8)


def predicted(*settings: str) -> dict[str, Any]:
    path = EXAMPLES / "prototype.yaml"
    wiring = ("wiring.eps.servers_per_leaf=2", "wiring.eps.oversubscription=32")
    spec = load_experiment(path, (*wiring, *settings))
    fabric: dict[str, Any] = predict_fabrics(spec, path.parent).to_json()["fabrics"][0]
    return fabric


def test_experts_shorten_iterations_over_slow_uplinks() -> None:
    plain = predicted()
    hybrid = predicted("fabrics[0].experts=hybridep(leaf=2, dcs=2, ratio=50)")
    assert hybrid["experts"] == "hybridep(leaf=2, dcs=2, ratio=50)"
    assert hybrid["all_to_all_s"] < plain["all_to_all_s"] / 4
    assert hybrid["compute_s"] == pytest.approx(plain["compute_s"])
    slow = predicted("fabrics[0].experts=hybridep(leaf=2, dcs=2, ratio=1)")
    assert slow["iteration_s"] > hybrid["iteration_s"]
    late = predicted("fabrics[0].experts=hybridep(leaf=2, dcs=2, ratio=50, codec_s=0.01)")
    assert late["compute_s"] == pytest.approx(plain["compute_s"] + 7 * 0.01)


def test_exchange_combines_with_payload_order_and_circuits() -> None:
    experts = "experts=hybridep(leaf=2, dcs=2, ratio=50)"
    alone = predicted(f"fabrics[0].{experts}")
    others = ("fabrics[0].transform=bigmac(r=0.25)", "fabrics[0].collective=aurora")
    assert predicted(f"fabrics[0].{experts}", *others)["all_to_all_s"] < alone["all_to_all_s"] / 2
    circuits = (
        "fabrics[0].optical=3",
        "fabrics[0].electrical=1",
        "fabrics[0].policy=spill",
        "fabrics[0].dispatch_light=predict",
    )
    both = predicted(f"fabrics[0].{experts}", *circuits)
    assert both["iteration_s"] < predicted(*circuits)["iteration_s"]
