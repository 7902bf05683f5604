"""Injected failures of a fabric's hardware: links of NICs, servers, power of optical switches."""

import itertools
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from moefabric.core.errors import FabricError
from moefabric.core.failure_kinds import FailureKind
from moefabric.emulator.fabric.plan import FABRIC, FabricPlan
from moefabric.emulator.linux import netlink


@dataclass(frozen=True)
class HardwareFailure:
    """Failure of NICs (`s0/e0`), servers (`s3`) or optical switches (`ocs0`).

    Attributes:
        kind: a key of `failing_interfaces`.
        what: names of the failed components.
        number: serial number in the fabric.
        at_ns: when it was injected (CLOCK_MONOTONIC).
    """

    kind: FailureKind
    what: tuple[str, ...]
    number: int = 0
    at_ns: int = 0


def failing_interfaces(plan: FabricPlan) -> dict[FailureKind, dict[str, frozenset[str]]]:
    """Return the interfaces of the fabric's own namespace that each component takes down.

    The keys are the kinds of failures that the fabric process injects itself, and the components.
    """
    nics = dict[str, frozenset[str]]()
    servers = {server: frozenset[str]() for server in plan.servers}
    ocses = {ocs.name: frozenset[str]() for ocs in plan.ocses}
    for link in plan.links:
        if link.is_nic:
            # The ends of a tunnel don't notice each other's failure: both are switched off.
            ends = (link.a,) if link.tunnel is None else (link.a, link.b)
            nics[link.name] = frozenset(end.name for end in ends)
            servers[link.name.partition("/")[0]] |= nics[link.name]
        for end, other in itertools.permutations((link.a, link.b)):
            if end.node == FABRIC and other.node in ocses:
                ocses[other.node] |= {end.name}
    return {FailureKind.NIC: nics, FailureKind.SERVER: servers, FailureKind.OCS: ocses}


class SetLinks(Protocol):
    """Function that switches interfaces of a fabric's own namespace on or off."""

    def __call__(self, names: Iterable[str], *, up: bool) -> None:
        """Switch these interfaces."""


def set_links(names: Iterable[str], *, up: bool) -> None:
    """Switch interfaces of the calling namespace on or off."""
    request = netlink.link_up if up else netlink.link_down
    netlink.execute([request(name, socket.if_nametoindex(name)) for name in sorted(names)])


class HardwareFailures:
    """Present failures of one fabric; for callers in the fabric's own namespace."""

    def __init__(
        self,
        plan: FabricPlan,
        signal_agent: Callable[[str, signal.Signals], None],
        set_links: SetLinks = set_links,
    ) -> None:
        """Start without failures.

        Args:
            signal_agent: sends a signal to the agent of a server.
            set_links: switches interfaces of the fabric's own namespace on or off.
        """
        self._interfaces = failing_interfaces(plan)
        self._signal_agent, self._set_links = signal_agent, set_links
        self._present: dict[int, HardwareFailure] = {}
        self._serial = itertools.count(1)
        self._down = self._stopped = frozenset[str]()

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Inject or clear failures as a JSON request says, and list the present failures.

        Args:
            request: has `inject` or `clear`, an object with `kind` and `what`; or neither, to list
                only. A clear without `what` clears all failures of its kind; without `kind`, of
                all kinds.

        Returns:
            `at_ns` (CLOCK_MONOTONIC), `cleared` and `faults` (the present ones), as JSON values.

        Raises:
            FabricError: if the fabric has no such component or failure; then nothing has changed.
        """
        cleared: list[HardwareFailure] = []
        at_ns = time.monotonic_ns()
        if (failure := request.get("inject")) is not None:
            kind, what = _parse(failure)
            at_ns = self.inject(self._known(kind), what)
        if (failure := request.get("clear")) is not None:
            kind, what = _parse(failure)
            cleared = self.clear(None if kind is None else self._known(kind), what)
        return {
            "at_ns": at_ns,
            "cleared": [asdict(failure) for failure in cleared],
            "faults": [asdict(failure) for failure in self._present.values()],
        }

    def _known(self, kind: Any) -> FailureKind:
        if kind not in [*self._interfaces]:
            raise FabricError(f"fault: {kind!r} is not one of {', '.join(self._interfaces)}")
        return FailureKind(kind)

    def _interfaces_of(self, failure: HardwareFailure) -> frozenset[str]:
        """Return the interfaces of the fabric's own namespace that a failure takes down.

        Raises:
            FabricError: if the fabric has no such component.
        """
        interfaces, kind = self._interfaces[failure.kind], failure.kind
        for name in failure.what:
            if name not in interfaces:
                known = ", ".join(interfaces)
                reason = f" is not one of {known}" if known else f": the fabric has no {kind}"
                raise FabricError(f"fault {kind}: {name}{reason}")
        return frozenset().union(*(interfaces[name] for name in failure.what))

    def inject(self, kind: FailureKind, what: Sequence[str]) -> int:
        """Inject a failure; return the instant just before it took effect.

        What has failed already has no second failure.

        Raises:
            FabricError: if the fabric has no such component, or its machine is lost.
        """
        failure = HardwareFailure(kind, tuple(what), next(self._serial), time.monotonic_ns())
        if not self._interfaces_of(failure):
            raise FabricError(f"fault {kind}: of what?")
        failed = {
            name for other in self._present.values() if other.kind == kind for name in other.what
        }
        failure = replace(failure, what=tuple(name for name in what if name not in failed))
        if not failure.what:
            return failure.at_ns
        self._present[failure.number] = failure
        try:
            self._apply()
        except FabricError as error:
            del self._present[failure.number]
            self._apply()
            raise FabricError(f"fault {kind}: {', '.join(what)}: {error}") from error
        return failure.at_ns

    def clear(
        self, kind: FailureKind | None = None, what: Sequence[str] = ()
    ) -> list[HardwareFailure]:
        """Clear failures; return them with only the components that work again.

        Args:
            kind: kind of failure; default: all kinds.
            what: components; default: all.

        Raises:
            FabricError: if none of the named components has failed.
        """
        matches = [
            failure
            for failure in self._present.values()
            if kind in (None, failure.kind) and (not what or set(what) & {*failure.what})
        ]
        if what and not matches:
            raise FabricError(f"{', '.join(what)}: no such fault")
        cleared = []
        for failure in matches:
            del self._present[failure.number]
            restored = tuple(name for name in failure.what if not what or name in what)
            if rest := tuple(name for name in failure.what if name not in restored):
                self._present[failure.number] = replace(failure, what=rest)
            cleared.append(replace(failure, what=restored))
        self._apply()
        return cleared

    def _apply(self) -> None:
        """Set interfaces and agents to the state that all present failures together require."""
        present = self._present.values()
        down = frozenset().union(*map(self._interfaces_of, present))
        lost = (failure.what for failure in present if failure.kind is FailureKind.SERVER)
        stopped = frozenset(itertools.chain.from_iterable(lost))
        self._set_links(down - self._down, up=False)
        self._down |= down
        self._signal_agents(stopped - self._stopped, signal.SIGSTOP)
        self._set_links(self._down - down, up=True)
        self._signal_agents(self._stopped - stopped, signal.SIGCONT)
        self._down, self._stopped = down, stopped

    def _signal_agents(self, servers: Iterable[str], number: signal.Signals) -> None:
        for server in sorted(servers):
            self._signal_agent(server, number)


def _parse(failure: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the kind and the names of the components in a request."""
    if not isinstance(failure, dict):
        raise FabricError(f"fault: {failure!r} has no kind")
    what = failure.get("what", ())
    if not isinstance(what, list | tuple) or not all(isinstance(name, str) for name in what):
        raise FabricError(f"fault: {what!r} is no list of names")
    return failure.get("kind"), tuple(what)
