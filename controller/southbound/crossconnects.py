"""Cross-connects: which have to go and which to come for a change, given what is joined and how bold one is."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from moefabric.ocs_control import Mode

CrossConnect = tuple[int, int]
"""Input port, output port."""


class ObstacleError(ValueError):
    """What is in the way of a change."""


@dataclass(frozen=True)
class Wanted:
    """A change as one asks for it: what is to go, what is to stay and what is to come."""

    out: tuple[CrossConnect, ...] = ()
    kept: tuple[CrossConnect, ...] = ()
    into: tuple[CrossConnect, ...] = ()


@dataclass(frozen=True)
class Moves:
    """A change as a device is told it: first what goes, then what comes, so that no port is busy when it is needed.

    Devices that find a port busy take longer over it (Calient S320: 500 ms instead of 200), or refuse.
    """

    out: tuple[CrossConnect, ...]
    into: tuple[CrossConnect, ...]

    def __bool__(self) -> bool:
        return bool(self.out or self.into)

    def after(self, joined: Iterable[CrossConnect]) -> frozenset[CrossConnect]:
        """What is joined once it is done."""
        return (frozenset(joined) - set(self.out)) | set(self.into)


def between(joined: Iterable[CrossConnect], target: Iterable[CrossConnect]) -> Moves:
    """The least that makes `target` of what is joined."""
    now, then = set(joined), set(target)
    return Moves(tuple(sorted(now - then)), tuple(sorted(then - now)))


def moves(
    joined: Collection[CrossConnect], wanted: Wanted, mode: Mode, own: Collection[int] | None = None
) -> Moves:
    """What a device whose ports are so joined has to be told. `own` are the ports that are ours to overwrite, inputs and outputs; None is all.

    ObstacleError where the mode forbids it.
    """
    if mode is Mode.SAFE:
        if why := obstacle(joined, wanted.out, wanted.into):
            raise ObstacleError(why)
        return Moves(tuple(sorted(wanted.out)), tuple(sorted(wanted.into)))
    before, target = set(joined), {*wanted.kept, *wanted.into}
    fresh = target - before
    inputs, outputs = {p for p, _ in fresh}, {q for _, q in fresh}
    gone = {c for c in before - target if c in wanted.out or c[0] in inputs or c[1] in outputs}
    if mode is Mode.OVERWRITE:
        gone |= {c for c in before - target if own is None or c[0] in own or c[1] in own}
    return Moves(tuple(sorted(gone)), tuple(sorted(fresh)))


def obstacle(
    joined: Iterable[CrossConnect], out: Iterable[CrossConnect], into: Iterable[CrossConnect]
) -> str | None:
    """Why `out` can't be taken out of what is joined, or `into` not be put in then; None where nothing is in the way."""
    before, leaving = set(joined), set(out)
    if missing := sorted(leaving - before):
        return f"{said(missing)} not connected"
    inputs, outputs = {p for p, _ in before - leaving}, {q for _, q in before - leaving}
    if busy := [c for c in into if c[0] in inputs or c[1] in outputs]:
        return f"{said(busy)} busy"
    return None


def said(connects: Iterable[CrossConnect]) -> str:
    """Cross-connects in words: `1-19, 7-13`."""
    return ", ".join(f"{p}-{q}" for p, q in connects)
