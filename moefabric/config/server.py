"""Single servers of a fabric that differ from the others."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Discriminator, Field, Tag

from moefabric.config.data_sections import AsSection
from moefabric.config.hosts import PluggedHostSpec
from moefabric.config.section import InputError, Rate, Section, Text
from moefabric.core.server_container import ExistingContainer, NewContainer, ServerContainer
from moefabric.core.server_host import ServerHost

_VOLUME: Final = r"^[^:]+:/[^:]*(:(ro|rw))?$"


def _check_volume(text: str) -> str:
    if not re.fullmatch(_VOLUME, text):
        raise ValueError(f"{text!r} is not a mount such as ./data:/data or ./data:/data:ro")
    return text


Volume = Annotated[
    str, AfterValidator(_check_volume), Field(json_schema_extra={"pattern": _VOLUME})
]
"""Mount, written as `./data:/data` or `./data:/data:ro`."""


_CONTAINER: Final = AsSection(
    image=Text,
    command=list[Text],
    volumes=list[Volume],
    environment=dict[Text, str],
    user=Text | None,
)
ContainerChoice = Annotated[
    Annotated[Text, Tag("existing")] | Annotated[NewContainer, _CONTAINER, Tag("new")],
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

    def build_container(self) -> ServerContainer | None:
        """Return the container that is this server, if it is one."""
        chosen = self.container
        return ExistingContainer(chosen) if isinstance(chosen, str) else chosen


def server_containers(servers: Mapping[str, ServerSpec]) -> dict[str, ServerContainer]:
    """Return the containers among special servers, by server."""
    built = {name: server.build_container() for name, server in servers.items()}
    return {name: container for name, container in built.items() if container is not None}


def server_hosts(servers: Mapping[str, ServerSpec]) -> dict[str, ServerHost]:
    """Return the real hosts among special servers, by server."""
    return {name: one.host.build() for name, one in servers.items() if one.host is not None}


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


def resolve_volumes(servers: Any, folder: Path) -> None:
    """Make the relative paths in the volumes of a document's servers start at a folder.

    Args:
        servers: Value of the key `servers`, changed in place; wrong values stay as they are.
        folder: Folder of the document.
    """
    for server in servers.values() if isinstance(servers, dict) else ():
        container = server.get("container") if isinstance(server, dict) else None
        volumes = container.get("volumes") if isinstance(container, dict) else None
        if isinstance(volumes, list):
            volumes[:] = [_resolved(volume, folder) for volume in volumes]


def _resolved(volume: Any, folder: Path) -> Any:
    if not isinstance(volume, str) or not volume.startswith((".", "~")):
        return volume
    source, _, rest = volume.partition(":")
    return f"{(folder / Path(source).expanduser()).resolve()}:{rest}"
