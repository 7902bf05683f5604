"""Injected failures of a fabric's hardware: links of NICs, servers, power of optical switches."""

import itertools
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Protocol

from moefabric.core.errors import FabricError
from moefabric.core.failure_kinds import FailureKind
from moefabric.emulator.fabric.plan import FABRIC, FabricPlan
from moefabric.emulator.linux import netlink


@dataclass(frozen=True)
class HardwareFailure:
    """Failure of NICs (`s0/e0`), servers (`s3`) or optical switches (`ocs0`).

    Attributes:
        kind: a key of `INTERFACES`.
        what: names of the failed components.
        number: serial number in the fabric.
        at_ns: when it was injected (CLOCK_MONOTONIC).
    """

    kind: FailureKind
    what: tuple[str, ...]
    number: int = 0
    at_ns: int = 0


def _nic_interfaces(plan: FabricPlan) -> dict[str, set[str]]:
    # The two ends of a tunnel don't notice each other's failure, so that both are switched off.
    return {
        link.name: {link.a.name} if link.tunnel is None else {link.a.name, link.b.name}
        for link in plan.links
        if "/" in link.name and link.a.port
    }


def _server_interfaces(plan: FabricPlan) -> dict[str, set[str]]:
    nics = _nic_interfaces(plan)
    return {
        server: set().union(*(nics[name] for name in nics if name.startswith(f"{server}/")))
        for server in plan.servers
    }


def _ocs_interfaces(plan: FabricPlan) -> dict[str, set[str]]:
    interfaces: dict[str, set[str]] = {}
    for name in (ocs.name for ocs in plan.ocses):
        optical = [link for link in plan.links if link.b.node == name and link.a.node == FABRIC]
        management = [link for link in plan.links if link.name == f"{name}/management"]
        interfaces[name] = {link.a.name for link in optical} | {link.b.name for link in management}
    return interfaces


INTERFACES: Final[Mapping[FailureKind, Callable[[FabricPlan], Mapping[str, set[str]]]]] = (
    MappingProxyType(
        {
            FailureKind.NIC: _nic_interfaces,
            FailureKind.SERVER: _server_interfaces,
            FailureKind.OCS: _ocs_interfaces,
        }
    )
)
"""By kind of failure: the interfaces of the fabric's own namespace that each component takes down.

These are the kinds that the fabric process injects itself.
"""


def failed_interfaces(plan: FabricPlan, failure: HardwareFailure) -> frozenset[str]:
    """Return the interfaces of the fabric's own namespace that a failure takes down.

    Raises:
        FabricError: if the fabric has no such component.
    """
    interfaces = INTERFACES[failure.kind](plan)
    for name in failure.what:
        if name not in interfaces:
            known = ", ".join(interfaces)
            reason = f" is not one of {known}" if known else f": the fabric has no {failure.kind}"
            raise FabricError(f"fault {failure.kind}: {name}{reason}")
    return frozenset().union(*(interfaces[name] for name in failure.what))


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
        clock_ns: Callable[[], int] = time.monotonic_ns,
        set_links: SetLinks = set_links,
    ) -> None:
        """Start without failures.

        Args:
            plan: the fabric.
            signal_agent: sends a signal to the agent of a server.
            clock_ns: CLOCK_MONOTONIC.
            set_links: switches interfaces of the fabric's own namespace on or off.
        """
        self._plan, self._signal_agent, self._clock_ns = plan, signal_agent, clock_ns
        self._set_links = set_links
        self._present: dict[int, HardwareFailure] = {}
        self._serial = itertools.count(1)
        self._down: frozenset[str] = frozenset()
        self.stopped_servers: frozenset[str] = frozenset()

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
        at_ns = self._clock_ns()
        if (failure := request.get("inject")) is not None:
            at_ns = self.inject(
                _parse_kind(_parse_object(failure).get("kind")),
                _parse_names(failure.get("what", ())),
            )
        if (failure := request.get("clear")) is not None:
            kind = _parse_object(failure).get("kind")
            cleared = self.clear(
                None if kind is None else _parse_kind(kind), _parse_names(failure.get("what", ()))
            )
        return {
            "at_ns": at_ns,
            "cleared": [asdict(failure) for failure in cleared],
            "faults": [asdict(failure) for failure in self._present.values()],
        }

    def inject(self, kind: FailureKind, what: Sequence[str]) -> int:
        """Inject a failure; return the instant just before it took effect.

        Raises:
            FabricError: if the fabric has no such component, or its machine is lost.
        """
        failure = HardwareFailure(kind, tuple(what), next(self._serial), self._clock_ns())
        if not what or not failed_interfaces(self._plan, failure):
            raise FabricError(f"fault {kind}: of what?")
        self._present[failure.number] = failure
        try:
            self._apply()
        except FabricError as error:
            del self._present[failure.number]
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
        down = frozenset().union(*(failed_interfaces(self._plan, failure) for failure in present))
        stopped = frozenset(
            name
            for failure in present
            if failure.kind is FailureKind.SERVER
            for name in failure.what
        )
        self._set_links(down - self._down, up=False)
        self._signal_agents(stopped - self.stopped_servers, signal.SIGSTOP)
        self._set_links(self._down - down, up=True)
        self._signal_agents(self.stopped_servers - stopped, signal.SIGCONT)
        self._down, self.stopped_servers = down, stopped

    def continue_agents(self) -> None:
        """Continue stopped agents, because a stopped process doesn't handle SIGTERM."""
        self._signal_agents(self.stopped_servers, signal.SIGCONT)
        self.stopped_servers = frozenset()

    def _signal_agents(self, servers: Iterable[str], number: signal.Signals) -> None:
        for server in sorted(servers):
            self._signal_agent(server, number)


def _parse_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FabricError(f"fault: {value!r} has no kind")
    return value


def _parse_kind(value: Any) -> FailureKind:
    if value not in INTERFACES:
        raise FabricError(f"fault: {value!r} is not one of {', '.join(INTERFACES)}")
    return FailureKind(value)


def _parse_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise FabricError(f"fault: {value!r} is no list of names")
    return tuple(value)
