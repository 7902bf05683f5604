"""Running fabric with real packets, failures to inject, and the controllers that detect them."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from moefabric.agents.fleet.channel import connect_local
from moefabric.agents.fleet.fleet import Fleet
from moefabric.controller.client import ControllerClient, wait_for_controllers
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import hardware_injection, lifecycle
from moefabric.emulator.linux import netlink
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.fabric_processes import fabric_processes
from moefabric.testbed.testbed import data_paths
from tests.kernel.fabric_lab import Machine
from tests.support.fabrics import fabric

RING = ["s0/o0~s1/o0", "s1/o1~s2/o0", "s2/o1~s3/o0", "s0/o1~s3/o1"]
"""Circuits that join the servers in a ring."""
TIMEOUT_S = 10.0


def four_servers(name: str, nic_rate_bps: float) -> Fabric:
    """Return a fabric of four servers with two optical and two electrical NICs each."""
    made = fabric(2, 2, settle_ns=5_000_000)
    return replace(made, name=name, gpus=1, nic_rate_bps=nic_rate_bps)


@dataclass(frozen=True)
class Detection:
    """Controller's report of a failure, with the times to detection and recovery."""

    controller: str
    what: str
    kind: str
    action: str
    detected_s: float
    recovered_s: float


class FailureLab:
    """Running fabric, the clients of its controllers, and its failures."""

    def __init__(
        self, wiring: FabricWiring, clients: dict[str, ControllerClient], fleet: Fleet | None
    ) -> None:
        self.fabric, self.clients, self._fleet = wiring.fabric, clients, fleet
        self.run_dir = RunDirectory.of_fabric(wiring.fabric.name)

    @property
    def fleet(self) -> Fleet:
        assert self._fleet is not None
        return self._fleet

    def rules(self) -> dict[str, set[str]]:
        """Return the rules of each controller's switches."""
        return {
            name: {str(rule) for rule in client.rules()} for name, client in self.clients.items()
        }

    def inject(self, kind: str, what: Sequence[str], controllers: Sequence[str]) -> list[Detection]:
        """Inject a failure, wait until the controllers have recovered, and return their reports."""
        before = {name: client.failures() for name, client in self.clients.items()}
        at_ns = hardware_injection.inject(self.run_dir, kind, what)
        return [
            detection
            for name in controllers
            for detection in self._detections(name, {*what}, before[name], at_ns)
        ]

    def _detections(
        self, controller: str, what: set[str], before: dict[str, Any], at_ns: int
    ) -> list[Detection]:
        known = {failure["number"] for failure in before["failures"]}
        report, deadline = before, Deadline.after(TIMEOUT_S)
        while deadline.remaining_s:
            report = self.clients[controller].failures(
                after=report["version"], wait_s=deadline.remaining_s
            )
            new = [failure for failure in report["failures"] if failure["number"] not in known]
            if what <= {failure["what"] for failure in new if failure["recovered_ns"]}:
                return [
                    self._detection(controller, failure, at_ns)
                    for failure in new
                    if failure["what"] in what
                ]
        raise AssertionError(f"{controller} has not recovered in {TIMEOUT_S:g} s: {report}")

    @staticmethod
    def _detection(controller: str, failure: dict[str, Any], at_ns: int) -> Detection:
        return Detection(
            controller,
            failure["what"],
            failure["kind"],
            failure["action"],
            (failure["detected_ns"] - at_ns) / 1e9,
            (failure["recovered_ns"] - at_ns) / 1e9,
        )

    def clear(self, circuits: Sequence[str] | None = None) -> float:
        """Clear all failures and return the seconds until every controller knows that.

        With `circuits` it also waits until exactly these are lit.
        """
        start_s = time.monotonic()
        hardware_injection.clear(self.run_dir)
        deadline = Deadline.after(TIMEOUT_S)
        for client in self.clients.values():
            report = client.failures(after=-1, wait_s=deadline.remaining_s)
            while not all(failure["cleared_ns"] for failure in report["failures"]):
                assert deadline.remaining_s, report
                report = client.failures(after=report["version"], wait_s=deadline.remaining_s)
        duration_s = time.monotonic() - start_s
        if circuits is not None:
            client = self.clients["r0"]
            deadline.wait_for(
                lambda: set(circuits) == set(client.circuits()) and not client.relays(),
                "the circuits of before",
            )
        return duration_s


@contextmanager
def failure_lab(machine: Machine, fabric: Fabric, *, agents: bool) -> Iterator[FailureLab]:
    """Bring a fabric up with controllers, OCSes and agents.

    With `agents` they are connected by every NIC.
    """
    with ExitStack() as undo:
        machine.run(lambda: netlink.execute([netlink.link_up("lo", socket.if_nametoindex("lo"))]))
        wiring = machine.run(partial(lifecycle.up, fabric, fabric_processes))
        undo.callback(machine.down, fabric.name)
        machine.run(partial(wait_for_controllers, wiring, 20.0))
        clients = {
            region.name if region else "eps": undo.enter_context(
                ControllerClient.of_region(wiring, region)
            )
            for region in (*fabric.regions, None)
        }
        for client in clients.values():
            machine.run(client.health)  # opens the connection in the machine's namespace
        fleet = None
        if agents:
            run_dir = RunDirectory.of_fabric(fabric.name)
            channels = [
                connect_local(server, run_dir.agent_socket(server)) for server in fabric.servers
            ]
            for channel in channels:
                undo.callback(channel.close)
            fleet = undo.enter_context(Fleet(channels))
            fleet.connect(data_paths(fabric))
        yield FailureLab(wiring, clients, fleet)
