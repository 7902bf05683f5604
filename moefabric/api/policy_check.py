"""Tries a policy in many situations against the laws of policies, and measures its time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from time import perf_counter
from typing import Any, Final

from moefabric.config.guarded_policy import TimeIsUpError, time_limit
from moefabric.core.errors import SpecError
from moefabric.planner.laws import LAWS, CallError, Law, Situation, Trial, situations, tried
from moefabric.planner.plan import HorizonPolicy
from moefabric.planner.policy import Policy, PolicyTraits
from moefabric.report.formatting import counted, wrapped

SERVERS: Final = (2, 3, 4, 5, 8, 16)
"""Servers of the regions in which laws are tried."""
TIMED_SERVERS: Final = (8, 16, 32, 64, 128)
_TIMED_KIND: Final = "skewed"
_CALLS: Final = 3
_LONGEST_S: Final = 10.0
"""Seconds of a call after which larger regions are left out."""
_LONGEST_EXPECTED_S: Final = 30.0
"""Seconds of a call, at the growth so far, for which a region is left out."""
_OURS: Final = "moefabric."
_LAW_NAMES: Final = tuple(law.name for law in LAWS)
_NAMES: Final = "names"
_NAMES_TEXT: Final = "no method has almost the name of one of a policy"
_ALIKE: Final = 0.8
"""Similarity of a name that may be meant for another one."""


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
        next_part: What is checked next, such as `laws at 8 servers`; empty if the check is whole.
        next_size: Servers of the regions there.
        unfinished: Why the check ended before it was whole, and what helps; empty if it is.
    """

    policy: str
    situations: int
    laws: tuple[LawResult, ...]
    seconds: Mapping[int, float | None]
    next_part: str = ""
    next_size: int = 0
    unfinished: str = ""

    @property
    def keeps_all_laws(self) -> bool:
        """True if no law was broken, advice aside."""
        return all(result.outcome != "broken" for result in self.laws)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `moefabric policy check --json` prints."""
        seconds = {str(servers): seconds for servers, seconds in self.seconds.items()}
        document = asdict(self) | {"seconds": seconds}
        del document["next_part"], document["next_size"]
        return document

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
        if self.unfinished:
            yield "  unfinished: " + wrapped(self.unfinished, len("  unfinished: "))


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
    *_, report = reports_so_far(policy, servers, timed_servers, seed)
    return report


@dataclass
class _Trials:
    """What the trials of laws have shown so far, by name of the law."""

    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LAW_NAMES, 0))
    breaches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LAW_NAMES, 0))
    first: dict[str, str] = field(default_factory=dict)
    situations: int = 0

    def add(self, policy: Policy, situation: Situation) -> None:
        """Try all laws in a situation."""
        for law, faults in tried(policy, situation):
            self.tried[law.name] += 1
            if faults:
                self.breaches[law.name] += 1
                self.first.setdefault(law.name, f"{faults[0]} ({situation})")
        self.situations += 1

    def report(self, policy: Policy, next_size: int = 0) -> PolicyReport:
        """Return the report so far, with the size that is next."""
        laws = [self._result(law) for law in LAWS]
        if near := "; ".join(_near_names(policy)):
            laws.append(LawResult(_NAMES, _NAMES_TEXT, "warning", 1, near, self.situations))
        next_part = f"laws at {next_size} servers" if next_size else ""
        name, count = str(policy.name), self.situations
        return PolicyReport(name, count, tuple(laws), {}, next_part, next_size)

    def _result(self, law: Law) -> LawResult:
        breaches, trials = self.breaches[law.name], self.tried[law.name]
        outcome = "kept" if trials else "not tried"
        if breaches:
            outcome = "warning" if law.is_advice else "broken"
        first = self.first.get(law.name, "")
        return LawResult(law.name, law.text, outcome, breaches, first, trials)


def reports_so_far(
    policy: Policy, servers: Sequence[int], timed_servers: Sequence[int], seed: int
) -> Iterator[PolicyReport]:
    """Yield the report so far before each step of a check, and at last the whole one.

    The arguments are those of `check_policy`. Steps are situations, and sizes that are timed.
    """
    trials = _Trials()
    for size in servers:
        for situation in situations(size, seed, forwarding=bool(policy.forwards)):
            yield trials.report(policy, size)
            trials.add(policy, situation)
    report = trials.report(policy)
    if not report.keeps_all_laws:
        yield report
        return
    for size in timed_servers:
        yield replace(report, next_part=f"times at {size} servers", next_size=size)
        try:
            took_s = _time(policy, size, seed, report.seconds)
        except CallError as error:
            calls = replace(report.laws[0], outcome="broken", breaches=1, first=str(error))
            yield replace(report, laws=(calls, *report.laws[1:]), seconds={})
            return
        report = replace(report, seconds={**report.seconds, size: took_s})
    yield report


def check_within(
    limit_s: float,
    policies: Iterable[Policy],
    largest: int = TIMED_SERVERS[-1],
    seed: int = 1,
    on_part: Callable[[str], None] = lambda _: None,
) -> list[PolicyReport]:
    """Check policies until a time is up, and return what is known of them by then.

    Args:
        policies: The policies; what loads them counts.
        largest: Servers of the largest region in which laws are tried and times measured.
        on_part: Called with each part of the check when it begins, such as `laws at 8 servers`.

    Raises:
        SpecError: If the time is up while a policy loads.
    """
    sizes, timed = [[n for n in all_ if n <= largest] for all_ in (SERVERS, TIMED_SERVERS)]
    reports: list[PolicyReport] = []
    started_s = perf_counter()
    try:
        with time_limit(limit_s):
            for policy in policies:
                so_far = reports_so_far(policy, sizes, timed, seed)
                reports.append(next(so_far))
                for report in so_far:
                    if report.next_part != reports[-1].next_part:
                        started_s = perf_counter()
                        on_part(report.next_part)
                    reports[-1] = report
    except TimeIsUpError:
        fault, more = f"the check takes longer than {limit_s:g} s", "--limit allows more"
        if not reports or not reports[-1].next_part:
            raise SpecError([("policy check", f"{fault}: {more}")]) from None
        took = f"{reports[-1].next_part} took the last {perf_counter() - started_s:.1f} s"
        below = [size for size in (*sizes, *timed) if size < reports[-1].next_size]
        leave_out = f"--up-to {max(below)} leaves larger regions out, " if below else ""
        unfinished = f"{fault}, and {took}: {leave_out}{more}"
        reports[-1] = replace(reports[-1], unfinished=unfinished)
    return reports


def _near_names(policy: Policy) -> Iterator[str]:
    """Yield the methods that may be meant for one of policies that the author hasn't written."""
    authors = [c for c in type(policy).__mro__ if not c.__module__.startswith((_OURS, "builtins"))]
    written = {name: base for base in reversed(authors) for name in vars(base)}
    known = {*dir(Policy), *dir(HorizonPolicy), *dir(PolicyTraits)}
    for name in sorted(name for name in written.keys() - known if not name.startswith("_")):
        for alike in get_close_matches(name, known - written.keys(), n=1, cutoff=_ALIKE):
            yield f"{written[name].__name__}.{name} is never called; did you mean {alike}?"


def _time(policy: Policy, size: int, seed: int, before: Mapping[int, float | None]) -> float | None:
    """Return the least seconds of circuits and split; None if that would take too long."""
    earlier = [*before.values()]
    if earlier and (earlier[-1] is None or earlier[-1] > _LONGEST_S):
        return None
    if len(earlier) > 1 and earlier[-2] and earlier[-1]:
        expected_s = earlier[-1] ** 2 / earlier[-2]
        if expected_s > _LONGEST_EXPECTED_S:
            return None
    every = situations(size, seed, forwarding=bool(policy.forwards))
    situation = next(one for one in every if one.kind == _TIMED_KIND)
    try:
        return _least_s(policy, situation)
    except CallError as error:
        raise CallError(f"{error} ({situation})") from error


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
