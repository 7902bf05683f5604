"""Real servers as users write them: in an experiment, or in a file of their own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from moefabric.config.input_file import read_yaml
from moefabric.config.section import Document, Fault, Section, Text
from moefabric.config.validation import validate

_PATHS = "identity_file", "ssh_config"


class LoginSpec(Section):
    """How to log in to real servers. OpenSSH's client reads its own files for what isn't given."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the SSH server. Default: the SSH configuration's, or 22."""
    user: Text | None = None
    """User to log in as; needs no privileges. Default: the SSH configuration's, or your own."""
    identity_file: Text | None = None
    """Private key. Default: the SSH configuration's, those of ssh-agent, and `~/.ssh/id_*`."""
    jump: list[Text] = Field(default_factory=list)
    """Hosts to go through, in order, each written as `host`, `user@host` or `user@host:port`.
    Default: those of the SSH configuration."""
    ssh_config: Text | None = None
    """SSH configuration file. Default: `~/.ssh/config` and `/etc/ssh/ssh_config`."""
    python: Text = "python3"
    """Python interpreter on the server, 3.8 or later."""


class HostSpec(LoginSpec):
    """A real server."""

    ssh: Text
    """Name of the server in the SSH configuration, or its address."""
    address: Text | None = None
    """Address that the server's traffic uses. Default: the one at which SSH reached it."""


class HostsSpec(Document):
    """A file of real servers."""

    defaults: LoginSpec = Field(default_factory=LoginSpec)
    """Values for all servers that don't give their own."""
    hosts: list[HostSpec] = Field(min_length=1)
    """Real servers, in the order of the servers s0, s1, ..."""

    def faults(self) -> Iterator[Fault]:
        """Yield nothing: no two values contradict each other."""
        yield from ()

    def entries(self, folder: Path) -> list[dict[str, Any]]:
        """Return the hosts as values, with defaults filled in and paths that start at `folder`."""
        defaults = self.defaults.model_dump(exclude_unset=True)
        entries = [defaults | host.model_dump(exclude_unset=True) for host in self.hosts]
        return [_with_paths(entry, folder) for entry in entries]


class _OrFile:
    """Adds the name of a file to a schema; loading replaces it by the file's hosts."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        file = {"type": "string", "description": "A file with `hosts:`.", "minLength": 1}
        return {"anyOf": [handler(schema), file]}


HostList = Annotated[list[HostSpec], _OrFile()]
"""Real servers, or the name of a file with them."""


def resolve_hosts(hosts: Any, folder: Path) -> Any:
    """Return the hosts of an experiment: those of the file that they name, if they name one.

    Args:
        hosts: Value of the key `hosts`.
        folder: Folder of the experiment; relative paths start there, or at the file's own folder.

    Raises:
        SpecError: With all faults of the file.
    """
    if isinstance(hosts, str) and hosts:
        path = folder / Path(hosts).expanduser()
        return validate(HostsSpec, read_yaml(path), path).entries(path.parent)
    if isinstance(hosts, list):
        return [_with_paths(host, folder) if isinstance(host, dict) else host for host in hosts]
    return hosts


def _with_paths(host: dict[str, Any], folder: Path) -> dict[str, Any]:
    paths = {
        key: str(folder / Path(host[key]).expanduser())
        for key in _PATHS
        if isinstance(host.get(key), str) and host[key]
    }
    return host | paths
