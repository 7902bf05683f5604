"""Policies that fail, for tests of what becomes of a fabric under them."""

from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Split
from moefabric.planner.mixnet import SPILL
from moefabric.planner.pair_order import PairOrderPolicy
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


class Doubling(Raising):
    """Ends two circuits at one NIC."""

    def circuits(self, *_: Any) -> CircuitSet:
        return CircuitSet.of(["s0/o0~s1/o0", "s0/o0~s2/o0"])


class Electrical(Raising):
    """Ends a circuit at an electrical NIC."""

    def circuits(self, *_: Any) -> CircuitSet:
        return CircuitSet.of(["s0/e0~s1/o0"])


class Leaving(Raising):
    """Ends the program."""

    def circuits(self, *_: Any) -> CircuitSet:
        raise SystemExit(0)


class Undivided(Raising):
    """Returns no split."""

    def circuits(self, *_: Any) -> CircuitSet:
        return CircuitSet()

    def split(self, *_: Any) -> Split:
        return None  # type: ignore[return-value]


class Factless:
    """Raises an exception when it is asked for a fact."""

    name = "factless"
    reconfigures = splits_by_demand = suits_patch_panel = False
    circuits, split = Raising.circuits, Raising.split

    @property
    def forwards(self) -> bool:
        raise ValueError("no fact")


def no_order(_demand: object, _ports: object) -> Any:
    return None


UNORDERED = PairOrderPolicy("unordered", no_order)
BESIDE_ITSELF = PairOrderPolicy("beside-itself", lambda _demand, _ports: [(0, 0)])


class Sound(Raising):
    """Does what `spill` does."""

    def circuits(self, *arguments: Any) -> CircuitSet:
        return SPILL.circuits(*arguments)


def never() -> Raising:
    """Return no policy, however long one waits."""
    Event().wait()
    return Raising()
