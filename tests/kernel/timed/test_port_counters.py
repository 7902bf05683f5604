"""Bytes counted at the ports of a real fabric, while rules send some another way than planned."""

import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

import numpy as np
import pytest

from moefabric.agents.fleet.fleet import Fleet
from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.paths import dscp
from moefabric.core.topology import Fabric
from moefabric.core.units import Scale
from moefabric.emulator.fabric.plan import bridge_name
from moefabric.execution.executor import Executor, Instruments
from moefabric.results.model import FabricResult, Verdict
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed.testbed import Controllers, port_counters, running_testbed
from moefabric.workload.iterations.iteration import Collective, Operation, Reconfigure
from tests.support.fabrics import fabric
from tests.support.openflow_lab import Peer, flow_mod, flows_request, output

SIZE = 2e9
_OUTPUT, _DELETE_STRICT = 0, 4  # OFPAT_OUTPUT and OFPFC_DELETE_STRICT
Rule = tuple[Any, str, int]
"""A rule's entry, destination and output port."""


@dataclass
class Lab:
    """Three servers with two optical and two electrical NICs each."""

    fabric: Fabric
    fleet: Fleet
    controllers: Controllers

    def run(self, policy: str, before_the_second: Callable[[], object] = int) -> FabricResult:
        """Return the result of two equal all-to-alls, with an action between them."""
        servers = self.fabric.servers
        demand = DemandMatrix(servers, SIZE * (1 - np.eye(len(servers))))
        operations: list[Operation] = [
            Reconfigure("forward", 0, demand),
            Collective("dispatch", "forward", 0, demand),
        ]
        self.controllers.clear_circuits()
        controllers = {} if policy == "eps" else self.controllers.under_policy(policy)
        with port_counters(self.fabric) as counters:
            executor = Executor(
                self.fabric,
                policy_named(policy),
                self.fleet,
                controllers,
                CircuitSet(),
                instruments=Instruments(counters=counters),
            )
            try:
                runs = [executor.iteration(0, operations)]
                before_the_second()
                runs.append(executor.iteration(1, operations))
            finally:
                executor.close()
        return fabric_result(self.fabric, "lab", policy, runs, cpu_idle=[0.5], remarks=[])

    def change_rules(self, is_wanted: Callable[[Rule], bool], out_port: int | None = None) -> int:
        """Delete rules of s0's switch, or let them use another port; return how many."""
        path = RunDirectory.of_fabric(self.fabric.name).switches
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path / f"{bridge_name('s0', self.fabric)}.mgmt"))
            peer = Peer(sock)
            peer.greet()
            chosen = [rule[0] for rule in _rules(peer) if is_wanted(rule)]
            for entry in chosen:
                if out_port is None:
                    change = flow_mod(entry.priority, match=entry.match, command=_DELETE_STRICT)
                else:
                    change = flow_mod(entry.priority, [output(out_port)], entry.match)
                peer.after(change)
        return len(chosen)

    def port(self, nic: str) -> int:
        return self.fabric.openflow.ports("s0")[nic]


def _rules(peer: Peer) -> Iterator[Rule]:
    for entry in peer.statistics(flows_request()):
        for instruction in entry.instructions:
            for action in getattr(instruction, "actions", ()):
                if action.type == _OUTPUT and "ipv4_dst" in entry.match:
                    prefix = ip_network("/".join(entry.match["ipv4_dst"]))
                    yield entry, str(prefix), action.port


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    wired = fabric(2, 2, regions=(3,), scale=Scale(200, 5))
    with running_testbed(wired) as (_, fleet, controllers):
        yield Lab(wired, fleet, controllers)


@pytest.mark.parametrize("policy", ["eps", "mixnet", "spill"])
def test_counted_bytes_of_an_undisturbed_run_equal_the_plan(lab: Lab, policy: str) -> None:
    result = lab.run(policy)
    assert len(result.collectives) == 2
    for collective in result.collectives:
        counted = collective.bytes_by_light, collective.bytes_by_eps
        planned = collective.bytes_planned_by_light, collective.bytes_planned_by_eps
        print(policy, counted, planned)
        assert collective.misrouted == []
        assert None not in counted
        assert sum(planned) == collective.bytes == 6 * SIZE
        assert counted == pytest.approx(planned, abs=1e-4 * 6 * SIZE)
        assert bool(planned[0]) == (policy != "eps")
        assert bool(planned[1]) == (policy != "mixnet")


def test_run_whose_light_rules_are_deleted_is_invalid_and_names_the_pair(lab: Lab) -> None:
    light = {lab.port(str(nic)) for nic in lab.fabric.optical_nics("s0")}

    def delete() -> None:
        assert lab.change_rules(lambda rule: rule[1] == "10.0.1.0/24" and rule[2] in light)

    result = lab.run("mixnet", delete)
    print(*result.fidelity.reasons, sep="\n")
    assert result.fidelity.verdict is Verdict.INVALID
    place = "r0: forward dispatch of layer 0, iteration 1: s0 to s1 by o"
    assert any(reason.startswith(place) for reason in result.fidelity.reasons)
    first, second = result.collectives
    assert first.misrouted == []
    assert second.bytes_planned_by_eps == 0
    assert second.bytes_by_eps == pytest.approx(SIZE, rel=1e-3)


def test_flow_by_another_electrical_nic_than_planned_is_named(lab: Lab) -> None:
    mark, planned, other = dscp(lab.fabric, "e0"), lab.port("s0/e0"), lab.port("s0/e1")

    def swap() -> None:
        def is_wanted(rule: Rule) -> bool:
            return rule[0].match.get("ip_dscp") == mark and rule[2] == planned

        assert lab.change_rules(is_wanted, other)

    first, second = lab.run("eps", swap).collectives
    print(*second.misrouted, sep="\n")
    assert first.misrouted == []
    lacking, more = second.misrouted[0], second.misrouted[-1]
    # Acknowledgements of the bytes that s0 received have the same mark, and leave by e1, too.
    assert re.fullmatch(r"s0 to s\d.* by e0: planned 2GB by EPS, counted 0B", lacking)
    assert more.startswith("s0/e1 sent 2GB more than planned")
