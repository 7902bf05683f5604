"""The interface of a real host that leads into a fabric, configured while its agent runs."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from moefabric.agents.engine.requests import RefusedError

TUNNEL = "mf-fabric"
MANAGEMENT = "mgmt0"
_CLASS = Path("/sys/class/net")
_SYSCTLS = Path("/proc/sys")


class HostLink:
    """Gives an interface the MAC, addresses and neighbours of a server. `close` takes them away.

    Args:
        facts: `interface`, or `tunnel` with `remote`, `id` and `port`; `mac`, `mtu`, `addresses`,
            `networks`, `neighbours` (pairs of address and MAC), `management` (its address and
            the tunnel that carries it), and `sysctls`, as `moefabric.testbed.fabric_processes`
            gives them.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.interface: str = facts["interface"] or TUNNEL
        self._undo = ExitStack()

    def configure(self) -> None:
        """Configure the interface.

        Raises:
            RefusedError: if that is impossible; nothing is changed then.
        """
        if os.geteuid() != 0:
            raise RefusedError(
                f"only root can configure {self.interface}: log in as root, "
                "or configure it beforehand and leave `interface` out"
            )
        try:
            self._make_tunnel()
            self._check()
            self._configure_link()
            self._add_addresses()
            self._add_management()
            for name, value in self.facts["sysctls"].items():
                self._set(_SYSCTLS / name.replace(".", "/"), value)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Undo all changes, last change first."""
        with suppress(OSError, RefusedError):  # of what is gone already
            self._undo.close()

    def _make_tunnel(self) -> None:
        if self.facts["interface"]:
            return
        tunnel = self.facts["tunnel"]
        where = ("remote", tunnel["remote"], "dstport", str(tunnel["port"]))
        self._add("link", (TUNNEL,), "type", "vxlan", "id", str(tunnel["id"]), *where)

    def _check(self) -> None:
        """Raise RefusedError if the interface doesn't exist, or a route is in the way."""
        if not (_CLASS / self.interface).exists():
            others = ", ".join(sorted(path.name for path in _CLASS.iterdir()))
            raise RefusedError(f"it has no interface {self.interface}; it has {others}")
        networks = [ipaddress.ip_network(text) for text in self.facts["networks"]]
        for route in json.loads(_ip("-4", "-j", "route", "show") or "[]"):
            if route["dst"] == "default" or route.get("dev") == self.interface:
                continue
            present = ipaddress.ip_network(route["dst"])
            for network in networks:
                if network.overlaps(present):
                    raise RefusedError(
                        f"its route to {present} by {route.get('dev')} overlaps {network} of the "
                        "fabric: give that network another prefix"
                    )

    def _configure_link(self) -> None:
        folder, name = _CLASS / self.interface, self.interface
        former = (folder / "address").read_text().strip(), (folder / "mtu").read_text().strip()
        state = "up" if int((folder / "flags").read_text(), 16) & 1 else "down"

        def restore() -> None:
            _ip("link", "set", name, "down", "address", former[0], "mtu", former[1])
            _ip("link", "set", name, state)

        self._undo.callback(restore)
        ipv6 = _SYSCTLS / f"net/ipv6/conf/{name}/disable_ipv6"
        if ipv6.exists():
            self._set(ipv6, "1")
        mac, mtu = self.facts["mac"], str(self.facts["mtu"])
        _ip("link", "set", name, "down", "address", mac, "mtu", mtu)
        _ip("link", "set", name, "up")

    def _add_addresses(self) -> None:
        """Add the first address to the interface and the others, as emulated servers do, to lo."""
        name = self.interface
        first, *further = self.facts["addresses"]
        places = [(first, name), *((address, "lo") for address in further)]
        for address, device in places:
            self._add("address", (f"{address}/32", "dev", device))
        for network in self.facts["networks"]:
            self._add("route", (network, "dev", name), "src", first)
        for address, mac in self.facts["neighbours"]:
            self._add_neighbour(address, mac)

    def _add_management(self) -> None:
        """Make the interface of the management network, a tunnel on the link."""
        facts, name = self.facts["management"], self.interface
        self._add("address", (f"{facts['far']}/30", "dev", name))
        self._add_neighbour(facts["near"], facts["near_mac"])
        ends = ("local", facts["far"], "remote", facts["near"], "dstport", str(facts["port"]))
        mtu = ("mtu", str(facts["mtu"]))
        self._add("link", (MANAGEMENT,), *mtu, "type", "vxlan", "id", str(facts["id"]), *ends)
        _ip("address", "add", facts["address"], "dev", MANAGEMENT)
        _ip("link", "set", MANAGEMENT, "up")

    def _add_neighbour(self, address: str, mac: str) -> None:
        entry = (address, "lladdr", mac, "dev", self.interface)
        self._add("neighbour", entry, "nud", "permanent", verb="replace")

    def _add(self, kind: str, words: tuple[str, ...], *more: str, verb: str = "add") -> None:
        """Run `ip KIND VERB`; the same words without `more` undo it."""
        _ip(kind, verb, *words, *more)
        self._undo.callback(_ip, kind, "delete", *words)

    def _set(self, path: Path, value: str) -> None:
        former = path.read_text()
        path.write_text(value)
        self._undo.callback(path.write_text, former)


def _ip(*words: str) -> str:
    """Run `ip` and return its output; raise RefusedError if it fails or isn't there."""
    try:
        completed = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RefusedError("it has no program `ip`: apt install iproute2") from error
    if completed.returncode:
        raise RefusedError(f"`ip {' '.join(words)}` there: {completed.stderr.strip()}")
    return completed.stdout
