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
class Vxlan:
    """VXLAN tunnel to a host."""

    remote: _Text
    """Address of the host."""
    id: Annotated[int, Interval(ge=1, lt=1 << 24)]
    """Network identifier, a different one for each server."""
    port: Annotated[int, Interval(ge=1, le=65535)] = 4789
    """UDP port."""
    device: _Text | None = None
    """Interface of this machine that carries the tunnel. Default: what the routes say."""


@dataclass(frozen=True)
class Plug:
    """Interface of this machine that leads to a real server: one of three."""

    device: _Text | None = None
    """Interface that moves into the fabric while it is up."""
    macvlan: _Text | None = None
    """Interface that gets a macvlan, and stays where it is."""
    vxlan: Vxlan | None = None
    """Tunnel over a network that both machines have."""

    def __str__(self) -> str:
        """Return the way and the interface, or the address of a tunnel that routes carry."""
        if self.vxlan is not None:
            return f"vxlan {self.vxlan.device or self.vxlan.remote}"
        return f"device {self.device}" if self.device else f"macvlan {self.macvlan}"


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
