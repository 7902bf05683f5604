"""Metrics of each part of a fabric, from the part's counters."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from moefabric.api.fabric_view import ProcessUsage
from moefabric.core.nic import Nic
from moefabric.core.port_counts import INTO_OCS, OUT_OF_OCS, RECEIVED, SENT, PortReading
from moefabric.core.units import NS_PER_S
from moefabric.runtime.run_status import RunStatus
from moefabric.ui.metrics.metric_set import MetricSet

VERDICTS: Final = ("pass", "degraded", "invalid")
PORT_STATES: Final = ("blocked", "tuning", "tuned", "failed")


def add_nics(metrics: MetricSet, fabric: str, nics: Iterable[Nic], reading: PortReading) -> None:
    """Add the bytes and frames of NICs and of their OCS ports."""
    for row, nic in enumerate(nics):
        labels = {"fabric": fabric, "server": nic.server, "nic": str(nic)}
        for column, name, words in ((SENT, "transmit", "sent"), (RECEIVED, "receive", "received")):
            octets, frames = reading.bytes[row, column], reading.frames[row, column]
            text = f"that NICs have {words}, with headers."
            metrics.counter(f"nic_{name}_bytes_total", f"Bytes {text}", octets, **labels)
            metrics.counter(f"nic_{name}_packets_total", f"Packets {text}", frames, **labels)
        if not reading.counts_light or "/o" not in str(nic):
            continue
        for column, name in ((INTO_OCS, "input"), (OUT_OF_OCS, "output")):
            octets = reading.bytes[row, column]
            text = f"Bytes at the {name} of the OCS that a NIC is connected to."
            metrics.counter(f"ocs_{name}_bytes_total", text, octets, **labels)


def add_queues(metrics: MetricSet, fabric: str, queues: Mapping[str, Mapping[str, int]]) -> None:
    """Add the frames that the shaped ports of servers and switches have sent and dropped."""
    for port, counts in queues.items():
        labels = {"fabric": fabric, "port": port}
        text = "that have left a port's queue."
        metrics.counter("port_transmit_bytes_total", f"Bytes {text}", counts["bytes"], **labels)
        metrics.counter(
            "port_transmit_packets_total", f"Packets {text}", counts["packets"], **labels
        )
        text = "Packets that a full queue has dropped."
        metrics.counter("port_dropped_packets_total", text, counts["drops"], **labels)
        if "marks" in counts:
            text = "Packets that a programmed link has marked for congestion (ECN)."
            metrics.counter("port_marked_packets_total", text, counts["marks"], **labels)


def add_ocs(metrics: MetricSet, fabric: str, ocs: str, status: Mapping[str, Any]) -> None:
    """Add the state of an OCS, from the reply of its process to `show`."""
    labels, ports = {"fabric": fabric, "ocs": ocs}, status["ports"]
    for state in PORT_STATES:
        count = sum(port["state"] == state for port in ports)
        metrics.gauge("ocs_ports", "Ports by their optical state.", count, **labels, state=state)
    paths = sum(port["partner"] is not None for port in ports) // 2
    metrics.gauge("ocs_cross_connects", "Cross-connects, lit or settling.", paths, **labels)
    metrics.gauge("ocs_faults", "Injected faults of an OCS.", len(status["faults"]), **labels)
    for name, text, value in (
        ("changes", "Commands that changed cross-connects.", status["changes"]),
        ("refusals", "Commands that an OCS refused.", status["refusals"]),
        (
            "dark_seconds",
            "Time from change to light, summed over cross-connects.",
            status["dark_s"],
        ),
    ):
        metrics.counter(f"ocs_{name}_total", text, value, **labels)


def add_controller(
    metrics: MetricSet, fabric: str, controller: str, statistics: Mapping[str, Any] | None
) -> None:
    """Add the state and counts of a controller; None if it doesn't answer."""
    labels = {"fabric": fabric, "controller": controller}
    metrics.gauge("controller_up", "Whether it answers.", statistics is not None, **labels)
    ready = statistics is not None and bool(statistics["ready"])
    metrics.gauge("controller_ready", "Whether all its devices are ready.", ready, **labels)
    if statistics is None:
        return
    switches = len(statistics["switches"])
    metrics.gauge("controller_switches", "Switches that are ready.", switches, **labels)
    for state, key in (("lit", "circuits"), ("dark", "dark")):
        text = "Circuits by state: lit ones carry traffic."
        metrics.gauge("controller_circuits", text, len(statistics[key]), **labels, state=state)
    for switch, rules in statistics["rules"].items():
        text = "Rules that a switch should have."
        metrics.gauge("switch_rules", text, rules, fabric=fabric, switch=switch)
    for entry in statistics["requests"]:
        request = {"path": entry["path"], "status": str(entry["status"])}
        metrics.counter(
            "controller_requests_total", "HTTP requests.", entry["count"], **labels, **request
        )
    text = "Reconfigurations that ended with an error."
    metrics.counter(
        "controller_reconfiguration_failures_total", text, statistics["failed"], **labels
    )
    for phase, observed in statistics["phases"].items():
        metrics.histogram(
            "controller_reconfiguration_seconds",
            "Duration of reconfigurations by phase.",
            statistics["bounds_s"],
            observed["classes"],
            observed["sum_s"],
            **labels,
            phase=phase.removesuffix("_s"),
        )


def add_agent(
    metrics: MetricSet, fabric: str, server: str, statistics: Mapping[str, Any] | None
) -> None:
    """Add the counts of an agent; None if it doesn't answer in time."""
    labels = {"fabric": fabric, "server": server}
    metrics.gauge("agent_up", "Whether it answers.", statistics is not None, **labels)
    if statistics is None:
        return
    for direction, key in (("out", "connections"), ("in", "from")):
        count = len(statistics[key])
        text = "Data connections, by who opened them."
        metrics.gauge("agent_connections", text, count, **labels, direction=direction)
    armed = len(statistics["armed"])
    metrics.gauge("agent_collectives", "Collectives under way.", armed, **labels)
    for name, text, key in (
        ("sent_bytes", "Payload sent.", "bytes_sent"),
        ("received_bytes", "Payload received.", "bytes_received"),
        ("forwarded_bytes", "Payload forwarded for others.", "bytes_forwarded"),
        ("corrupt", "Transfers with wrong payload.", "corrupt"),
        ("strays", "Transfers that nobody expected.", "strays"),
        ("faults", "Programming errors that the agent survived.", "faults"),
    ):
        metrics.counter(f"agent_{name}_total", text, statistics[key], **labels)


def add_machine(
    metrics: MetricSet, fabric: str, machine: str, clock: Mapping[str, int] | None
) -> None:
    """Add the state of another machine of a fabric, and its clock; None if it is lost."""
    labels = {"fabric": fabric, "machine": machine}
    metrics.gauge("machine_up", "Whether the machine has its part.", clock is not None, **labels)
    if clock is None:
        return
    for name, text, key in (
        ("offset", "CLOCK_MONOTONIC minus that of the head.", "offset_ns"),
        ("uncertainty", "Largest error of the offset.", "uncertainty_ns"),
    ):
        metrics.gauge(f"machine_clock_{name}_seconds", text, clock[key] / NS_PER_S, **labels)


def add_run(metrics: MetricSet, fabric: str, status: RunStatus | None) -> None:
    """Add the state of the run that uses a fabric; None if there is none."""
    labels = {"fabric": fabric}
    metrics.gauge("run_active", "Whether a run uses the fabric.", status is not None, **labels)
    if status is None:
        return
    names = {"run": status.run_id, "experiment": status.experiment, "policy": status.policy}
    metrics.gauge("run_info", "Names of the run.", 1, **labels, **names)
    metrics.gauge("run_iteration", "Iteration that began last, from 0.", status.iteration, **labels)
    metrics.gauge("run_iterations", "Iterations of the run.", status.iterations, **labels)
    for verdict in VERDICTS:
        held, text = status.verdict == verdict, "Verdict so far: 1 for the one that holds."
        metrics.gauge("run_verdict", text, held, **labels, verdict=verdict)
    if status.done:
        last = status.done[-1]
        text = "of the last iteration, model seconds."
        for name, seconds in (
            ("measured", last.measured_s),
            ("predicted", last.predicted_s),
            ("exposed", last.exposed_comm_s),
        ):
            metrics.gauge(
                f"run_{name}_seconds", f"{name.title()} duration {text}", seconds, **labels
            )
    totals = status.totals
    for path, octets in (("light", totals.bytes_by_light), ("eps", totals.bytes_by_eps)):
        text = "The model's bytes by path, as counted at ports."
        metrics.counter("run_bytes_total", text, octets, **labels, path=path)
    for name in ("iterations", "collectives", "reconfigurations", "lost_transfers", "corrupt"):
        text = f"Finished {name} of the run." if name == "iterations" else f"{name} of the run."
        metrics.counter(f"run_{name}_total", text, getattr(totals, name), **labels)


def add_processes(
    metrics: MetricSet, fabric: str, usage: Mapping[str, ProcessUsage], machine: str = ""
) -> None:
    """Add memory, descriptors and CPU time of the fabric's processes on a machine.

    Args:
        metrics: The scrape.
        fabric: The fabric.
        usage: What the processes use.
        machine: Name of another machine that has the processes; empty for this one.
    """
    for process, used in usage.items():
        labels = {"fabric": fabric, "process": process, "machine": machine}
        memory, cpu = used.resident_bytes, used.cpu_s
        metrics.gauge("process_resident_memory_bytes", "Resident memory.", memory, **labels)
        metrics.gauge("process_open_fds", "Open file descriptors.", used.descriptors, **labels)
        metrics.counter("process_cpu_seconds_total", "CPU time.", cpu, **labels)
