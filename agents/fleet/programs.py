"""Programs on many servers: loaded once, run many times, and verified."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from moefabric.agents.fleet.channel import Channel, request_all
from moefabric.agents.fleet.connections import REPORT_S
from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.fleet.messages import Message
from moefabric.core.closing import Closing
from moefabric.core.errors import AgentError
from moefabric.core.units import duration_ns

FILL_BPS: Final = 2e7
"""Bytes a second, at least, at which a machine whose agents all fill their inputs or verify their
results does so; the timeout of these requests."""
REPLY_S: Final = 20.0


@dataclass(frozen=True)
class ProgramTimes:
    """Begin and end of a run, on this process's CLOCK_MONOTONIC.

    Attributes:
        began_ns: When the first server began.
        ended_ns: When the last step of each rank ended.
        steps_ns: Begin and end of each step, by server, in the order of its request; empty unless
            asked for.
    """

    began_ns: int
    ended_ns: Mapping[int, int]
    steps_ns: Mapping[str, tuple[tuple[int, int], ...]]

    @property
    def seconds(self) -> float:
        """Seconds from the common start to the end of the last rank."""
        return (max(self.ended_ns.values()) - self.began_ns) / 1e9


class LoadedProgram(Closing):
    """A program that the agents have loaded. Leaving the `with` frees its memory.

    Args:
        fleet: The agents, with a connection for each path of the program.
        requests: The field `ranks` of the program, by server.

    Attributes:
        memory: Bytes of all buffers.

    Raises:
        AgentError: if agents refuse, such as for a lack of memory.
    """

    def __init__(self, fleet: Fleet, requests: Mapping[str, list[Message]]) -> None:
        self.fleet, self.number = fleet, fleet.new_number()
        self._channels = {server: fleet.channel(server) for server in requests}
        loads: dict[Channel, tuple[str, Message]] = {}
        for server, ranks in requests.items():
            loads[self._channels[server]] = "load", {"program": self.number, "ranks": ranks}
        try:
            replies = request_all(loads, REPLY_S + 0.2 * len(loads))
        except AgentError:
            self.close()
            raise
        self.memory = sum(reply["memory"] for reply in replies.values())

    def run(self, deadline_s: float, *, fill: bool = True, times: bool = False) -> ProgramTimes:
        """Run the program once, all ranks from one instant on.

        Args:
            deadline_s: Wall seconds after which the run fails.
            fill: Whether to clear the buffers and fill the inputs first.
            times: Whether to report when each step began and ended.

        Raises:
            ServerLossError: if an agent is lost.
            AgentError: if a step fails or does not end; names the first.
        """
        run = self.fleet.new_number()
        self._request("prepare", self.memory / FILL_BPS, run=run, fill=fill)
        start_ns = time.monotonic_ns() + self.fleet.lead_ns(self._channels)
        until_ns = start_ns + duration_ns(deadline_s)
        starts: dict[Channel, tuple[str, Message]] = {}
        for name, channel in self._channels.items():
            begin, end = (self.fleet.clocks.their_time(name, at) for at in (start_ns, until_ns))
            fields = {"run": run, "start_ns": begin, "deadline_ns": end, "times": times}
            starts[channel] = "start", fields
        request_all(starts, REPLY_S)
        reports = self._collect(run, deadline_s + REPORT_S)
        return self._times(reports)

    def verify(self) -> dict[int, int]:
        """Return how many numbers of each rank's results are wrong."""
        replies = self._request("verify", self.memory * len(self._channels) / FILL_BPS)
        return {rank: count for reply in replies.values() for rank, count in reply["wrong"]}

    def close(self) -> None:
        """End programs and free their memory at all agents that are left."""
        for channel in self._channels.values():
            if not channel.gone:
                channel.forget(channel.post("release", program=self.number))

    def _request(self, op: str, extra_s: float, **fields: object) -> dict[str, Message]:
        fields["program"] = self.number
        return request_all(dict.fromkeys(self._channels.values(), (op, fields)), REPLY_S + extra_s)

    def _collect(self, run: int, deadline_s: float) -> dict[str, Message]:
        """Wait for the reports of all agents; the first failure ends the run everywhere."""
        failed: list[str] = []

        def has_ended(channel: Channel) -> bool:
            report = channel.reports.get(run)
            if report is not None and report["why"] and not failed:
                failed.append(f"{channel.name}: {report['why']}")
                self._abandon(run)
            return report is not None

        channels = list(self._channels.values())
        silent = self.fleet.liveness.wait(channels, has_ended, deadline_s)
        reports = {c.name: c.reports.pop(run) for c in channels if run in c.reports}
        if failed:
            raise AgentError(f"agent {failed[0]}")
        if silent:
            names = ", ".join(channel.name for channel in silent)
            raise AgentError(f"agents {names}: no report on a run within {deadline_s:.1f} s")
        return reports

    def _abandon(self, run: int) -> None:
        """Have all agents end a run; they report that, too."""
        for channel in self._channels.values():
            with suppress(AgentError):  # an agent that is gone is noticed by the wait for reports
                channel.forget(channel.post("abandon", collective=run))

    def _times(self, reports: Mapping[str, Message]) -> ProgramTimes:
        ours = self.fleet.clocks.our_time
        return ProgramTimes(
            min(ours(name, report["began_ns"]) for name, report in reports.items()),
            {
                rank["rank"]: ours(name, rank["ended_ns"])
                for name, report in reports.items()
                for rank in report["ranks"]
            },
            {
                name: tuple((ours(name, a), ours(name, b)) for a, b in report.get("times", []))
                for name, report in reports.items()
            },
        )
