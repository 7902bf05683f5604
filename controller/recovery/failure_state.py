"""States of NICs as a controller observes them, and the failures that follow from them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moefabric.core.failure_kinds import FailureKind
from moefabric.core.nic import Nic, NicKind
from moefabric.core.topology import Fabric, Region


@dataclass(frozen=True)
class NicEvent:
    """A NIC's link, or its OCS port, went down or came up.

    Attributes:
        up: Whether it works now.
        at_ns: When this was noticed, CLOCK_MONOTONIC.
        ocs_port: Whether the event is about the OCS port instead of the link.
        follows_light: Whether the link also goes down when a working NIC has no light.
    """

    nic: Nic
    up: bool
    at_ns: int
    ocs_port: bool = False
    follows_light: bool = False


@dataclass(frozen=True)
class NicStates:
    """The NICs that have failed or have no light.

    Attributes:
        down: NICs without a link.
        failed_ports: NICs whose OCS port has failed.
        dark: NICs that lost their light while circuits on them carried traffic.
    """

    down: frozenset[Nic] = frozenset()
    failed_ports: frozenset[Nic] = frozenset()
    dark: frozenset[Nic] = frozenset()

    @property
    def out(self) -> frozenset[Nic]:
        """The NICs that carry no traffic."""
        return self.down | self.failed_ports | self.dark

    def after(self, events: Iterable[NicEvent]) -> "NicStates":
        """Return the states after some events, in order."""
        down, failed_ports, dark = set(self.down), set(self.failed_ports), set(self.dark)
        for event in events:
            nics = failed_ports if event.ocs_port else dark if event.follows_light else down
            (nics.discard if event.up else nics.add)(event.nic)
        return NicStates(frozenset(down), frozenset(failed_ports), frozenset(dark))


@dataclass(frozen=True)
class DetectedFailure:
    """A failed NIC or OCS port (`s0/o1`), OCS (`ocs0`), server (`s3`) or circuit."""

    what: str
    kind: FailureKind


def new_failures(
    fabric: Fabric, regions: Sequence[Region], before: NicStates, now: NicStates
) -> tuple[DetectedFailure, ...]:
    """Return the failures since `before`; an OCS or server is reported instead of all its NICs.

    Args:
        fabric: The fabric with all its NICs.
        regions: The regions whose NICs are all observed.
    """
    unexplained, failures = set(now.down - before.down), list[DetectedFailure]()
    for region in regions:
        parts = [DetectedFailure(server, FailureKind.SERVER) for server in region.servers]
        ocs = [DetectedFailure(region.ocs.name, FailureKind.OCS)] if region.ocs else []
        for part in ocs + parts:
            nics = _nics(fabric, part)
            if len(nics) > 1 and nics <= now.down and nics & unexplained:
                failures.append(part)
                unexplained -= nics
    for nic in sorted(unexplained | (now.dark - before.dark)):
        optical = nic.kind is NicKind.OPTICAL
        kind = FailureKind.OPTICAL_NIC if optical else FailureKind.ELECTRICAL_NIC
        failures.append(DetectedFailure(str(nic), kind))
    failed_ports = sorted(now.failed_ports - before.failed_ports)
    failures += [DetectedFailure(str(nic), FailureKind.OCS_PORT) for nic in failed_ports]
    return tuple(failures)


def _nics(fabric: Fabric, failure: DetectedFailure) -> set[Nic]:
    """Return the NICs that are down while the failure of an OCS or server lasts."""
    if failure.kind is FailureKind.SERVER:
        return set(fabric.nics(failure.what))
    region = next(r for r in fabric.regions if r.ocs and r.ocs.name == failure.what)
    return {nic for server in region.servers for nic in fabric.optical_nics(server)}


def persists(fabric: Fabric, failure: DetectedFailure, now: NicStates) -> bool:
    """Return whether a failure lasts, as far as NICs tell.

    An OCS or server is failed until one of its NICs is up. No NIC tells of a circuit's light.
    """
    if failure.kind is FailureKind.LIGHT:
        return True
    if failure.kind in (FailureKind.OCS, FailureKind.SERVER):
        return _nics(fabric, failure) <= now.down
    is_port = failure.kind is FailureKind.OCS_PORT
    return Nic.parse(failure.what) in (now.failed_ports if is_port else now.down | now.dark)
