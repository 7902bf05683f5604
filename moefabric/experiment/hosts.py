"""Real servers: agents on hosts reached over SSH, wired to each other over the hosts' own network."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations

from agents.fleet import Fleet, Way
from agents.ssh import SshHost
from moefabric.spec.experiment import ExperimentSpec
from moefabric.topology import Fabric, dscp


@contextmanager
def host_fleet(spec: ExperimentSpec, fabric: Fabric) -> Iterator[Fleet]:
    """Agents on the hosts of an experiment, until the end of the `with`. AgentError, naming the host, where one can't be had."""
    with ExitStack() as undo:
        channels = []
        for server, host in zip(fabric.servers, spec.hosts, strict=True):
            channel = SshHost(host.ssh, python=host.python).agent(server)
            undo.callback(channel.close)
            channels.append(channel)
        fleet = undo.enter_context(Fleet(channels))
        addresses = {server: host.address for server, host in zip(fabric.servers, spec.hosts, strict=True)}
        fleet.wire(
            [
                Way(src, dst, nic.path, addresses[dst], dscp(nic.path))
                for region in fabric.regions
                for src, dst in permutations(region.servers, 2)
                for nic in fabric.nics(src)
            ]
        )
        yield fleet
