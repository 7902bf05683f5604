"""The way out: one veth that joins a fabric's management network to the namespace where `up` was called."""

import json
from collections.abc import Iterable
from ipaddress import IPv4Network, ip_network
from typing import Any, Final

from emulator import namespaces
from emulator.command import Line, batch, run
from emulator.plan import BRIDGE
from moefabric.errors import CommandFailedError, FabricError
from moefabric.management import Management, root

_RANGE: Final = IPv4Network("198.18.0.0/15")
_INSIDE: Final = "outer"
"""What the fabric calls its end."""


def alias(fabric: str) -> str:
    """The mark by which the outer end is known to be a fabric's: of that name, and of no other folder of run directories."""
    return f"moefabric:{fabric}@{root()}"


def claim(fabric: str) -> tuple[Management, str]:
    """A free management subnet, and the outer interface that has its .1: made here, so that no two fabrics get the same.

    Its other end is named like it with an `i`, and waits beside it until the fabric takes it in. FabricError where none is free.
    """
    taken = _networks_in_use()
    for number, subnet in enumerate(_RANGE.subnets(new_prefix=24)):
        if any(subnet.overlaps(other) for other in taken):
            continue
        outer = f"mf{number}"
        try:
            run(["ip", "link", "add", "name", outer, "type", "veth", "peer", "name", f"{outer}i"])
        except CommandFailedError as refused:
            if "File exists" in refused.said:
                continue
            raise
        management = Management(str(subnet))
        words = (f'alias "{alias(fabric)}"', "addrgenmode none", "up")
        lines = [f"link set dev {outer} {word}" for word in words]
        lines.insert(1, f"address add {management.outer}/24 dev {outer}")
        batch(["ip"], [Line("management", line) for line in lines])
        return management, outer
    raise FabricError(f"management: no /24 of {_RANGE} is free; see `ip address` and `moefabric down`")


def _networks_in_use() -> list[IPv4Network]:
    """Networks that the calling namespace has addresses in, routes to, or programs that listen there."""
    found = [
        f"{a['local']}/{a['prefixlen']}"
        for link in _json("address", "show")
        for a in link.get("addr_info", ())
    ]
    found += [route["dst"] for route in _json("route", "show")]
    found += [f"{address}/32" for address, _ in namespaces.listening()]  # what a dead fabric has left
    return [
        net
        for text in found
        if text != "default" and isinstance(net := ip_network(text, strict=False), IPv4Network)
    ]


def _json(*words: str) -> list[dict[str, Any]]:
    return list(json.loads(run(["ip", "-j", "-4", *words]) or "[]"))


def take_in(outer: str, pid: int) -> None:
    """Move the inner end from the calling namespace to that of process `pid`."""
    run(["ip", "link", "set", "dev", f"{outer}i", "netns", str(pid), "name", _INSIDE])


def bridge(address: str) -> None:
    """Make the management bridge in the calling namespace, with the fabric's own address, the inner end plugged in."""
    lines = (
        "link set lo up",
        f"link add name {BRIDGE} type bridge forward_delay 0 mcast_snooping 0",
        f"link set dev {_INSIDE} master {BRIDGE} up",
        f"address add {address} dev {BRIDGE}",
        f"link set dev {BRIDGE} up",
    )
    batch(["ip"], [Line("management", line) for line in lines])


def leftovers(fabric: str) -> list[str]:
    """Outer interfaces of the calling namespace that carry the fabric's mark."""
    return [
        link["ifname"]
        for link in json.loads(run(["ip", "-j", "link", "show"]))
        if link.get("ifalias") == alias(fabric)
    ]


def remove(interfaces: Iterable[str]) -> None:
    """Delete interfaces, which deletes their other ends too; one that is gone already is no fault."""
    for interface in interfaces:
        try:
            run(["ip", "link", "delete", interface])
        except CommandFailedError as refused:
            if "Cannot find device" not in refused.said:
                raise
