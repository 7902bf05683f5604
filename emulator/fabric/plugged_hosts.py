"""Interfaces of this machine that lead to real hosts, plugged into a fabric.

The node of a server that is a real host has no address: a bridge in it joins the server's link with
the interface that leads to the host. Its management traffic travels on the same link, in a tunnel
between two addresses that nothing else uses, so that both networks stay apart.
"""

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.core.server_host import Plug, ServerHost
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric.plan import HOST_INTERFACE, MANAGEMENT_INTERFACE
from moefabric.emulator.fabric.tunnels import TUNNEL_HEADERS, check_carrier
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import BatchLine, ip_batch, run
from moefabric.emulator.linux.marked_processes import is_marked
from moefabric.runtime.run_directory import FabricWiring, RunDirectory

NEAR_ADDRESS, FAR_ADDRESS = "169.254.77.1", "169.254.77.2"
"""Ends of the tunnel: the node, and the host."""
NEAR_MAC: Final = "02:4d:46:00:00:01"
"""MAC of the node's end."""
MANAGEMENT_ID, MANAGEMENT_PORT = 4000, 4790
"""VXLAN of the tunnel."""
PLUGS: Final = "plugs.json"
"""File of the run directory with the interfaces that have moved into the fabric."""
_PLUG: Final = "plug0"
_MANAGEMENT: Final = "management"
_BRIDGE: Final = "type bridge stp_state 0 mcast_snooping 0"


def plug_hosts(
    hosts: Mapping[str, ServerHost],
    pids: Mapping[str, int],
    outer: str,
    fabric: Fabric,
    run_dir: RunDirectory,
) -> None:
    """Plug interfaces of the outer namespace into the nodes of the servers that are real hosts.

    Args:
        hosts: the real hosts, by server.
        pids: by node, the pid of a process in the node's namespace.
        outer: path of the outer network namespace.
        run_dir: keeps what has moved, for `return_devices`.

    Raises:
        FabricError: lists the interfaces that can't be plugged in.
    """
    moved = {s: [h.plug.device, pids[s]] for s, h in hosts.items() if h.plug.device}
    if hosts:
        (run_dir.path / PLUGS).write_text(json.dumps(moved))
    faults = []
    for server, host in hosts.items():
        pid, plug = pids[server], host.plug
        try:
            namespaces.run_in(outer, partial(_move_in, plug, pid, fabric.mtu))
            lines = _join(server, fabric.addressing.mac(server), fabric.mtu)
            namespaces.run_in(pid, partial(ip_batch, lines))
        except FabricError as error:
            faults.append(f"{server}: {plug}: {error}")
    if faults:
        raise FabricError("\n".join(faults))


def _move_in(plug: Plug, pid: int, mtu: int) -> None:
    """Move or make the interface of a plug; call it in the outer namespace."""
    there, tunnel = f"name {_PLUG} netns {pid}", plug.vxlan
    if tunnel is not None:
        check_carrier(tunnel.remote, mtu, tunnel.device or "")
        ends = f"id {tunnel.id} remote {tunnel.remote} dstport {tunnel.port}"
        carrier = f"dev {tunnel.device}" if tunnel.device else ""
        command = f"add {there} type vxlan {ends} {carrier}"
    elif plug.device is not None:
        run(["ip", "link", "set", "dev", plug.device, "down"])
        command = f"set dev {plug.device} {there}"
    else:
        command = f"add link {plug.macvlan} {there} type macvlan mode passthru"
    run(["ip", "link", *command.split()])


def _join(server: str, host_mac: str, mtu: int) -> list[BatchLine]:
    """Return the commands that join a server's links with its plug, in the server's node."""
    tunnel = f"type vxlan id {MANAGEMENT_ID} local {NEAR_ADDRESS} remote {FAR_ADDRESS}"
    commands = [
        "address flush dev lo scope global",
        f"link set {_PLUG} mtu {mtu} up",
        f"link add fabric address {NEAR_MAC} mtu {mtu} {_BRIDGE}",
        *_bridged(HOST_INTERFACE, "fabric"),
        f"link set {_PLUG} master fabric",
        "link set fabric up",
        f"address add {NEAR_ADDRESS}/30 dev fabric",
        f"neighbour add {FAR_ADDRESS} lladdr {host_mac} dev fabric nud permanent",
        f"link add tunnel mtu {mtu - TUNNEL_HEADERS} {tunnel} dstport {MANAGEMENT_PORT} dev fabric",
        f"link add {_MANAGEMENT} {_BRIDGE}",
        *_bridged(MANAGEMENT_INTERFACE, _MANAGEMENT),
        f"link set tunnel master {_MANAGEMENT} up",
        f"link set {_MANAGEMENT} up",
    ]
    return [(f"{server}/host", command) for command in commands]


def _bridged(interface: str, bridge: str) -> list[str]:
    """Return the commands that take an interface's addresses away and add it to a bridge."""
    # The host has the server's MAC: here it would take the host's frames.
    mac = "02:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(5))
    return [
        f"address flush dev {interface}",
        f"link set {interface} down address {mac}",
        f"link set {interface} master {bridge} up",
    ]


def shell_of(run_dir: RunDirectory, node: str) -> tuple[str, ...]:
    """Return the argv that runs commands on a node that is a real host; else nothing."""
    if not (run_dir.path / PLUGS).exists():
        return ()
    hosts = FabricWiring.from_json(run_dir.wiring_file.read_bytes()).hosts
    return hosts[node].shell if node in hosts else ()


def has_moved_devices(run_dir: RunDirectory) -> bool:
    """Return whether interfaces of the outer namespace have moved into a fabric."""
    with suppress(OSError, ValueError):
        return bool(json.loads((run_dir.path / PLUGS).read_text()))
    return False


def return_devices(run_dir: RunDirectory) -> bool:
    """Return moved interfaces to the calling namespace; return whether there were any.

    Call it before the fabric's namespaces end: a virtual interface would end with them.
    """
    file = run_dir.path / PLUGS
    with suppress(OSError, ValueError):
        moved = dict(json.loads(file.read_text()))
        file.unlink()
        for device, pid in moved.values():
            if is_marked(run_dir.name, pid):
                _return_device(device, pid)
        return bool(moved)
    return False


def _return_device(device: str, pid: int) -> None:
    with namespaces.held() as home, suppress(FabricError):
        leave = ["ip", "link", "set", "dev", _PLUG, "nomaster", "down"]
        move = ["ip", "link", "set", "dev", _PLUG, "name", device, "netns", home]
        namespaces.run_in(pid, lambda: [run(argv) for argv in (leave, move)])
        run(["ip", "link", "set", "dev", device, "up"])
