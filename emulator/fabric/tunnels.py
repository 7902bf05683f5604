"""Tunnels between machines: point-to-point VXLAN devices in a fabric's namespace."""

import json
import os
from functools import partial
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.fabric.plan import FabricPlan
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import ip_batch, run

TUNNEL_HEADERS: Final = 50
"""Bytes of IP, UDP, VXLAN and Ethernet headers."""
_PORT: Final = 4789
_OPTIONS: Final = "ttl 64 nolearning noudpcsum"
"""The remote machine is fixed, and TCP's own checksums protect the payload."""


def carrier_mtu(remote: str, device: str = "") -> tuple[str, int]:
    """Return the interface of the calling namespace that leads to an address, and its MTU.

    Args:
        remote: IPv4 address.
        device: the interface, if routes don't choose it.

    Raises:
        FabricError: if no route leads there.
    """
    [route] = json.loads(run(["ip", "-j", "route", "get", remote]))
    [carrier] = json.loads(run(["ip", "-j", "link", "show", "dev", device or route["dev"]]))
    return carrier["ifname"], int(carrier["mtu"])


def check_carrier(remote: str, mtu: int, device: str = "") -> None:
    """Check that no packet of a fabric would be fragmented in a tunnel.

    Args:
        remote: IPv4 address of the tunnel's other end.
        mtu: largest IP packet in the tunnel, in bytes.
        device: the interface that carries the tunnel, if routes don't choose it.

    Raises:
        FabricError: names the interface and the remedy.
    """
    interface, most = carrier_mtu(remote, device)
    if mtu + TUNNEL_HEADERS > most:
        raise FabricError(
            f"{interface} carries {most} bytes, a tunnelled packet has up to "
            f"{mtu + TUNNEL_HEADERS}: give `mtu: {most - TUNNEL_HEADERS}`, or {interface} a larger "
            "one"
        )


def make_tunnels(plan: FabricPlan, outer: str) -> None:
    """Make the tunnels of a plan; call it in the fabric's own namespace.

    A VXLAN device sends through the namespace in which it was made, also after it has moved.

    Args:
        plan: a machine's part of a fabric.
        outer: path of the namespace with the addresses of the machines.

    Raises:
        FabricError: names the link that failed.
    """
    tunnels = [(link, link.tunnel) for link in plan.links if link.tunnel is not None]
    if not tunnels:
        return
    for remote, mtu in {(tunnel.remote, link.mtu) for link, tunnel in tunnels}:
        namespaces.run_in(outer, partial(check_carrier, remote, mtu))
    kind = f"netns {os.getpid()} type vxlan dstport {_PORT} {_OPTIONS}"
    devices = []
    for link, tunnel in tunnels:
        machines = f"id {tunnel.vni} local {tunnel.local} remote {tunnel.remote}"
        line = f"link add name {tunnel.end.name} mtu {link.mtu} {kind} {machines}"
        devices.append((link.name, line))
    namespaces.run_in(outer, partial(ip_batch, devices), timeout_s=60.0)
    bridged = [(link.name, tunnel.end) for link, tunnel in tunnels if tunnel.end.bridge]
    ip_batch([(name, f"link set dev {e.name} master {e.bridge}") for name, e in bridged])
