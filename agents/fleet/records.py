"""Flow records: the reports of both ends of each flow of a collective."""

from collections.abc import Callable, Mapping, Sequence

from moefabric.agents.fleet.messages import Message
from moefabric.core.errors import AgentError
from moefabric.core.flows import FlowRecord, PacedFlow


def flow_records(
    collective: int,
    flows: Sequence[PacedFlow],
    reports: Mapping[str, Message],
    our_time: Callable[[str, int | None], int],
) -> list[FlowRecord]:
    """Return a record of each flow, in order.

    Args:
        collective: The collective's number.
        flows: The flows.
        reports: The report of each agent on the collective's end.
        our_time: Converts an instant of a server's agent, or None, to our clock.

    Raises:
        AgentError: if a report lacks transfers; the message names the agent.
    """
    sends = {name: iter(report.get("sends", ())) for name, report in reports.items()}
    receives = {name: iter(report.get("receives", ())) for name, report in reports.items()}
    records = []
    for flow in flows:
        sent, received = next(sends[flow.src], None), next(receives[flow.dst], None)
        if sent is None or received is None:
            name = flow.src if sent is None else flow.dst
            raise AgentError(
                f"agent {name}: its report on collective {collective} lacks a transfer from "
                f"{flow.src} to {flow.dst} by {flow.path}; do all agents have one version?"
            )
        record = FlowRecord(
            collective,
            flow.src,
            flow.dst,
            flow.path,
            bytes=sent["moved"],
            received_bytes=received["moved"],
            rate_bps=flow.rate_bps,
            first_sent_ns=our_time(flow.src, sent["first_ns"]),
            last_sent_ns=our_time(flow.src, sent["last_ns"]),
            first_received_ns=our_time(flow.dst, received["first_ns"]),
            last_received_ns=our_time(flow.dst, received["last_ns"]),
            retransmits=sent.get("retransmits", 0),
            ok=sent["ok"] and received["ok"],
            why=received["why"] or sent["why"],
            corrupt=received["corrupt"],
        )
        records.append(record)
    return records
