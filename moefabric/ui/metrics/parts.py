"""Metrics of a fabric's parts: their names, their texts, and samples from the parts' counters."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client.utils import floatToGoString

from moefabric.api.fabric_view import ProcessUsage
from moefabric.core.nic import Nic, NicKind
from moefabric.core.port_counts import INTO_OCS, OUT_OF_OCS, RECEIVED, SENT, PortReading
from moefabric.core.units import NS_PER_S
from moefabric.results.model import Verdict
from moefabric.runtime.run_status import RunStatus

_RUN_COUNTS: Final = ("collectives", "reconfigurations", "lost_transfers", "corrupt")
TEXTS: Final = {
    "fabric_up": "Whether the fabric runs.",
    "scrape_success": "Whether a part of the fabric could be read.",
    "scrape_seconds": "Time to read all metrics.",
    "nic_transmit_bytes_total": "Bytes that NICs have sent, with headers.",
    "nic_transmit_packets_total": "Packets that NICs have sent, with headers.",
    "nic_receive_bytes_total": "Bytes that NICs have received, with headers.",
    "nic_receive_packets_total": "Packets that NICs have received, with headers.",
    "port_transmit_bytes_total": "Bytes that have left a port's queue.",
    "port_transmit_packets_total": "Packets that have left a port's queue.",
    "port_dropped_packets_total": "Packets that a full queue has dropped.",
    "port_marked_packets_total": "Packets that a programmed link has marked for congestion (ECN).",
    "ocs_input_bytes_total": "Bytes at the input of the OCS that a NIC is connected to.",
    "ocs_output_bytes_total": "Bytes at the output of the OCS that a NIC is connected to.",
    "ocs_ports": "Ports by their optical state.",
    "ocs_cross_connects": "Cross-connects, lit or settling.",
    "ocs_faults": "Injected faults of an OCS, with that of its power.",
    "ocs_changes_total": "Commands that changed cross-connects.",
    "ocs_refusals_total": "Commands that an OCS refused.",
    "ocs_dark_seconds_total": "Time from change to light, summed over cross-connects.",
    "controller_up": "Whether it answers.",
    "controller_ready": "Whether all its devices are ready.",
    "controller_switches": "Switches that are ready.",
    "controller_circuits": "Circuits by state: lit ones carry traffic.",
    "controller_lost_light_total": "Circuits that lost their light unasked.",
    "controller_requests_total": "HTTP requests.",
    "controller_reconfiguration_failures_total": "Reconfigurations that ended with an error.",
    "controller_reconfiguration_seconds": "Duration of reconfigurations by phase.",
    "switch_rules": "Rules that a switch should have.",
    "agent_up": "Whether it answers.",
    "agent_connections": "Data connections, by who opened them.",
    "agent_collectives": "Collectives under way.",
    "agent_sent_bytes_total": "Payload sent.",
    "agent_received_bytes_total": "Payload received.",
    "agent_forwarded_bytes_total": "Payload forwarded for others.",
    "agent_corrupt_total": "Transfers with wrong payload.",
    "agent_strays_total": "Transfers that nobody expected.",
    "agent_faults_total": "Programming errors that the agent survived.",
    "machine_up": "Whether the machine has its part.",
    "machine_clock_offset_seconds": "CLOCK_MONOTONIC minus that of the head.",
    "machine_clock_uncertainty_seconds": "Largest error of the offset.",
    "run_active": "Whether a run uses the fabric.",
    "run_info": "Names of the run.",
    "run_iteration": "Iteration that began last, from 0.",
    "run_iterations": "Iterations of the run.",
    "run_verdict": "Verdict so far: 1 for the one that holds.",
    "run_measured_seconds": "Measured duration of the last iteration, model seconds.",
    "run_predicted_seconds": "Predicted duration of the last iteration, model seconds.",
    "run_exposed_seconds": "Exposed duration of the last iteration, model seconds.",
    "run_bytes_total": "The model's bytes by path, as counted at ports.",
    "run_iterations_total": "Finished iterations of the run.",
    **{f"run_{name}_total": f"{name} of the run." for name in _RUN_COUNTS},
    "process_resident_memory_bytes": "Resident memory.",
    "process_open_fds": "Open file descriptors.",
    "process_cpu_seconds_total": "CPU time.",
}
"""Text of each metric by its name without prefix; `_total` ends the names of counters."""
PORT_STATES: Final = ("blocked", "tuning", "tuned", "failed")

Buckets = list[tuple[str, float]]
Samples = Iterable[tuple[Mapping[str, str], Mapping[str, float | tuple[Buckets, float]]]]
"""Labels, and the values that have them by the names of metrics. The value of a histogram is its
cumulative counts by upper bound, and the sum of all observations."""


def nic_samples(nics: Iterable[Nic], reading: PortReading) -> Samples:
    """Yield the bytes and frames of NICs and of their OCS ports."""
    for row, nic in enumerate(nics):
        labels = {"server": nic.server, "nic": str(nic)}
        octets, frames = reading.bytes[row], reading.frames[row]
        for direction, column in (("transmit", SENT), ("receive", RECEIVED)):
            counts = {"bytes": octets[column], "packets": frames[column]}
            yield labels, {f"nic_{direction}_{unit}_total": n for unit, n in counts.items()}
        if nic.kind is NicKind.OPTICAL:
            light = {"ocs_input_bytes_total": INTO_OCS, "ocs_output_bytes_total": OUT_OF_OCS}
            yield labels, {name: octets[column] for name, column in light.items()}


def queue_samples(queues: Mapping[str, Mapping[str, int]]) -> Samples:
    """Yield the frames that the shaped ports of servers and switches have sent and dropped."""
    for port, queue in queues.items():
        counts = {
            "port_transmit_bytes_total": queue["bytes"],
            "port_transmit_packets_total": queue["packets"],
            "port_dropped_packets_total": queue["drops"],
        }
        if "marks" in queue:
            counts["port_marked_packets_total"] = queue["marks"]
        yield {"port": port}, counts


def ocs_samples(name: str, status: Mapping[str, Any]) -> Samples:
    """Yield the state of an OCS, from the reply of its process to `show`."""
    labels, ports = {"ocs": name}, status["ports"]
    for state in PORT_STATES:
        yield labels | {"state": state}, {"ocs_ports": sum(p["state"] == state for p in ports)}
    counts = {
        "ocs_cross_connects": sum(port["partner"] is not None for port in ports) // 2,
        "ocs_faults": len(status["faults"]) + (not status["power"]),
        "ocs_changes_total": status["changes"],
        "ocs_refusals_total": status["refusals"],
        "ocs_dark_seconds_total": status["dark_s"],
    }
    yield labels, counts


def controller_samples(name: str, statistics: Mapping[str, Any] | None) -> Samples:
    """Yield the state and counts of a controller; None if it doesn't answer."""
    labels, ready = {"controller": name}, bool(statistics and statistics["ready"])
    yield labels, {"controller_up": statistics is not None, "controller_ready": ready}
    if statistics is None:
        return
    yield labels, {"controller_switches": len(statistics["switches"])}
    for state, key in (("lit", "circuits"), ("dark", "dark")):
        yield labels | {"state": state}, {"controller_circuits": len(statistics[key])}
    yield labels, {"controller_lost_light_total": statistics["lost_light"]}
    for switch, rules in statistics["rules"].items():
        yield {"switch": switch}, {"switch_rules": rules}
    for entry in statistics["requests"]:
        request = {"path": entry["path"], "status": str(entry["status"])}
        yield labels | request, {"controller_requests_total": entry["count"]}
    yield labels, {"controller_reconfiguration_failures_total": statistics["failed"]}
    edges = [*map(floatToGoString, statistics["bounds_s"]), "+Inf"]
    for phase, observed in statistics["phases"].items():
        buckets = list(zip(edges, map(float, accumulate(observed["classes"])), strict=True))
        durations = {"controller_reconfiguration_seconds": (buckets, observed["sum_s"])}
        yield labels | {"phase": phase.removesuffix("_s")}, durations


def agent_samples(servers: Iterable[str], statistics: Mapping[str, Any]) -> Samples:
    """Yield the counts of agents; those without statistics didn't answer in time."""
    for server in servers:
        labels, counts = {"server": server}, statistics.get(server)
        yield labels, {"agent_up": counts is not None}
        if counts is None:
            continue
        for direction, key in (("out", "connections"), ("in", "from")):
            yield labels | {"direction": direction}, {"agent_connections": len(counts[key])}
        sizes, totals = ("sent", "received", "forwarded"), ("corrupt", "strays", "faults")
        yield labels, {"agent_collectives": len(counts["armed"])}
        yield labels, {f"agent_{name}_bytes_total": counts[f"bytes_{name}"] for name in sizes}
        yield labels, {f"agent_{name}_total": counts[name] for name in totals}


def machine_samples(clocks: Mapping[str, Mapping[str, int] | None]) -> Samples:
    """Yield the state of other machines of a fabric, and their clocks; None if one is lost."""
    for machine, clock in clocks.items():
        yield {"machine": machine}, {"machine_up": clock is not None}
        if clock is not None:
            for name in ("offset", "uncertainty"):
                seconds = clock[f"{name}_ns"] / NS_PER_S
                yield {"machine": machine}, {f"machine_clock_{name}_seconds": seconds}


def run_samples(status: RunStatus | None) -> Samples:
    """Yield the state of the run that uses a fabric; None if there is none."""
    yield {}, {"run_active": status is not None}
    if status is None:
        return
    names = {"run": status.run_id, "experiment": status.experiment, "policy": status.policy}
    yield names, {"run_info": 1}
    yield {}, {"run_iteration": status.iteration, "run_iterations": status.iterations}
    for verdict in Verdict:
        yield {"verdict": verdict}, {"run_verdict": status.verdict == verdict}
    for last in status.done[-1:]:
        counts = {
            "run_measured_seconds": last.measured_s,
            "run_predicted_seconds": last.predicted_s,
            "run_exposed_seconds": last.exposed_comm_s,
        }
        yield {}, counts
    totals = status.totals
    yield {"path": "light"}, {"run_bytes_total": totals.bytes_by_light}
    yield {"path": "eps"}, {"run_bytes_total": totals.bytes_by_eps}
    yield {}, {f"run_{name}_total": getattr(totals, name) for name in ("iterations", *_RUN_COUNTS)}


def process_samples(usage: Mapping[str, Mapping[str, ProcessUsage]]) -> Samples:
    """Yield memory, descriptors and CPU time of the fabric's processes by machine."""
    for machine, processes in usage.items():
        for process, used in processes.items():
            counts = {
                "process_resident_memory_bytes": used.resident_bytes,
                "process_open_fds": used.descriptors,
                "process_cpu_seconds_total": used.cpu_s,
            }
            yield {"process": process, "machine": machine}, counts
