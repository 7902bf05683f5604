"""Findings: what a controller found to have failed, when, what it did about it, and when that was done; for who asks, and who waits."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from controller.failures import Failed, Failure

KEPT: Final = 1000


class Bell(Protocol):
    """Something that happens once, and that one can wait for."""

    def set(self) -> None: ...
    def wait(self, seconds: float, /) -> object: ...


@dataclass(frozen=True)
class Finding:
    """One failure. Instants are of CLOCK_MONOTONIC in ns; `recovered_ns` is when traffic had another way, `cleared_ns` when the thing worked again."""

    number: int
    what: str
    kind: str
    detected_ns: int
    recovered_ns: int | None = None
    cleared_ns: int | None = None
    action: str = ""

    @property
    def failure(self) -> Failure:
        """What has failed."""
        return Failure(self.what, Failed(self.kind))


class Findings:
    """What one controller found, in order: what stands, and the last thousand of what is over."""

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        bell: Callable[[], Bell] = threading.Event,
    ) -> None:
        self._clock_ns, self._bell = clock_ns, bell
        self._found: dict[int, Finding] = {}
        self._made = 0
        self.version = 0
        """Another one after each change."""
        self._next = bell()

    def standing(self) -> list[Finding]:
        """Those that are not over."""
        return [finding for finding in self._found.values() if finding.cleared_ns is None]

    def detected(self, failures: Iterable[Failure], at_ns: int) -> list[int]:
        """These have failed; the numbers of those that weren't known."""
        known = {(finding.what, finding.kind) for finding in self.standing()}
        new = [failure for failure in failures if (failure.what, failure.kind.value) not in known]
        for failure in new:
            self._made += 1
            self._found[self._made] = Finding(self._made, failure.what, failure.kind.value, at_ns)
            for over in [n for n, one in self._found.items() if one.cleared_ns is not None][:-KEPT]:
                del self._found[over]
        if new:
            self._ring()
        return list(range(self._made - len(new) + 1, self._made + 1))

    def acted(self, number: int, action: str, *, recovered: bool = True) -> None:
        """This was done about a failure; `recovered` if traffic has a way by that, for the first time."""
        finding = self._found[number]
        done = f"{finding.action}; {action}" if finding.action else action
        at = finding.recovered_ns or (self._clock_ns() if recovered else None)
        self._found[number] = replace(finding, action=done, recovered_ns=at)
        self._ring()

    def cleared(self, over: Callable[[Finding], bool]) -> list[Finding]:
        """Those that stand and are over work again; which they were."""
        gone = [finding for finding in self.standing() if over(finding)]
        at_ns = self._clock_ns()
        for finding in gone:
            self._found[finding.number] = replace(finding, cleared_ns=at_ns)
        if gone:
            self._ring()
        return gone

    def told(self, after: int | None = None, patience_s: float = 30.0) -> dict[str, Any]:
        """`version` and all `failures`; with `after`, once the version is beyond that, or after `patience_s`."""
        if after is not None and self.version <= after:
            self._next.wait(patience_s)
        return {"version": self.version, "failures": [asdict(finding) for finding in self._found.values()]}

    def _ring(self) -> None:
        self.version += 1
        rung, self._next = self._next, self._bell()
        rung.set()
