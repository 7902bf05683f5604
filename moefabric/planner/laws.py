"""Laws that every policy keeps, whoever wrote it, and situations in which they are tried.

A law that is broken makes plans wrong: packets would take circuits that don't exist, or bytes would
be lost. A breach that only makes plans slow is reported as advice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import isclose, isfinite
from typing import Final, TypeVar

import numpy as np

from moefabric.core.circuits import CircuitConflictError, CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.errors import fault_text
from moefabric.core.flows import Split
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Array
from moefabric.planner.pair_order import PairOrderPolicy
from moefabric.planner.plan import Plan
from moefabric.planner.policy import EpsOnly, Policy

_ROUNDING: Final = 1e-9
_NIC_RATE_BPS: Final = 100e9
_MESSAGE_BYTES: Final = 1e8
"""Mean bytes of a pair of servers in a situation."""

T = TypeVar("T")


@dataclass(frozen=True)
class Situation:
    """The arguments with which a policy is called.

    Attributes:
        fabric: A fabric of one region, perhaps with NICs out of service.
        demand: Bytes between its servers.
        lit: Circuits that are lit.
        kind: The demand's kind, such as `skewed`.
    """

    fabric: Fabric
    demand: DemandMatrix
    lit: CircuitSet
    kind: str = ""

    @property
    def region(self) -> Region:
        """The region."""
        return self.fabric.regions[0]

    def __str__(self) -> str:
        fabric = self.fabric
        nics = f"{fabric.optical} optical and {fabric.electrical} electrical NICs"
        out = f" ({len(fabric.unusable_nics)} out)" if fabric.unusable_nics else ""
        return f"{len(fabric.servers)} servers of {nics}{out}, demand {self.kind}"


class CallError(Exception):
    """A policy raised an exception, or returned something else than circuits or a split."""


@contextmanager
def calling(policy: Policy, method: str) -> Iterator[None]:
    """Turn what a policy's method raises into a CallError, which names the place."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a policy of others may raise anything
        raise CallError(fault_text(error, code_of(policy, method))) from error


def code_of(policy: Policy, method: str) -> object:
    """Return the code that a policy's author wrote for a method: an order of pairs, or itself."""
    if method == "circuits" and isinstance(policy, PairOrderPolicy):
        return policy.order
    return getattr(policy, method)


def returned(method: str, kind: type[T], result: object) -> T:
    """Return what a policy's method returned; raises TypeError if it is of another type."""
    if not isinstance(result, kind):
        raise TypeError(f"{method}() returned {type(result).__name__}, not a {kind.__name__}")
    return result


class Trial:
    """A policy in a situation. Circuits and split are computed once, when a law first needs them.

    Args:
        situation: Arguments of the policy's calls.

    Raises:
        CallError: From each call of the policy that fails.
    """

    def __init__(self, policy: Policy, situation: Situation) -> None:
        self.policy, self.situation = policy, situation

    def choose(
        self, demand: DemandMatrix | None = None, lit: CircuitSet | None = None
    ) -> CircuitSet:
        """Return the policy's choice, for another demand or other lit circuits if given."""
        situation = self.situation
        demand = situation.demand if demand is None else demand
        lit = situation.lit if lit is None else lit
        with calling(self.policy, "circuits"):
            chosen = self.policy.circuits(situation.fabric, situation.region, demand, lit)
            return returned("circuits", CircuitSet, chosen)

    def divide(self, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Return the policy's split."""
        with calling(self.policy, "split"):
            split = self.policy.split(self.situation.fabric, demand, circuits)
            return returned("split", Split, split)

    @cached_property
    def circuits(self) -> CircuitSet:
        """The circuits that the policy chooses."""
        return self.choose()

    @cached_property
    def plan(self) -> Plan:
        """The plan of these circuits."""
        s = self.situation
        return Plan(s.fabric, s.region, s.demand, self.policy, self.circuits)

    @cached_property
    def split(self) -> Split:
        """The split over these circuits."""
        plan = self.plan
        with calling(self.policy, "split"):
            return returned("split", Split, plan.split)


def port_faults(fabric: Fabric, region: Region, circuits: CircuitSet) -> Iterator[str]:
    """Yield the ends of circuits that are no optical NICs of the region."""
    optical = {nic for server in region.servers for nic in fabric.optical_nics(server)}
    if strange := sorted(map(str, circuits.nics - optical)):
        yield f"{', '.join(strange)}: not an optical NIC of {region.name}"


def service_faults(fabric: Fabric, circuits: CircuitSet) -> Iterator[str]:
    """Yield the ends of circuits that are out of service."""
    if out := sorted(map(str, circuits.nics & fabric.unusable_nics)):
        yield f"{', '.join(out)}: out of service, but a circuit ends there"


def byte_faults(demand: DemandMatrix, split: Split) -> Iterator[str]:
    """Yield the pairs whose shares differ from the bytes that they owe."""
    owed = {(a, b): size for a, b, size in demand.pairs()}
    pairs = [(share.src, share.dst) for share in split]
    if len(set(pairs)) != len(pairs) or set(pairs) != set(owed):
        wrong = sorted(set(pairs) ^ set(owed)) or [p for p in pairs if pairs.count(p) > 1]
        a, b = wrong[0]
        yield f"{a} to {b}: {pairs.count((a, b))} shares of {owed.get((a, b), 0.0):,.0f} bytes owed"
        return
    for share in split:
        parts = share.light_bytes, share.eps_bytes, *(size for _, size in share.forwarded)
        due, place = owed[share.src, share.dst], f"{share.src} to {share.dst}"
        if impossible := [part for part in parts if not isfinite(part) or part < 0]:
            yield f"{place}: a part of {impossible[0]:,.0f} bytes"
        elif not isclose(share.bytes, due):
            yield f"{place}: {share.bytes:,.0f} bytes sent, {due:,.0f} owed"
        elif not isclose(lanes := sum(n for *_, n in share.forwarded_lanes), share.forwarded_bytes):
            yield f"{place}: {lanes:,.0f} bytes by lanes, {share.forwarded_bytes:,.0f} by trees"


def light_faults(fabric: Fabric, circuits: CircuitSet, split: Split) -> Iterator[str]:
    """Yield the shares over circuits or forwarding servers that the fabric lacks."""
    for share in split:
        place = f"{share.src} to {share.dst}"
        if share.light_bytes and not circuits.between(share.src, share.dst):
            yield f"{place}: {share.light_bytes:,.0f} bytes by light, but no circuit joins them"
        if share.forwarded and not fabric.forwarding:
            yield f"{place}: other servers forward bytes, but servers don't forward here"


@dataclass(frozen=True)
class Law:
    """A statement that holds for every policy in every situation.

    Attributes:
        name: A word or two.
        text: The statement.
        faults: Yields the faults that a trial has.
        is_advice: Whether a breach only makes plans slow.
    """

    name: str
    text: str
    faults: Callable[[Trial], Iterator[str]]
    is_advice: bool = False


def _matching(trial: Trial) -> Iterator[str]:
    try:
        _ = trial.circuits
    except CallError as error:
        if not isinstance(error.__cause__, CircuitConflictError):
            raise
        yield str(error)


def _bound(trial: Trial) -> Iterator[str]:
    predicted_s, bound_s = trial.plan.predicted_s, trial.plan.bound_s
    if predicted_s * (1 + _ROUNDING) < bound_s:
        yield f"predicted to end in {predicted_s:g} s, {bound_s:g} s are needed at least"


def _deterministic(trial: Trial) -> Iterator[str]:
    demand = trial.situation.demand
    copy = DemandMatrix(demand.servers, demand.array.tolist())
    if trial.choose(copy) != trial.circuits:
        yield "an equal demand gives other circuits"
    if trial.divide(copy, trial.circuits) != trial.split:
        yield "an equal demand over equal circuits gives another split"
    if demand.array.tolist() != copy.array.tolist():
        yield "the demand was changed"


def _static(trial: Trial) -> Iterator[str]:
    if not trial.policy.reconfigures and trial.circuits:
        other = DemandMatrix(trial.situation.demand.servers, trial.situation.demand.array[::-1])
        if trial.choose(other, trial.circuits) != trial.circuits:
            yield "reconfigures is False, but another demand moves circuits"


def _future(trial: Trial) -> Iterator[str]:
    situation = trial.situation
    circuits, split = trial.circuits, trial.split
    later = DemandMatrix(situation.demand.servers, situation.demand.array[::-1, ::-1])
    trial.divide(later, trial.choose(later, circuits))
    if trial.choose() != circuits:
        yield "circuits of a demand are others once a later demand was seen"
    if trial.divide(situation.demand, circuits) != split:
        yield "the split of a demand is another once a later demand was seen"


def _at_rest(trial: Trial) -> Iterator[str]:
    if trial.choose(lit=trial.circuits) != trial.circuits:
        yield "circuits move although they were chosen for the same demand"


def _eps_only(trial: Trial) -> Iterator[str]:
    situation = trial.situation
    if not situation.fabric.leaves:
        return
    eps = Plan(situation.fabric, situation.region, situation.demand, EpsOnly(), CircuitSet())
    if trial.plan.predicted_s > eps.predicted_s * (1 + _ROUNDING):
        yield f"predicted {trial.plan.predicted_s:g} s, without circuits {eps.predicted_s:g} s"


_CALLS: Final = Law(
    "calls",
    "circuits() returns a CircuitSet, split() a Split, and neither raises",
    lambda _: iter(()),
)
"""Any law's trial shows whether it is kept."""

LAWS: Final = (
    _CALLS,
    Law("matching", "each NIC ends at most one circuit", _matching),
    Law(
        "ports",
        "circuits end at optical NICs of the region",
        lambda t: port_faults(t.situation.fabric, t.situation.region, t.circuits),
    ),
    Law(
        "out of service",
        "no circuit ends at a NIC that is out of service",
        lambda t: service_faults(t.situation.fabric, t.circuits),
    ),
    Law(
        "bytes",
        "the split delivers what each pair owes",
        lambda t: byte_faults(t.situation.demand, t.split),
    ),
    Law(
        "light",
        "bytes go by light only over circuits of their pair, or over servers that forward",
        lambda t: light_faults(t.situation.fabric, t.circuits, t.split),
    ),
    Law("bound", "no demand ends before the bound of the NICs", _bound),
    Law("determinism", "equal arguments give equal circuits and splits", _deterministic),
    Law("future", "demands that come later change no circuits and no split", _future),
    Law("static", "circuits of a policy that doesn't reconfigure stay", _static),
    Law("at rest", "a demand that is served moves no circuits", _at_rest, is_advice=True),
    Law("EPS", "circuits make no demand slower than the EPS alone", _eps_only, is_advice=True),
)
"""Every law, in the order in which it helps to look at them, and then the advice."""


def tried(policy: Policy, situation: Situation) -> Iterator[tuple[Law, list[str]]]:
    """Yield the laws that are tried on a policy in a situation, each with its faults.

    A call that fails breaks the law of calls and ends the trial, as do circuits that are no
    matching: the law that needed the call, and those after it, are not tried.
    """
    trial = Trial(policy, situation)
    for law in LAWS[1:]:
        try:
            faults = list(law.faults(trial))
        except CallError as error:
            yield _CALLS, [str(error)]
            return
        except Exception as error:  # noqa: BLE001 - no law foresees all that a policy may return
            yield law, [fault_text(error)]
            return
        yield law, faults
        if faults and law.name == "matching":
            return
    yield _CALLS, []


def situations(servers: int, seed: int = 1, *, forwarding: bool = False) -> Iterator[Situation]:
    """Yield situations of every kind for a region of this size, the same for equal arguments.

    Args:
        servers: Number of servers, 2 at least.
        forwarding: Whether servers forward in some of them.
    """
    generator = np.random.default_rng([seed, servers])
    for number, (kind, rows) in enumerate(_demands(servers, generator)):
        optical, electrical = 1 + number % 4, 1 + number % 3
        fabric = region_fabric(servers, optical, electrical, forwarding=forwarding and number % 2)
        lit = _ring(fabric) if number % 3 else CircuitSet()
        nics = [nic for server in fabric.servers for nic in fabric.optical_nics(server)]
        out = generator.choice(len(nics), size=number % 3, replace=False)
        fabric = fabric.without_nics(nics[index] for index in out)
        demand = DemandMatrix(fabric.servers, rows.tolist())
        yield Situation(fabric, demand, lit.without_nics(fabric.unusable_nics), kind)


def region_fabric(
    servers: int, optical: int, electrical: int, *, forwarding: object = False
) -> Fabric:
    """Return a fabric of one region, with four servers on a leaf and oversubscribed uplinks."""
    names = tuple(f"s{number}" for number in range(servers))
    region = Region("r0", 0, names, Ocs("ocs0", servers * optical))
    eps = Eps(4, 1, 2.0)
    return Fabric(
        "laws", (region,), 8, optical, electrical, _NIC_RATE_BPS, eps, forwarding=bool(forwarding)
    )


def _ring(fabric: Fabric) -> CircuitSet:
    """Join each other server to the next by its first NIC."""
    servers = fabric.servers
    pairs = zip(servers[::2], servers[1::2], strict=False)
    return CircuitSet.of(
        f"{fabric.optical_nics(a)[0]}~{fabric.optical_nics(b)[0]}" for a, b in pairs
    )


def _demands(servers: int, generator: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Yield a demand of each kind [from, to], in bytes, with the kind's name."""
    shape = servers, servers
    yield "none", np.zeros(shape)
    yield "uniform", np.full(shape, _MESSAGE_BYTES)
    yield "skewed", generator.pareto(1.2, shape) * _MESSAGE_BYTES
    hub = np.zeros(shape)
    hub[0] = hub[:, 0] = _MESSAGE_BYTES
    yield "one with all", hub
    yield "permutation", np.roll(np.eye(servers), 1, axis=1) * _MESSAGE_BYTES * servers
    sparse = generator.pareto(1.2, shape) * (generator.random(shape) < 0.2) * _MESSAGE_BYTES
    yield "sparse", sparse
    yield "alike but one", np.full(shape, _MESSAGE_BYTES) + np.eye(servers, k=1) * 1e4
    hot = generator.dirichlet(np.full(servers, 0.3), servers) * _MESSAGE_BYTES * servers
    yield "hot servers", hot
