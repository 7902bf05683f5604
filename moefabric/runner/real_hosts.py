"""Agents on real hosts, reached over SSH and connected over the hosts' own network."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from moefabric.agents.fleet.fleet import Fleet
from moefabric.agents.remote.ssh import SshHost, agents_on
from moefabric.config.experiment import ExperimentSpec
from moefabric.config.hosts import HostSpec
from moefabric.config.plugins import transport_named
from moefabric.core.topology import Fabric
from moefabric.runner.testbed import data_paths, liveness_monitor


def ssh_host(host: HostSpec) -> SshHost:
    """Return a host that SSH reaches."""
    return SshHost(
        host.ssh,
        host.port,
        host.user,
        Path(host.identity_file) if host.identity_file else None,
        tuple(host.jump),
        host.python,
        Path(host.ssh_config) if host.ssh_config else None,
    )


@contextmanager
def host_fleet(
    spec: ExperimentSpec, fabric: Fabric, pairs_between_regions: Iterable[tuple[str, str]] = ()
) -> Iterator[Fleet]:
    """Start agents on the hosts of an experiment, and stop them at the end of the context.

    Raises:
        AgentError: A host can't be reached or refuses; the message names it.
    """
    hosts = dict(zip(fabric.servers, spec.hosts, strict=False))  # further hosts stay unused
    with ExitStack() as cleanup:
        channels = agents_on({server: ssh_host(host) for server, host in hosts.items()})
        fleet = cleanup.enter_context(Fleet(channels, liveness=liveness_monitor(fabric)))
        addresses = {
            server: host.address or fleet.facts[server]["address"] for server, host in hosts.items()
        }
        transport = transport_named(spec.transport)
        fleet.connect(
            data_paths(fabric, pairs_between_regions, addresses),
            congestion=transport.congestion_control,
            sndbuf=transport.send_buffer_bytes,
        )
        yield fleet
