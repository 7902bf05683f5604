"""Failures: what breaks while a job runs, when it is made to, and what came of it, as the notes of all who saw it tell."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Final

from moefabric.failure_log import Note
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S


class Kind(StrEnum):
    """What may break."""

    NIC = "nic"
    OCS_PORT = "ocs-port"
    OCS = "ocs"
    GPU = "gpu"
    SERVER = "server"
    CONTROLLER = "controller"


class How(StrEnum):
    """In which way a controller fails."""

    KILL = "kill"
    STOP = "stop"


@dataclass(frozen=True)
class Failure:
    """Something that breaks: NICs (`s0/e0`), optical NICs' OCS ports (`s0/o0`), OCSes, GPUs (`s1/3`), servers, controllers (a region's name)."""

    kind: Kind
    what: tuple[str, ...]
    how: How = How.KILL

    def __str__(self) -> str:
        stopped = " (stopped)" if self.kind is Kind.CONTROLLER and self.how is How.STOP else ""
        return f"{self.kind} {' '.join(self.what)}{stopped}"


def has(fabric: Fabric, kind: Kind, name: str) -> bool:
    """Whether there is such a thing in the fabric."""
    match kind:
        case Kind.NIC:
            return any(name == str(nic) for server in fabric.servers for nic in fabric.nics(server))
        case Kind.OCS_PORT:
            return any(name == str(nic) for server in fabric.servers for nic in fabric.optical_nics(server))
        case Kind.OCS:
            return name in {region.ocs.name for region in fabric.regions if region.ocs is not None}
        case Kind.GPU:
            server, _, index = name.partition("/")
            return server in fabric.index and index.isdecimal() and int(index) < fabric.gpus
        case Kind.SERVER:
            return name in fabric.index
        case Kind.CONTROLLER:
            return name in {"eps", *(region.name for region in fabric.regions)}


@dataclass(frozen=True)
class Planned:
    """When it breaks: `after_ns` of model time into a collective of an iteration (counted from 0), or into the iteration where that is None.

    It is mended at the start of iteration `clear`, if ever.
    """

    failure: Failure
    iteration: int
    collective: int | None = None
    after_ns: int = 0
    clear: int | None = None


@dataclass(frozen=True)
class Window:
    """An iteration as it went, on the wall's clock, what was mended before it included; `seconds` are the model's."""

    number: int
    start_ns: int
    end_ns: int
    seconds: float


@dataclass(frozen=True)
class Told:
    """What came of a failure, in instants of CLOCK_MONOTONIC; None is never."""

    kind: str
    what: tuple[str, ...]
    injected_ns: int
    detected_ns: int | None = None
    recovered_ns: int | None = None
    cleared_ns: int | None = None
    detected_by: str = ""
    action: str = ""

    def disturbs(
        self, start_ns: int, end_ns: int, planned_ns: Sequence[int] = (), reopened_ns: Sequence[int] = ()
    ) -> bool:
        """Whether what went on from `start_ns` to `end_ns` felt it, and wasn't planned with it in mind.

        Light was planned anew at `planned_ns`; until `reopened_ns` connections that went with a server or a GPU carried their first bytes again.
        """
        reopened = (at for at in reopened_ns if self.kind in (Kind.SERVER, Kind.GPU))
        known = self.recovered_ns
        slow = next((at for at in reopened if known is not None and at >= known), None)
        spans = [*self._felt(planned_ns), *([(known or 0, slow)] if slow is not None else [])]
        return any(begins <= end_ns and (ends is None or start_ns < ends) for begins, ends in spans)

    def _felt(self, planned_ns: Sequence[int]) -> Iterator[tuple[int, int | None]]:
        """From when to when. Nobody plans with an electrical NIC less, and light that is lost, or back, is known when it is planned next."""
        light = self.kind in (Kind.OCS, Kind.OCS_PORT) or (self.kind == Kind.NIC and not self._electrical)
        known = self.recovered_ns
        if light and known is not None:
            known = next((at for at in planned_ns if at >= known), None)
        ends = [] if self._electrical else [known]
        yield self.injected_ns, min((at for at in (*ends, self.cleared_ns) if at is not None), default=None)
        if self.cleared_ns is not None:
            later = (
                [at for at in planned_ns if at >= self.cleared_ns]
                if light or self.kind == Kind.SERVER
                else []
            )
            yield self.cleared_ns, later[0] if later else self.cleared_ns

    @property
    def _electrical(self) -> bool:
        return self.kind == Kind.NIC and any("/e" in name for name in self.what)

    def lasts(self, start_ns: int, end_ns: int) -> bool:
        """Whether something was broken for some of that time."""
        ends = self.cleared_ns if self.cleared_ns is not None else self._mended_ns
        return self.injected_ns <= end_ns and (ends is None or start_ns <= ends)

    @property
    def _mended_ns(self) -> int | None:
        """A controller is as before when it is back; all else stays broken until somebody mends it."""
        return self.recovered_ns if self.kind == Kind.CONTROLLER else None


def told(notes: Sequence[Note]) -> list[Told]:
    """The failures that were injected, each with what was noted about the same things until they were injected again, in order."""
    made = []
    for position, note in enumerate(notes):
        if note.do != "inject":
            continue
        later = [n for n in notes[position + 1 :] if _about(note, n)]
        until = next((n.at_ns for n in later if n.do == "inject"), inf)
        cleared = next((n.at_ns for n in later if n.do == "clear" and n.at_ns < until), None)
        # What comes after all is mended tells of the mending.
        seen = [n for n in later if n.at_ns < until and (cleared is None or n.at_ns <= cleared)]
        detected = next((n for n in seen if n.do == "detected"), None)
        by = dict.fromkeys(n.why for n in seen if n.do == "detected" and n.why)
        ways = dict.fromkeys(n.why for n in seen if n.do == "recovered" and n.why)
        made.append(
            Told(
                note.kind, note.what, note.at_ns, detected.at_ns if detected else None,
                _recovered_ns(note, seen), cleared, "; ".join(by), "; ".join(ways),
            )
        )  # fmt: skip
    return made


def _about(injected: Note, other: Note) -> bool:
    """Whether a note is about what was injected; controllers tell kinds of NICs apart."""
    same = other.kind in {injected.kind, *_ALSO.get(injected.kind, ())}
    return same and any(_covers(other, name) for name in injected.what)


def _covers(other: Note, name: str) -> bool:
    """Whether a note is about this, or about the server that it is in: one with all NICs out is no server any more."""
    return name in other.what or (other.kind == Kind.SERVER and name.partition("/")[0] in other.what)


_ALSO: Final = {"nic": ("electrical-nic", "optical-nic", "server"), "ocs-port": ("optical-nic",)}


def _recovered_ns(injected: Note, seen: Sequence[Note]) -> int | None:
    """When the last of what was injected had recovered; None while one hasn't."""
    firsts = [
        next((n.at_ns for n in seen if n.do == "recovered" and _covers(n, name)), None)
        for name in injected.what
    ]
    known = [at for at in firsts if at is not None]
    return max(known) if len(known) == len(firsts) else None


def healthy(failures: Iterable[Told], windows: Iterable[Window]) -> list[Window]:
    """The iterations in which nothing was broken, mended or being mended."""
    known = list(failures)
    return [
        window
        for window in windows
        if not any(
            each.lasts(window.start_ns, window.end_ns) or each.disturbs(window.start_ns, window.end_ns)
            for each in known
        )
    ]


def to_json(failures: Sequence[Told], windows: Sequence[Window]) -> list[dict[str, Any]]:
    """As a run's JSON has them.

    `injected_s` is wall seconds after the start of its `iteration`; `detected_s` and `recovered_s` are wall seconds after that, so that dilation
    can't flatter them. `slow_down` is that of its iteration against the median of the healthy ones, `slow_down_after` that of the iterations
    after it which it lasted for, None where there are none.
    """
    calm = sorted(window.seconds for window in healthy(failures, windows))
    base = (calm[(len(calm) - 1) // 2] + calm[len(calm) // 2]) / 2 if calm else None
    return [_json(each, windows, base) for each in failures]


def _json(failure: Told, windows: Sequence[Window], base: float | None) -> dict[str, Any]:
    at = failure.injected_ns
    fell = next((w for w in windows if w.start_ns <= at <= w.end_ns), None)
    fell = fell or next((w for w in windows if at <= w.start_ns), None)
    after = [w.seconds for w in windows if fell and w.number > fell.number and failure.lasts(w.start_ns, w.end_ns)
             and (failure.cleared_ns is None or w.end_ns < failure.cleared_ns)]  # fmt: skip
    return {
        "kind": failure.kind,
        "what": list(failure.what),
        "iteration": fell.number if fell else None,
        "injected_s": max(0, at - fell.start_ns) / NS_PER_S if fell else None,
        "detected_s": _since(failure.detected_ns, at),
        "recovered_s": _since(failure.recovered_ns, at),
        "cleared_s": _since(failure.cleared_ns, at),
        "detected_by": failure.detected_by,
        "action": failure.action,
        "slow_down": fell.seconds / base - 1 if fell and base else None,
        "slow_down_after": sum(after) / len(after) / base - 1 if after and base else None,
        "ok": failure.recovered_ns is not None,
    }


def _since(at_ns: int | None, injected_ns: int) -> float | None:
    return None if at_ns is None else (at_ns - injected_ns) / NS_PER_S
