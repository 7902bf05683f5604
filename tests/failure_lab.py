"""A fabric on real packets from which things are taken while agents send, and the controllers that find it out."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from agents.channel import local
from agents.fleet import Fleet
from controller.client import ControllerClient, await_controllers
from emulator import injection, lifecycle, netlink
from emulator.waiting import Deadline
from moefabric.experiment.programs import processes
from moefabric.experiment.testbed import ways
from moefabric.management import RunDir, Wiring
from moefabric.topology import Eps, Fabric, Ocs, Region, Scale
from tests.kernel.fabric_lab import Machine

RING = ["s0/o0~s1/o0", "s1/o1~s2/o0", "s2/o1~s3/o0", "s0/o1~s3/o1"]
"""Light from each server to the next."""
PATIENCE_S = 10.0


def four_servers(name: str, nic_rate_bps: float) -> Fabric:
    """Four servers of two optical and two electrical NICs, on one OCS and one leaf."""
    servers = ("s0", "s1", "s2", "s3")
    ocs = Ocs("ocs0", 8, settle_ns=5_000_000)
    region = Region("r0", 0, servers, ocs)
    return Fabric(name, (region,), 1, 2, 2, nic_rate_bps, Eps(4), Scale())


@dataclass(frozen=True)
class Found:
    """What a controller says of a failure, and how long after the injection it knew, and had another way for traffic."""

    who: str
    what: str
    kind: str
    action: str
    detected_s: float
    recovered_s: float


class FailureLab:
    """A fabric that is up, its controllers as clients, and what can be taken from it."""

    def __init__(self, wiring: Wiring, clients: dict[str, ControllerClient], fleet: Fleet | None) -> None:
        self.fabric, self.clients, self._fleet = wiring.fabric, clients, fleet
        self.run_dir = RunDir.named(wiring.fabric.name)

    @property
    def fleet(self) -> Fleet:
        assert self._fleet is not None
        return self._fleet

    def entries(self) -> dict[str, set[str]]:
        """The rules that each controller's switches have."""
        return {who: {str(rule) for rule in client.rules()} for who, client in self.clients.items()}

    def taken(self, kind: str, what: Sequence[str], who: Sequence[str]) -> list[Found]:
        """Take these away, and wait until those controllers have found another way for all traffic; what they found."""
        before = {name: client.failures() for name, client in self.clients.items()}
        at_ns = int(injection.inject(self.run_dir, kind, what)["at_ns"])
        return [one for name in who for one in self._found(name, {*what}, before[name], at_ns)]

    def _found(self, who: str, what: set[str], before: dict[str, Any], at_ns: int) -> list[Found]:
        known = {one["number"] for one in before["failures"]}
        said, version, soon = before, before["version"], Deadline.after(PATIENCE_S)
        while soon.left_s:
            said = self.clients[who].failures(after=version, wait_s=soon.left_s)
            version = said["version"]
            new = [one for one in said["failures"] if one["number"] not in known]
            if what <= {one["what"] for one in new if one["recovered_ns"]}:
                return [self._told(who, one, at_ns) for one in new if one["what"] in what]
        raise AssertionError(f"{who} has found no way in {PATIENCE_S:g} s: {said}")

    @staticmethod
    def _told(who: str, one: dict[str, Any], at_ns: int) -> Found:
        detected, recovered = ((one[key] - at_ns) / 1e9 for key in ("detected_ns", "recovered_ns"))
        return Found(who, one["what"], one["kind"], one["action"], detected, recovered)

    def given_back(self, circuits: Sequence[str] | None = None) -> float:
        """Give everything back, and wait until no controller misses anything, and these circuits are lit; how long that took."""
        began = time.monotonic()
        injection.clear(self.run_dir)
        soon = Deadline.after(PATIENCE_S)
        for client in self.clients.values():
            version = -1
            while True:
                said = client.failures(after=version, wait_s=soon.left_s)
                version = said["version"]
                if all(one["cleared_ns"] for one in said["failures"]):
                    break
                assert soon.left_s, said
        took = time.monotonic() - began
        if circuits is not None:
            client = self.clients["r0"]
            soon.until(
                lambda: set(circuits) == set(client.circuits()) and not client.relays(), "light as before"
            )
        return took


@contextmanager
def failure_lab(machine: Machine, wired: Fabric, *, agents: bool) -> Iterator[FailureLab]:
    """A fabric that is up with all that an experiment starts, agents wired by every NIC if they are wanted."""
    with ExitStack() as undo:
        machine.here(lambda: netlink.ask([netlink.up("lo", socket.if_nametoindex("lo"))]))
        wiring = machine.here(partial(lifecycle.up, wired, processes))
        undo.callback(machine.down, wired.name)
        machine.here(partial(await_controllers, wiring, 20.0))
        clients = {
            region.name if region else "eps": undo.enter_context(
                ControllerClient(wiring.management.northbound(region))
            )
            for region in (*wired.regions, None)
        }
        for client in clients.values():
            machine.here(client.health)  # the connection that this opens is of the machine
        fleet = None
        if agents:
            run_dir = RunDir.named(wired.name)
            channels = [local(server, run_dir.agent(server)) for server in wired.servers]
            for channel in channels:
                undo.callback(channel.close)
            fleet = undo.enter_context(Fleet(channels))
            fleet.wire(ways(wired))
        yield FailureLab(wiring, clients, fleet)
