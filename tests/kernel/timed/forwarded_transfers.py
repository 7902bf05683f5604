"""Send the same bytes directly, over server switches and over hosts, on real fabrics.

`unshare --net python forwarded_transfers.py compare BYTES` prints what flows of so many bytes cost
and where ports counted them. With `death`, it kills the agent of a relay in mid-transfer and prints
what its peers report.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from moefabric.agents.fleet.channel import Channel
from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.errors import ServerLossError
from moefabric.core.flows import Flow, PacedFlow
from moefabric.core.ocs import Ocs
from moefabric.core.port_counts import Counts, PortReading
from moefabric.core.topology import Fabric, Region
from moefabric.planner.sending.flow_pacing import pace_flows
from moefabric.planner.static import STATIC
from moefabric.simulator.fluid import predict
from moefabric.testbed.testbed import Controllers, port_counters, running_testbed
from tests.support.agents_lab import arm, collect, kill_agent
from tests.support.memory_testbed import MemoryPortCounters

RATE_BPS: Final = 200e6
"""Rate of a NIC, as emulated."""
ATTEMPTS: Final = 3
ABOUT_10_S: Final = 250_000_000
KINDS: Final = ("direct", "switch", "host")


def wired_for(kind: str) -> Fabric:
    """Return four servers with a full mesh of circuits and one NIC on the EPS each."""
    region = Region("r0", 0, ("s0", "s1", "s2", "s3"), Ocs("ocs0", 12))
    return Fabric(
        "forwarded",
        (region,),
        1,
        3,
        1,
        RATE_BPS,
        Eps(4),
        patch_panel=True,
        forwarding=kind != "direct",
        forwarding_by_hosts=kind == "host",
    )


def flows_of(wired: Fabric, lit: CircuitSet, size: int) -> tuple[Flow, ...]:
    """Return four flows that share no circuit, each over a relay if one forwards."""
    servers = wired.servers
    flows = []
    for number, src in enumerate(servers):
        dst, relay = servers[(number + 2) % 4], servers[(number + (-1) ** number) % 4]
        direct = lit.between(src, dst)[0].end_at(src).path
        path = f"r{servers.index(relay)}" if wired.forwarding else direct
        flows.append(Flow(src, dst, path, size))
    return tuple(flows)


def light(wired: Fabric, controllers: Controllers) -> CircuitSet:
    """Lay the full mesh."""
    none = DemandMatrix(wired.servers, np.zeros((4, 4)))
    return controllers.light_for(STATIC.name, none, wired)


def agents_s(fleet: Fleet) -> float:
    """Return the CPU time of all agents, that of the kernel on their behalf included."""
    stats = fleet.request("stats")
    used = {fact["pid"]: int(stats[server]["cpu_ns"]) for server, fact in fleet.facts.items()}
    return sum(used.values()) / 1e9


def measured(kind: str, size: int) -> dict[str, Any]:
    """Send the flows of a kind several times; return the best attempt and the ports' bytes."""
    wired = wired_for(kind)

    def lay(controllers: Controllers) -> None:
        light(wired, controllers)

    with running_testbed(wired, prepare=lay) as (_, fleet, controllers):
        lit = light(wired, controllers)
        planned = flows_of(wired, lit, size)
        seconds = predict(wired, lit, planned).seconds
        paced = pace_flows(wired, planned, [seconds] * len(planned))
        attempts = list[dict[str, Any]]()
        with port_counters(wired) as counters:
            for number in range(1, ATTEMPTS + 1):
                before = counters.read(), agents_s(fleet)
                records = fleet.run(number, paced)
                after = counters.read(), agents_s(fleet)
                first = min(record.first_sent_ns for record in records)
                last = max(record.last_received_ns for record in records)
                attempts.append(
                    {
                        "whole": all(r.ok and r.received_bytes == size for r in records),
                        "why": [record.why for record in records if record.why],
                        "predicted_s": seconds,
                        "measured_s": (last - first) / 1e9,
                        "cpu_s": after[1] - before[1],
                        "port_error": port_error(wired, lit, paced, (before[0], after[0])),
                        "ports": int((planned_ports(wired, lit, paced) > 0).sum()),
                    }
                )
        fastest = min(attempts, key=lambda attempt: float(attempt["measured_s"]))
        return {**fastest, "cpu_s": min(attempt["cpu_s"] for attempt in attempts)}


def planned_ports(wired: Fabric, lit: CircuitSet, paced: Sequence[PacedFlow]) -> Counts:
    """Return the payload that each port should count."""
    memory = MemoryPortCounters(wired)
    before = memory.read()
    for flow in paced:
        memory.count(flow, lit)
    return memory.read().payload_since(before)


def port_error(
    wired: Fabric,
    lit: CircuitSet,
    paced: Sequence[PacedFlow],
    readings: tuple[PortReading, PortReading],
) -> float:
    """Return the greatest difference of a port's bytes from the plan, relative to a flow's."""
    counted = readings[1].payload_since(readings[0])
    return float(np.abs(counted - planned_ports(wired, lit, paced)).max() / paced[0].bytes)


def why(channel: Channel, number: int, field: str) -> str:
    """Return why the only transfer of an agent's report failed."""
    ends = time.monotonic() + 30
    while number not in channel.reports and time.monotonic() < ends:
        channel.read()
    return str(channel.reports[number][field][0]["why"])


def killed_relay() -> dict[str, Any]:
    """Kill the agent of s1 while it relays from s0 to s2; then send without it."""
    wired = wired_for("host")

    def lay(controllers: Controllers) -> None:
        light(wired, controllers)

    with running_testbed(wired, prepare=lay) as (_, fleet, _):
        flows = [PacedFlow("s0", "s2", "r1", ABOUT_10_S, RATE_BPS)]
        arm(fleet, 7, flows, 30.0)
        arrived = fleet.request("stats")["s2"]["bytes_received"]
        while fleet.request("stats")["s2"]["bytes_received"] == arrived:
            pass
        kill_agent(wired.name, "s1")
        lost = loss_of(fleet, 7)
        reports = {
            "sender": why(fleet.channels["s0"], 7, "sends"),
            "receiver": why(fleet.channels["s2"], 7, "receives"),
        }
        fleet.drop(lost.servers)
        fleet.abandon(7)
        fleet.reconnect()
        again = [PacedFlow("s0", "s2", path, 1_000_000, None) for path in ("r3", "e0")]
        return {
            "lost": sorted(lost.servers),
            "text": str(lost),
            **reports,
            "again": [record.why for record in fleet.run(8, again)],
        }


def loss_of(fleet: Fleet, number: int) -> ServerLossError:
    """Return the loss of a server that ends a collective."""
    try:
        collect(fleet, number)
    except ServerLossError as loss:
        return loss
    raise AssertionError("no server was lost")


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=5)
    if sys.argv[1] == "death":
        print(json.dumps(killed_relay()))
    else:
        print(json.dumps({kind: measured(kind, int(sys.argv[2])) for kind in KINDS}))
