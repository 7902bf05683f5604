"""Names of a fabric's servers and devices, as lines of hosts(5) for its servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from moefabric.core.topology import Fabric
from moefabric.runtime.run_directory import ManagementNetwork

_MACHINES: Final = Path("/etc/hosts")


def host_names(fabric: Fabric, management: ManagementNetwork) -> Iterator[tuple[str, list[str]]]:
    """Yield each address with its names, the host name first.

    `s0` and `s0.r0` are the first address of a server, `s0-gpu3` that of its GPU 3. `s0-management`
    and `ocs0` are addresses on the management network, and `management` is that of the controllers.

    Args:
        management: the fabric's management network.
    """
    for server in fabric.servers:
        first, *further = fabric.addressing.addresses(server)
        yield first, [server, f"{server}.{fabric.region_of[server].name}", f"{server}-gpu0"]
        for gpu, address in enumerate(further, start=1):
            yield address, [f"{server}-gpu{gpu}"]
        yield management.server_address(fabric, server), [f"{server}-management"]
    for region in fabric.regions:
        if region.ocs is not None:
            yield management.ocs_address(region), [region.ocs.name]
    yield management.host_address, ["management"]


def hosts_text(fabric: Fabric, management: ManagementNetwork, machine: Path = _MACHINES) -> str:
    """Return hosts(5): the names of the fabric, then those of the machine.

    Programs that serve IPv4 and IPv6 by one socket see peers' addresses in their mapped form, and
    look up the names of these: glibc finds them only if they are listed.
    """
    named = list(host_names(fabric, management))
    lines = [f"{address} {' '.join(names)}\n" for address, names in named]
    lines += [f"::ffff:{address} {names[0]}\n" for address, names in named]
    rest = machine.read_text() if machine.exists() else "127.0.0.1 localhost\n"
    return "".join(lines) + rest
