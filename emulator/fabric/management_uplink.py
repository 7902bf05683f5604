"""Management uplink: a veth pair between a fabric's management network and the outer namespace.

The outer namespace is the one in which `up` was called.
"""

import json
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, ip_network
from typing import Any, Final

from moefabric.core.errors import CommandFailedError, FabricError
from moefabric.emulator.fabric import links
from moefabric.emulator.fabric.plan import BRIDGE, SERVER_BRIDGE
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import ip_batch, run
from moefabric.runtime.run_directory import ManagementNetwork, RunDirectory, run_root

_RANGE: Final = IPv4Network("198.18.0.0/15")
_SMALLEST: Final = 24
"""Prefix length of the smallest subnet of a fabric."""
_MARK: Final = "moefabric:"
_BRIDGE_KIND: Final = "type bridge forward_delay 0 mcast_snooping 0"
_REMOVAL_S: Final = 120.0
"""Time in which the kernel answers, also while it removes the namespaces of a large fabric."""
_GROUP_DIGITS: Final = 7
"""Hexadecimal digits of the identity in the group of an interface, which has 32 bits."""
_INNER_NAME: Final = "outer"
"""Name of the inner end in the fabric's namespace."""


def interface_alias(fabric: str) -> str:
    """Return the interface alias that marks an interface outside as the fabric's."""
    identity = RunDirectory.of_fabric(fabric).public_identity()
    return f"{_MARK}{fabric}@{run_root()}:{identity}"


def _group(fabric: str) -> str:
    """Return the group of a fabric's uplink; unlike an alias it is set as the interface is made."""
    identity = RunDirectory.of_fabric(fabric).public_identity()
    return str(int(identity[:_GROUP_DIGITS], 16) + 1)


def marked_fabrics() -> list[str]:
    """Return the fabrics that have an interface in the calling namespace."""
    aliases = [link.get("ifalias", "") for link in _show("link")]
    marked = [alias.removeprefix(_MARK) for alias in aliases if alias.startswith(_MARK)]
    return list(dict.fromkeys(alias.partition("@")[0] for alias in marked))


def claim_subnet(fabric: str, prefix: int = _SMALLEST) -> tuple[ManagementNetwork, str]:
    """Claim a free management subnet by making the uplink, so that no two fabrics share one.

    A larger subnet is claimed by a name of the uplink for each /24 of it.

    Args:
        fabric: name of the fabric.
        prefix: prefix length of the subnet, 24 at most.

    Returns:
        The subnet and the name of the outer interface, which has the subnet's address .1. The
        inner end has the same name with an `i`, and stays in the outer namespace until `attach`.

    Raises:
        FabricError: if no subnet is free.
    """
    used, group = _used_networks(), _group(fabric)
    for subnet in _RANGE.subnets(new_prefix=prefix):
        if any(subnet.overlaps(network) for network in used):
            continue
        outer, *further = _uplink_names(subnet)
        if not _make_uplink(outer, further, group):
            continue
        management = ManagementNetwork(str(subnet))
        address = management.interface_address(management.host_address)
        _run_ip(
            f'link set dev {outer} alias "{interface_alias(fabric)}"',
            f"address add {address} dev {outer}",
            f"link set dev {outer} addrgenmode none",
            f"link set dev {outer} up",
        )
        return management, outer
    raise FabricError(
        f"management: no /{prefix} of {_RANGE} is free; see `ip address` and `moefabric down`"
    )


def _uplink_names(subnet: IPv4Network) -> list[str]:
    """Return a name for each /24 of a subnet, by its position in the range."""
    first = (int(subnet.network_address) - int(_RANGE.network_address)) >> (32 - _SMALLEST)
    return [f"mf{number}" for number in range(first, first + (1 << (_SMALLEST - subnet.prefixlen)))]


def _make_uplink(outer: str, further: Sequence[str], group: str) -> bool:
    """Make the uplink with all its names; return False if one of these is taken."""
    kind = f"group {group} type veth peer name {outer}i"
    if not _change_link(f"add name {outer} {kind}", "File exists"):
        return False
    names = "".join(f" altname {name}" for name in further)
    if names and not _change_link(f"property add dev {outer}{names}", "File exists"):
        _delete(outer)
        return False
    return True


def _change_link(command: str, *excused: str) -> bool:
    """Run an `ip link` command; return False if its error contains one of these texts."""
    try:
        run(["ip", "link", *command.split()])
    except CommandFailedError as error:
        if not any(text in error.output for text in excused):
            raise
        return False
    return True


def _run_ip(*commands: str) -> None:
    ip_batch([("management", command) for command in commands])


def _used_networks() -> list[IPv4Network]:
    """Return the networks of the calling namespace's addresses, routes and listeners."""
    # Processes that a dead fabric has left may still listen.
    listeners = [address for address, _ in namespaces.listening_addresses()]
    return [*routed_networks(), *map(IPv4Network, listeners)]


def routed_networks() -> list[IPv4Network]:
    """Return the networks of the calling namespace's addresses and routes."""
    texts = [
        f"{address['local']}/{address['prefixlen']}"
        for link in _show("address")
        for address in link.get("addr_info", ())
    ]
    texts += [route["dst"] for route in _show("route") if route["dst"] != "default"]
    networks = [ip_network(text, strict=False) for text in texts]
    return [network for network in networks if isinstance(network, IPv4Network)]


def _show(what: str) -> list[dict[str, Any]]:
    return list(json.loads(run(["ip", "-j", "-4", what, "show"]) or "[]"))


def attach(outer: str, pid: int) -> None:
    """Move the inner end from the calling namespace to the namespace of a process."""
    run(["ip", "link", "set", "dev", f"{outer}i", "netns", str(pid), "name", _INNER_NAME])


def make_bridges(address: str, further: Iterable[str] = (), *, has_uplink: bool = True) -> None:
    """Make the bridges of the management network in the calling namespace.

    The inner end of the uplink joins the control plane's bridge, which gets the address. Nothing
    joins it with the servers' bridge, so that programs on servers reach servers only.

    Args:
        address: IPv4 address with prefix length.
        further: bridges of servers that join the first one.
        has_uplink: whether the namespace has the inner end of an uplink.
    """
    links.isolate_interfaces()
    _run_ip(
        "link set lo up",
        f"link add name {BRIDGE} {_BRIDGE_KIND}",
        *([f"link set dev {_INNER_NAME} master {BRIDGE} up"] if has_uplink else ()),
        f"address add {address} dev {BRIDGE}",
        f"link set dev {BRIDGE} up",
        f"link add name {SERVER_BRIDGE} {_BRIDGE_KIND}",
        f"link set dev {SERVER_BRIDGE} up",
        *(line for bridge in further for line in _joined_bridge(bridge)),
    )
    links.answer_arp(BRIDGE)


def _joined_bridge(bridge: str) -> tuple[str, ...]:
    """Return the commands that make a bridge and join it with the servers' first one."""
    return (
        f"link add name {bridge} {_BRIDGE_KIND}",
        f"link set dev {bridge} up",
        f"link add name {bridge}-up master {SERVER_BRIDGE} type veth peer name {bridge}-down",
        f"link set dev {bridge}-down master {bridge} up",
        f"link set dev {bridge}-up up",
    )


def remove_leftovers(fabric: str) -> list[str]:
    """Delete the interfaces in the calling namespace whose alias names the fabric; return them.

    Their peers go with them. Interfaces that are gone meanwhile are skipped.
    """
    if not RunDirectory.of_fabric(fabric).read_identity():
        return []
    alias, group = interface_alias(fabric), _group(fabric)
    interfaces: list[str] = [
        link["ifname"]
        for link in json.loads(run(["ip", "-j", "link", "show"], timeout_s=_REMOVAL_S))
        if link.get("ifalias", alias if link.get("group") == group else "") == alias
    ]
    for interface in interfaces:
        _delete(interface)
    return interfaces


def _delete(interface: str) -> None:
    # The second is the kernel's text for an interface that goes while `ip` deletes it.
    _change_link(f"delete {interface}", "Cannot find device", "No such device")
