"""Real hosts in the place of emulated servers."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

SshClient = Literal["auto", "openssh", "paramiko"]


@dataclass(frozen=True)
class HostLogin:
    """How to log in to a host. The SSH configuration completes what isn't given.

    Attributes:
        host: name of the host in the SSH configuration, or its address.
        port: port of the SSH server.
        user: user to log in as.
        identity_file: private key.
        jump: hosts to go through, in order.
        ssh_config: SSH configuration file; None for the user's.
        python: name or path of Python on the host.
        client: `openssh`, `paramiko`, or `auto`: Paramiko where OpenSSH's client isn't installed.
    """

    host: str
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    jump: tuple[str, ...] = ()
    ssh_config: str | None = None
    python: str = "python3"
    client: SshClient = "auto"

    def to_json(self) -> str:
        """Return the login as JSON, for the command line of a process."""
        return json.dumps(asdict(self))

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
