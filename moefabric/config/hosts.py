"""Servers that are real hosts or containers, as users write them; files of real hosts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, GetJsonSchemaHandler, Tag
from pydantic_core import CoreSchema

from moefabric.config.data_sections import AsSection, value_of, with_fields_of
from moefabric.config.file_kinds import read_kind
from moefabric.config.input_file import resolved
from moefabric.config.section import InputError, Rate, Section, Text
from moefabric.config.validation import validate
from moefabric.core.server_container import NewContainer
from moefabric.core.server_host import HostLogin, Plug, ServerHost


@with_fields_of(HostLogin, {"host"})
class LoginSpec(Section):
    """Logins of real servers. The SSH configuration applies to keys that aren't given."""


class HostSpec(LoginSpec):
    """A real server."""

    ssh: Text
    """Name of the server in the SSH configuration, or its address."""
    address: Text | None = None
    """Address that the server's traffic uses. Default: the one at which SSH reached it."""


class PluggedHostSpec(LoginSpec):
    """A real server whose NICs are the fabric's."""

    ssh: Text
    """Name of the server in the SSH configuration, or its address."""
    plug: Annotated[Plug, AsSection()]
    """Interface of this machine that leads to the server."""
    interface: Text | None = None
    """The server's interface at the other end. It gets the addresses of the server while the fabric
    is up, which needs root there. Default: the other end of a `vxlan`, or one that has them."""

    def build(self) -> ServerHost:
        """Return the host that this section describes."""
        return ServerHost(login_of(self), self.plug, self.interface or "")


def login_of(host: "HostSpec | PluggedHostSpec") -> HostLogin:
    """Return how to log in to a host."""
    return value_of(host, HostLogin, host=host.ssh)


class HostsSpec(Section):
    """A file of real servers."""

    defaults: LoginSpec = Field(default_factory=LoginSpec)
    """Values for all servers that don't give their own."""
    hosts: list[HostSpec] = Field(min_length=1)
    """Real servers, in the order of the servers s0, s1, ..."""

    def entries(self, folder: Path) -> list[dict[str, Any]]:
        """Return the hosts as values, with defaults filled in and paths that start at `folder`."""
        defaults = self.defaults.model_dump(exclude_unset=True)
        entries = [defaults | host.model_dump(exclude_unset=True) for host in self.hosts]
        for key in ("identity_file", "ssh_config"):
            entries = resolved(entries, ("*", key), folder)
        return entries


class _OrFile:
    """Adds the name of a file to a schema; loading replaces it by the file's hosts."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        file = {"type": "string", "description": "A file with `hosts:`.", "minLength": 1}
        return {"anyOf": [handler(schema), file]}


HostList = Annotated[list[HostSpec], _OrFile()]
"""Real servers, or the name of a file with them."""


def hosts_of_file(path: Path) -> list[dict[str, Any]]:
    """Return the hosts in a file, as values of the key `hosts` of an experiment.

    Raises:
        SpecError: With all errors of the file.
    """
    return validate(HostsSpec, read_kind(path, "hosts"), path).entries(path.parent)


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
            yield from _plug_errors(server.host.plug, f"{place}.{name}.host.plug")
    owner: dict[str, str] = {}
    for name, server in servers.items():
        container = server.container
        if isinstance(container, str) and owner.setdefault(container, name) != name:
            message = f"{container} is {owner[container]} already: a container is one server"
            yield f"{place}.{name}.container", message


def _plug_errors(plug: Plug, place: str) -> Iterator[InputError]:
    """Yield an error unless one way is given."""
    keys = [key for key in ("device", "macvlan", "vxlan") if getattr(plug, key) is not None]
    if len(keys) != 1:
        what = " and ".join(keys) or "nothing"
        yield place, f"one of device, macvlan and vxlan is needed, {what} given"
