"""Outages: what a person has taken from a fabric's hardware, and gives back: NICs' links, whole servers, the power of an optical switch."""

import itertools
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from emulator import netlink
from emulator.plan import FABRIC, Plan
from moefabric.errors import FabricError


class Kind(StrEnum):
    """Kinds of outages."""

    NIC = "nic"
    """A NIC's link is down: neither it nor its far end has carrier, and frames are dropped."""
    SERVER = "server"
    """A server stands still: its agent's process is stopped, and all its NICs are down."""
    OCS = "ocs"
    """An optical switch has lost its power: no NIC on it has light, and nobody answers on its management address."""


@dataclass(frozen=True)
class Outage:
    """One of them: of these NICs (`s0/e0`), servers (`s3`) or switches (`ocs0`), since that instant (CLOCK_MONOTONIC)."""

    kind: Kind
    what: tuple[str, ...]
    number: int = 0
    at_ns: int = 0


def interfaces(plan: Plan, outage: Outage) -> frozenset[str]:
    """The interfaces of the fabric's own namespace that are down. FabricError for what the fabric hasn't got."""
    return frozenset().union(*(_of(plan, outage.kind, name) for name in outage.what))


def _of(plan: Plan, kind: Kind, name: str) -> set[str]:
    nics = {link.name: link.a.name for link in plan.links if "/" in link.name and link.a.port}
    match kind:
        case Kind.NIC if name in nics:
            return {nics[name]}
        case Kind.SERVER if name in plan.servers:
            return {interface for nic, interface in nics.items() if nic.startswith(f"{name}/")}
        case Kind.OCS if name in {ocs.name for ocs in plan.ocses}:
            lit = {link.a.name for link in plan.links if link.b.node == name and link.a.node == FABRIC}
            return lit | {link.b.name for link in plan.links if link.name == f"{name}/management"}
    there = {Kind.NIC: nics, Kind.SERVER: plan.servers, Kind.OCS: [ocs.name for ocs in plan.ocses]}[kind]
    said = f" is not one of {', '.join(there)}" if there else f": the fabric has no {kind}"
    raise FabricError(f"fault {kind}: {name}{said}")


class Outages:
    """All that is out of one fabric. To be called in the fabric's own namespace."""

    def __init__(
        self,
        plan: Plan,
        signalled: Callable[[str, signal.Signals], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`signalled(server, number)` sends a server's agent a signal."""
        self._plan, self._signalled, self._clock_ns = plan, signalled, clock_ns
        self._standing: dict[int, Outage] = {}
        self._serial = itertools.count(1)
        self._down: frozenset[str] = frozenset()
        self._still: frozenset[str] = frozenset()

    def asked(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a line of JSON asks for: `inject` or `clear` with `kind` and `what`, or nothing. The answer: `at_ns`, `gone`, `faults`.

        Clearing without `what` is of all of a kind, without a kind of all there is. FabricError, and nothing done, for what isn't there.
        """
        gone: list[Outage] = []
        at_ns = self._clock_ns()
        if (told := asked.get("inject")) is not None:
            at_ns = self.inject(_kind(_keys(told).get("kind")), _names(told.get("what", ())))
        if (told := asked.get("clear")) is not None:
            kind = None if _keys(told).get("kind") is None else _kind(told["kind"])
            gone = self.clear(kind, _names(told.get("what", ())))
        return {
            "at_ns": at_ns,
            "gone": [asdict(outage) for outage in gone],
            "faults": [asdict(outage) for outage in self._standing.values()],
        }

    def inject(self, kind: Kind, what: Sequence[str]) -> int:
        """Take these away; the instant just before the kernel was told. FabricError for what isn't there."""
        outage = Outage(kind, tuple(what), next(self._serial), self._clock_ns())
        if not what or not interfaces(self._plan, outage):
            raise FabricError(f"fault {kind}: of what?")
        self._standing[outage.number] = outage
        self._apply()
        return outage.at_ns

    def clear(self, kind: Kind | None = None, what: Sequence[str] = ()) -> list[Outage]:
        """Give back all of a kind, or what of it is named; what was given back. FabricError where nothing is out."""
        gone = [
            outage
            for outage in self._standing.values()
            if kind in (None, outage.kind) and (not what or set(what) & {*outage.what})
        ]
        if what and not gone:
            raise FabricError(f"{', '.join(what)}: no such fault")
        for outage in gone:
            left = tuple(name for name in outage.what if what and name not in what)
            del self._standing[outage.number]
            if left:
                self._standing[outage.number] = replace(outage, what=left)
        self._apply()
        back = (tuple(name for name in outage.what if not what or name in what) for outage in gone)
        return [replace(outage, what=names) for outage, names in zip(gone, back, strict=True)]

    def _apply(self) -> None:
        """Make the kernel's interfaces and the agents what they should be; several outages may have one NIC down."""
        standing = self._standing.values()
        down = frozenset().union(*(interfaces(self._plan, outage) for outage in standing))
        still = frozenset(name for outage in standing if outage.kind is Kind.SERVER for name in outage.what)
        _set(down - self._down, up=False)
        for server in sorted(still - self._still):
            self._signalled(server, signal.SIGSTOP)
        _set(self._down - down, up=True)
        for server in sorted(self._still - still):
            self._signalled(server, signal.SIGCONT)
        self._down, self._still = down, still

    def release(self) -> None:
        """Let agents go on that stand still, so that they hear what they are told next; no fault if there are none."""
        for server in sorted(self._still):
            self._signalled(server, signal.SIGCONT)
        self._still = frozenset()


def _set(names: Iterable[str], *, up: bool) -> None:
    change = netlink.up if up else netlink.down
    netlink.ask([change(name, socket.if_nametoindex(name)) for name in sorted(names)])


def _keys(told: Any) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise FabricError(f"fault: {told!r} has no kind")
    return told


def _kind(word: Any) -> Kind:
    try:
        return Kind(word)
    except ValueError as wrong:
        raise FabricError(f"fault: {word!r} is not one of {', '.join(Kind)}") from wrong


def _names(words: Any) -> tuple[str, ...]:
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise FabricError(f"fault: {words!r} are no names")
    return tuple(words)
