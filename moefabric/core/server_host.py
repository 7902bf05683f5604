"""Real hosts in the place of emulated servers."""

import json
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from annotated_types import Interval, MinLen

_Text = Annotated[str, MinLen(1)]
SshClient = Literal["auto", "openssh", "paramiko"]


@dataclass(frozen=True)
class HostLogin:
    """The login to a host. The SSH configuration gives all values that are missing here."""

    host: str
    """Name of the host in the SSH configuration, or its address."""
    port: Annotated[int, Interval(ge=1, le=65535)] | None = None
    """Port of the SSH server. Default: the SSH configuration's, or 22."""
    user: _Text | None = None
    """User to log in as; needs no privileges. Default: the SSH configuration's, or your own."""
    identity_file: _Text | None = None
    """Private key. Default: the SSH configuration's, those of ssh-agent, and `~/.ssh/id_*`."""
    jump: tuple[_Text, ...] = ()
    """Hosts to go through, in order, each written as `host`, `user@host` or `user@host:port`.
    Default: those of the SSH configuration."""
    ssh_config: _Text | None = None
    """SSH configuration file. Default: `~/.ssh/config` and `/etc/ssh/ssh_config`."""
    python: _Text = "python3"
    """Python interpreter on the server, 3.8 or later."""
    client: SshClient = "auto"
    """SSH client on this machine: `openssh`, `paramiko`, or `auto`, which is OpenSSH's if that is
    installed, else Paramiko."""

    def to_json(self) -> str:
        """Return the login as JSON, for the command line of a process."""
        return json.dumps({field.name: getattr(self, field.name) for field in fields(HostLogin)})

    @classmethod
    def from_json(cls, text: str) -> "HostLogin":
        """Return the login that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "jump": tuple(fields["jump"])})


@dataclass(frozen=True)
class Plug:
    """Interface of this machine that leads to a host.

    Attributes:
        kind: `device` moves an interface into the fabric, `macvlan` and `vxlan` make one.
        device: the interface; for `macvlan` its parent, for `vxlan` the one that carries it, if
            that isn't left to the routes.
        remote: address of the host, for `vxlan`.
        vni: network identifier, for `vxlan`.
        port: UDP port, for `vxlan`.
    """

    kind: Literal["device", "macvlan", "vxlan"]
    device: str = ""
    remote: str = ""
    vni: int = 0
    port: int = 4789


@dataclass(frozen=True)
class ServerHost:
    """Host that is a server of a fabric: its programs run there, its NICs are the fabric's.

    Attributes:
        login: how to log in.
        plug: interface of this machine that leads to it.
        interface: its interface at the other end, which is configured while the fabric is up;
            empty if it is configured already, or if it is the other end of a `vxlan`.
        shell: argv that, followed by a command, runs it there.
    """

    login: HostLogin
    plug: Plug
    interface: str = ""
    shell: tuple[str, ...] = ()
