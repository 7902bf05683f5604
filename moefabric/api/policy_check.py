"""Tries a policy in many situations against the laws of policies, and measures its time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any, Final

from moefabric.planner.laws import LAWS, CallError, Law, Situation, Trial, situations, tried
from moefabric.planner.policy import Policy
from moefabric.report.formatting import counted, wrapped

SERVERS: Final = (2, 3, 4, 5, 8, 16)
"""Servers of the regions in which laws are tried."""
TIMED_SERVERS: Final = (8, 16, 32, 64, 128)
_TIMED_KIND: Final = "skewed"
_CALLS: Final = 3
_LONGEST_S: Final = 10.0
"""Seconds of a call after which larger regions are left out."""


@dataclass(frozen=True)
class LawResult:
    """The number of times that a policy broke a law.

    Attributes:
        law: Name of the law.
        text: The law.
        outcome: `kept`, `broken`, `warning` where the law is advice, or `not tried` if each trial
            ended before this law.
        breaches: In how many situations the law was broken.
        first: What was wrong in the first of these, and the situation; empty if there is none.
        tried: In how many situations the law was tried.
    """

    law: str
    text: str
    outcome: str
    breaches: int
    first: str
    tried: int


@dataclass(frozen=True)
class PolicyReport:
    """Findings of a check of a policy.

    Attributes:
        policy: Name of the policy.
        situations: Number of situations.
        laws: A result for each law.
        seconds: Least time of circuits and split by number of servers; None if it was left out.
    """

    policy: str
    situations: int
    laws: tuple[LawResult, ...]
    seconds: Mapping[int, float | None]

    @property
    def keeps_all_laws(self) -> bool:
        """True if no law was broken, advice aside."""
        return all(result.outcome != "broken" for result in self.laws)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `moefabric policy check --json` prints."""
        seconds = {str(servers): seconds for servers, seconds in self.seconds.items()}
        return asdict(self) | {"seconds": seconds}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the report as a table."""
        yield f"{self.policy}: {self.situations} situations"
        for result in self.laws:
            yield _line(result.text, result.outcome, result.law)
            if result.breaches:
                yield _line(f"{counted(result.breaches, 'time')}; first: {result.first}")
            elif 0 < result.tried < self.situations:
                yield _line(f"tried in {result.tried} of them: the other trials ended before")
        if self.seconds:
            yield "  time     " + "".join(f"{servers:>10}" for servers in self.seconds) + " servers"
            cells = (
                f"{'-':>10}" if seconds is None else f"{seconds * 1e3:>10.2f}"
                for seconds in self.seconds.values()
            )
            yield "           " + "".join(cells) + " ms"


def _line(text: str, outcome: str = "", law: str = "") -> str:
    """Return a text that is wrapped beside an outcome and a law."""
    head = f"  {outcome:<9} {law:<15} "
    return head + wrapped(text, len(head))


def check_policy(
    policy: Policy,
    servers: Sequence[int] = SERVERS,
    timed_servers: Sequence[int] = TIMED_SERVERS,
    seed: int = 1,
) -> PolicyReport:
    """Try a policy in many situations, and measure its time.

    Args:
        servers: Sizes of the regions in which laws are tried.
        timed_servers: Sizes, in ascending order, at which the policy's time is measured.
        seed: Seed of the demands.

    Returns:
        The report; the same laws are kept or broken for equal arguments.
    """
    first: dict[str, str] = {}
    trials = dict.fromkeys((law.name for law in LAWS), 0)
    breaches = dict(trials)
    forwarding = bool(policy.forwards)
    cases = [case for n in servers for case in situations(n, seed, forwarding=forwarding)]
    for situation in cases:
        for law, faults in tried(policy, situation):
            trials[law.name] += 1
            if faults:
                breaches[law.name] += 1
                first.setdefault(law.name, f"{faults[0]} ({situation})")
    laws = tuple(
        _law_result(law, trials[law.name], breaches[law.name], first.get(law.name, ""))
        for law in LAWS
    )
    report = PolicyReport(str(policy.name), len(cases), laws, {})
    if not report.keeps_all_laws:
        return report
    try:
        return replace(report, seconds=dict(_times(policy, timed_servers, seed)))
    except CallError as error:
        calls = replace(laws[0], outcome="broken", breaches=1, first=str(error))
        return replace(report, laws=(calls, *laws[1:]))


def _law_result(law: Law, trials: int, breaches: int, first: str) -> LawResult:
    outcome = "kept" if trials else "not tried"
    if breaches:
        outcome = "warning" if law.is_advice else "broken"
    return LawResult(law.name, law.text, outcome, breaches, first, trials)


def _times(policy: Policy, servers: Sequence[int], seed: int) -> Iterator[tuple[int, float | None]]:
    took_s = 0.0
    for size in servers:
        if took_s > _LONGEST_S:
            yield size, None
            continue
        every = situations(size, seed, forwarding=bool(policy.forwards))
        situation = next(one for one in every if one.kind == _TIMED_KIND)
        try:
            took_s = _least_s(policy, situation)
        except CallError as error:
            raise CallError(f"{error} ({situation})") from error
        yield size, took_s


def _least_s(policy: Policy, situation: Situation) -> float:
    """Return the least seconds of some calls; one call if that is long."""
    least = float("inf")
    for _ in range(_CALLS):
        trial, started_s = Trial(policy, situation), perf_counter()
        trial.divide(situation.demand, trial.circuits)
        least = min(least, perf_counter() - started_s)
        if least > _LONGEST_S / _CALLS:
            break
    return least
