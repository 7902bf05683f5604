"""WireGuard between machines of tests, by the configuration of docs/guides/machines.md."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.support.machine_namespaces import NamespaceMachine

WIREGUARD_PORT: Final = 51820
WIREGUARD_HEADERS: Final = 80
"""Bytes of IPv6, UDP and WireGuard headers, and the tag of each packet."""
_INTERFACE: Final = """[Interface]
Address = {address}/24
PrivateKey = {key}
ListenPort = {port}
MTU = {mtu}
"""
_PEER: Final = """[Peer]
PublicKey = {key}
AllowedIPs = {address}/32
Endpoint = {endpoint}:{port}
"""


def encrypted(
    machines: Mapping[str, NamespaceMachine], folder: Path, mtu: int
) -> dict[str, NamespaceMachine]:
    """Join machines by WireGuard, and return them with their addresses in it.

    The kernel's interfaces are used where it has them, else wireguard-go. They end with the
    machines.

    Args:
        machines: The machines, by name.
        folder: Where the configurations go.
        mtu: Largest IP packet between the machines, in bytes.
    """
    inside = {name: f"10.97.0.{number}" for number, name in enumerate(machines, 1)}
    private = {name: machine.run("wg", "genkey").stdout for name, machine in machines.items()}
    sections = {
        name: _PEER.format(
            key=machine.run("wg", "pubkey", text=private[name]).stdout.strip(),
            address=inside[name],
            endpoint=machine.address,
            port=WIREGUARD_PORT,
        )
        for name, machine in machines.items()
    }
    for name, machine in machines.items():
        file = folder / name / "wg0.conf"
        file.parent.mkdir()
        file.touch(0o600)
        own = _INTERFACE.format(
            address=inside[name],
            key=private[name].strip(),
            port=WIREGUARD_PORT,
            mtu=mtu - WIREGUARD_HEADERS,
        )
        peers = [section for other, section in sections.items() if other != name]
        file.write_text("\n".join([own, *peers]))
        # Control sockets of wireguard-go have the names of interfaces, which machines share.
        script = "mkdir -p /run/wireguard && mount -t tmpfs tmpfs /run/wireguard && wg-quick up "
        machine.run("sh", "-c", f"{script}{file}")
    return {name: replace(one, address=inside[name]) for name, one in machines.items()}
