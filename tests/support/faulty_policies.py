"""Policies that fail, for tests of what becomes of a fabric under them."""

from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Split
from moefabric.planner.mixnet import SPILL
from moefabric.planner.policy import PolicyTraits


@dataclass(frozen=True)
class Raising(PolicyTraits):
    """Raises an exception when it is asked for circuits."""

    name: str = "raising"

    def circuits(self, *_: Any) -> CircuitSet:
        raise ValueError("no\nidea")

    def split(self, *arguments: Any) -> Split:
        return SPILL.split(*arguments)


class Endless(Raising):
    """Computes for ever, and catches exceptions on its way."""

    def circuits(self, *_: Any) -> CircuitSet:
        while True:
            with suppress(Exception):
                sum(range(1000))


class Foreign(Raising):
    """Joins servers that are not there."""

    def circuits(self, *_: Any) -> CircuitSet:
        return CircuitSet.of(["s77/o0~s78/o0"])


class Listing(Raising):
    """Returns a list instead of circuits."""

    def circuits(self, *_: Any) -> CircuitSet:
        return ["s0/o0~s1/o0"]  # type: ignore[return-value]


class Losing(Raising):
    """Loses half of the bytes over the EPS."""

    def circuits(self, *arguments: Any) -> CircuitSet:
        return SPILL.circuits(*arguments)

    def split(self, *arguments: Any) -> Split:
        shares = SPILL.split(*arguments)
        return Split(
            tuple(
                replace(share, light_bytes=share.light_bytes / 2, eps_bytes=share.eps_bytes / 2)
                for share in shares
            )
        )


class Sound(Raising):
    """Does what `spill` does."""

    def circuits(self, *arguments: Any) -> CircuitSet:
        return SPILL.circuits(*arguments)


def never() -> Raising:
    """Return no policy, however long one waits."""
    Event().wait()
    return Raising()
