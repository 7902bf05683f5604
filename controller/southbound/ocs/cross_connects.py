"""Cross-connects to remove and to add for a change, as the cross-connect mode allows."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from moefabric.core.ocs import CrossConnectMode

CrossConnect = tuple[int, int]
"""Input port, output port."""


class PortConflictError(ValueError):
    """A change needs a port that is in use, or removes a cross-connect that doesn't exist."""


@dataclass(frozen=True)
class RequestedChange:
    """A transition as cross-connects: those to remove, to keep and to add."""

    teardown: tuple[CrossConnect, ...] = ()
    kept: tuple[CrossConnect, ...] = ()
    setup: tuple[CrossConnect, ...] = ()


@dataclass(frozen=True)
class CrossConnectChange:
    """A change as a device executes it: removals before additions, so that ports are free in time.

    Devices that find a port busy take longer (Calient S320: 500 ms instead of 200 ms), or refuse.
    """

    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]

    def __bool__(self) -> bool:
        return bool(self.remove or self.add)

    def applied_to(self, current: Iterable[CrossConnect]) -> frozenset[CrossConnect]:
        """Return the cross-connects after the change, given the current ones."""
        return (frozenset(current) - set(self.remove)) | set(self.add)


def difference(
    current: Iterable[CrossConnect], target: Iterable[CrossConnect]
) -> CrossConnectChange:
    """Return the smallest change from `current` to `target`."""
    now, then = set(current), set(target)
    return CrossConnectChange(tuple(sorted(now - then)), tuple(sorted(then - now)))


def plan_change(
    current: Collection[CrossConnect], request: RequestedChange, mode: CrossConnectMode
) -> CrossConnectChange:
    """Return the change that a device has to execute.

    Args:
        current: Cross-connects of the region's ports.
        mode: Treatment of other cross-connects.

    Raises:
        PortConflictError: if the mode forbids the change.
    """
    if mode is CrossConnectMode.SAFE:
        if conflict := find_conflict(current, request.teardown, request.setup):
            raise PortConflictError(f"{conflict}; ocs.mode: update replaces what is in the way")
        return CrossConnectChange(tuple(sorted(request.teardown)), tuple(sorted(request.setup)))
    before, target = set(current), {*request.kept, *request.setup}
    new = target - before
    inputs, outputs = {p for p, _ in new}, {q for _, q in new}
    others = before - target
    remove = {c for c in others if c in request.teardown or c[0] in inputs or c[1] in outputs}
    if mode is CrossConnectMode.OVERWRITE:
        remove |= others
    return CrossConnectChange(tuple(sorted(remove)), tuple(sorted(new)))


def find_conflict(
    current: Iterable[CrossConnect], remove: Iterable[CrossConnect], add: Iterable[CrossConnect]
) -> str | None:
    """Return why a change would affect other cross-connects; None if it would not."""
    before, leaving = set(current), set(remove)
    if missing := sorted(leaving - before):
        return f"{format_cross_connects(missing)} not connected"
    inputs, outputs = {p for p, _ in before - leaving}, {q for _, q in before - leaving}
    if busy := [c for c in add if c[0] in inputs or c[1] in outputs]:
        there = sorted(c for c in before - leaving if any(c[0] == p or c[1] == q for p, q in busy))
        return f"{format_cross_connects(busy)} busy: {format_cross_connects(there)} connected"
    return None


def format_cross_connects(connects: Iterable[CrossConnect]) -> str:
    """Return cross-connects as text: `1-19, 7-13`."""
    return ", ".join(f"{p}-{q}" for p, q in connects)
