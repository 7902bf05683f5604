"""Agents on real hosts, reached over SSH and connected over the hosts' own network."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median

from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.remote.ssh import SshHost, agents_on
from moefabric.config.experiment import ExperimentSpec
from moefabric.config.hosts import login_of
from moefabric.core.errors import AgentError, LostBytesError, MachineLossError
from moefabric.core.failures import FailurePhase
from moefabric.core.topology import Fabric
from moefabric.core.transport import Transport
from moefabric.core.units import NS_PER_S
from moefabric.execution.observer import RunObserver
from moefabric.execution.programs.rank_jobs import RankPlace
from moefabric.results.model import HostRecord
from moefabric.results.verdict import reasons
from moefabric.results.verdict.reasons import RunFinding
from moefabric.testbed.testbed import data_paths, liveness_monitor
from moefabric.workload.iterations.substitution import NoBackupError


@dataclass
class RealHosts(RunObserver):
    """The real servers of a fabric: their clocks, and those that were lost.

    Emulated servers of other machines have clocks of their own, too.

    Attributes:
        fleet: The agents of all servers.
        hosts: The host of each real server, as SSH names it; empty if all servers are emulated.
        losses: Why servers were lost, by server.
        place: Where ranks of a program run, if all servers are real.
        machines: The machine of each emulated server that another machine has.
    """

    fleet: Fleet
    hosts: Mapping[str, str]
    losses: dict[str, str] = field(default_factory=dict)
    place: RankPlace | None = None
    machines: Mapping[str, str] = field(default_factory=dict)

    @property
    def _clocked(self) -> dict[str, str]:
        """Host or machine of each server whose clock may differ from ours."""
        return {**self.machines, **self.hosts}

    def failure_logged(
        self, phase: FailurePhase, kind: str, components: Sequence[str], reason: str
    ) -> None:
        """Record lost hosts."""
        if phase == "detected" and kind == "server":
            for server in self.hosts.keys() & set(components):
                self.losses.setdefault(server, reason)

    @property
    def fatal_errors(self) -> tuple[type[Exception], ...]:
        """Errors that end a replay; the measurements before become an invalid result.

        The loss of an emulated server without a backup is an error of the experiment.
        """
        losses = LostBytesError, MachineLossError
        return (*losses, NoBackupError) if self._clocked else losses

    def cause(self, error: Exception) -> str:
        """Return the cause of a fatal error."""
        return "; ".join(self.losses.values()) if self.losses else str(error)

    def iteration_ended(self) -> None:
        """Measure the clocks again; one that can't be reached is lost, and noticed elsewhere."""
        with suppress(AgentError):
            self.fleet.clocks.measure_again(self.fleet.channels.values())

    def findings(self, collectives_ns: Sequence[float], iterations: int) -> Iterator[RunFinding]:
        """Yield the findings on hosts that were lost, and on uncertain clocks.

        Args:
            collectives_ns: Wall time of each collective.
            iterations: Number of iterations.
        """
        for server in sorted(self.losses):
            yield from reasons.LOST_HOST.judge(place=f"{server} ({self.hosts[server]})")
        if not collectives_ns:
            return
        # A clock is measured once an iteration, so that it may have drifted for one.
        for server, host in self._clocked.items():
            clock = self.fleet.clocks.offsets[server]
            drift_ns = abs(clock.offset_ns - self.fleet.clocks.first[server].offset_ns)
            error_ns = clock.uncertainty_ns + drift_ns / iterations
            share = error_ns / median(collectives_ns)
            yield from reasons.UNCERTAIN_CLOCK.judge(
                share, place=f"{server} ({host})", error_ms=error_ns / 1e6
            )

    def records(self, fabric: str) -> Iterator[HostRecord]:
        """Yield the hosts for the manifest."""
        for server, host in self._clocked.items():
            first, last = self.fleet.clocks.first[server], self.fleet.clocks.offsets[server]
            again = last is not first or not first.round_trip_ns
            yield HostRecord(
                fabric=fabric,
                server=server,
                host=host,
                address=self.fleet.facts[server]["address"],
                python=self.fleet.facts[server]["python"],
                clock_offset_s=first.offset_ns / NS_PER_S,
                clock_uncertainty_s=max(first.uncertainty_ns, last.uncertainty_ns) / NS_PER_S,
                clock_drift_s=(last.offset_ns - first.offset_ns) / NS_PER_S if again else None,
                lost=self.losses.get(server, ""),
            )


@contextmanager
def host_fleet(
    spec: ExperimentSpec,
    fabric: Fabric,
    transport: Transport,
    pairs_between_regions: Iterable[tuple[str, str]] = (),
) -> Iterator[tuple[Fleet, RealHosts]]:
    """Start agents on the hosts of an experiment, and stop them at the end of the context.

    Args:
        fabric: The fabric that the hosts are.
        transport: How flows are carried.
        pairs_between_regions: Servers of different regions that send each other something.

    Yields:
        The agents, connected to each other, and their hosts.

    Raises:
        AgentError: A host can't be reached or refuses; the message names it.
    """
    hosts = dict(zip(fabric.servers, spec.hosts, strict=False))  # further hosts stay unused
    with ExitStack() as cleanup:
        logins = {server: login_of(host) for server, host in hosts.items()}
        channels = agents_on({server: SshHost(**vars(login)) for server, login in logins.items()})
        fleet = cleanup.enter_context(Fleet(channels, liveness=liveness_monitor(fabric)))
        addresses = {
            server: host.address or fleet.facts[server]["address"] for server, host in hosts.items()
        }
        fleet.connect(
            data_paths(fabric, pairs_between_regions, addresses),
            congestion=transport.congestion_control,
            sndbuf=transport.send_buffer_bytes,
        )
        place = RankPlace.on_hosts(logins, addresses, fleet)
        names = {server: host.ssh for server, host in hosts.items()}
        yield fleet, RealHosts(fleet, names, place=place)
