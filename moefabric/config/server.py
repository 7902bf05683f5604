"""Single servers of a fabric that differ from the others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Discriminator, Tag

from moefabric.config.data_sections import AsSection
from moefabric.config.hosts import PluggedHostSpec
from moefabric.config.section import InputError, Rate, Section, Text
from moefabric.core.server_container import NewContainer

ContainerChoice = Annotated[
    Annotated[Text, Tag("existing")] | Annotated[NewContainer, AsSection(), Tag("new")],
    Discriminator(lambda value: "existing" if isinstance(value, str) else "new"),
]
"""Name or ID of a running container, or a container to start."""


class ServerSpec(Section):
    """Server that differs from the others: a container, a real host, or NICs of another rate."""

    container: ContainerChoice | None = None
    """Container that is this server: the name or ID of a running one, or what to start."""
    host: PluggedHostSpec | None = None
    """Real host that is this server."""
    nic_rate: Rate | None = None
    """Rate of each of its NICs. Default: `nic_rate` of the wiring. A circuit has the rate of its
    slower NIC; links between leaves and spines suit the fastest NICs."""


def server_errors(
    servers: Mapping[str, ServerSpec], names: Sequence[str], place: str
) -> Iterator[InputError]:
    """Yield errors for servers that the fabric lacks and containers that are several servers.

    Args:
        servers: The special servers, by name.
        names: All servers of the fabric.
        place: Where the special servers are in the file.
    """
    known = f"{names[0]} to {names[-1]}" if names else "none"
    for name in servers.keys() - {*names}:
        yield f"{place}.{name}", f"no such server; there are {known}"
    for name, server in servers.items():
        if server.container is not None and server.host is not None:
            yield f"{place}.{name}", "a server is a container or a host: leave one of them out"
        if not server.model_fields_set:
            yield f"{place}.{name}", "nothing given: give container, host or nic_rate"
        if server.host is not None:
            yield from server.host.plug.errors(f"{place}.{name}.host.plug")
    owner: dict[str, str] = {}
    for name, server in servers.items():
        container = server.container
        if isinstance(container, str) and owner.setdefault(container, name) != name:
            message = f"{container} is {owner[container]} already: a container is one server"
            yield f"{place}.{name}.container", message
