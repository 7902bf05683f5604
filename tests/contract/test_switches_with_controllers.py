"""The project's controllers, as processes under Ryu, with switches in memory; without root."""

from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.rules import direct_rules, eps_rules, server_rules
from moefabric.runtime.waiting import Deadline
from tests.support.controller_bench import FABRIC, REGION, Bench, controllers_with_switches
from tests.support.controller_lab import entry_set

A = CircuitSet.of(["s0/o0~s3/o2", "s0/o1~s3/o1", "s1/o0~s2/o1"])
B = CircuitSet.of(["s0/o1~s3/o1", "s0/o0~s2/o0", "s1/o0~s2/o1"])


@pytest.fixture(scope="module", params=[False, True], ids=["own-process", "shared-process"])
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """Shared by all tests because the controllers start slowly."""
    folder = tmp_path_factory.mktemp("run")
    with controllers_with_switches(folder, shared=request.param) as started:
        yield started


def test_switches_have_exactly_the_rules_of_lit_circuits(bench: Bench) -> None:
    for lit in (CircuitSet(), A, B, A, CircuitSet()):
        before = {name: datapath.loads for name, datapath in bench.datapaths.items()}
        bench.client.light([str(circuit) for circuit in lit])
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC) | direct_rules(lit)
        for switch in FABRIC.switches:
            assert bench.entries(switch) == entry_set(FABRIC, switch, rules), f"{switch} with {lit}"
            # One load for the divert and one for the admit.
            assert bench.datapaths[switch].loads - before[switch] <= 2


def test_full_table_fails_changes_until_it_has_room(bench: Bench) -> None:
    bench.client.light([])
    datapath = bench.datapaths["s0"]
    datapath.capacity = datapath.flows
    for _ in range(20):
        with pytest.raises(ControlError, match=r"s0 refuses .*TABLE_FULL"):
            bench.client.light([str(circuit) for circuit in A])
        bench.client.light([])
    datapath.capacity *= 2
    bench.client.light([str(circuit) for circuit in A])
    rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC) | direct_rules(A)
    for switch in FABRIC.switches:
        assert bench.entries(switch) == entry_set(FABRIC, switch, rules)


def test_switch_that_refuses_its_first_rules_gets_them_again(bench: Bench) -> None:
    datapath = bench.datapaths["s0"]
    refusals, datapath.capacity = datapath.refusals, 0
    bench.reconnect("s0")
    Deadline.after(30).wait_for(lambda: datapath.refusals > refusals, "a refusal")
    datapath.capacity = 1 << 20
    bench.client.wait_ready(30)


def test_demands_move_circuits_one_after_the_other(bench: Bench) -> None:
    """The OCS is asked while a demand is planned; no answer is left for the next query."""
    size = len(REGION.servers)
    for pair in ((0, 1), (2, 3), (0, 3), (0, 3), (1, 2)):
        rows = [[8e9 if (a, b) == pair else 0.0 for b in range(size)] for a in range(size)]
        answer = bench.client.demand(rows)
        lit = CircuitSet.of(answer["circuits_after"])
        assert answer["plan"]["circuits"][pair[0]][pair[1]] == len(lit) > 0
        assert lit == CircuitSet.of(bench.client.circuits())
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC) | direct_rules(lit)
        for switch in FABRIC.switches:
            assert bench.entries(switch) == entry_set(FABRIC, switch, rules)


def test_controller_answers_arp(bench: Bench) -> None:
    def number(server: str) -> bytes:
        return IPv4Address(next(iter(FABRIC.addressing.addresses(server)))).packed

    def mac(server: str) -> bytes:
        return bytes.fromhex(FABRIC.addressing.mac(server).replace(":", ""))

    head = b"\x08\x06" + bytes.fromhex("0001080006040001")
    request = b"\xff" * 6 + mac("s0") + head + mac("s0") + number("s0") + bytes(6) + number("s2")
    bench.datapaths["s0"].forward(1, request)
    Deadline.after(30).wait_for(lambda: bool(bench.datapaths["s0"].sent), "a reply")
    ((port, reply),) = bench.datapaths["s0"].sent
    assert (port, reply[:6], reply[22:28]) == (1, mac("s0"), mac("s2"))
