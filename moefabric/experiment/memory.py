"""A testbed in memory: agents that deliver as the fluid model says, light that settles, and time that passes only while someone waits."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from heapq import heappop, heappush
from math import ceil, isfinite
from typing import Any, Protocol

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import AgentError
from moefabric.experiment.runs import Moved
from moefabric.flows import Flow
from moefabric.fluid import predict_regions
from moefabric.records import FlowRecord, Phases
from moefabric.seams import PacedFlow
from moefabric.topology import Fabric, Region
from moefabric.units import NS_PER_S


class VirtualClock:
    """Time that passes only while someone waits for it, in nanoseconds."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def at(self, instant_ns: int, action: Callable[[], object]) -> None:
        """Do something when somebody waits past that instant."""
        self._count += 1
        heappush(self._due, (instant_ns, self._count, action))

    @property
    def next_ns(self) -> int | None:
        """When something is done next."""
        return self._due[0][0] if self._due else None

    def now_ns(self) -> int:
        """What has been waited for so far."""
        return self._now_ns

    def sleep_until(self, instant_ns: int) -> None:
        """It is then, and what was due has been done."""
        while self._due and self._due[0][0] <= instant_ns:
            due_ns, _, action = heappop(self._due)
            self._now_ns = max(self._now_ns, due_ns)
            action()
        self._now_ns = max(self._now_ns, instant_ns)


class AtOnce(Executor):
    """Runs what it is given before `submit` returns: with a virtual clock, time then passes for one thing after the other."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future, done."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as fault:  # noqa: BLE001 - whoever asks for the result gets it
            done.set_exception(fault)
        return done


class InTime(Executor):
    """Runs what it is given on a clock of its own, which those who wait in it wait on; the future is done when `clock` shows the instant it ended."""

    def __init__(self, clock: VirtualClock, own: VirtualClock) -> None:
        self.clock, self.own = clock, own

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The future, to be done later."""
        done, told = AtOnce().submit(self._timed, fn, *args, **kwargs), Future[Any]()
        self.clock.at(self.own.now_ns(), lambda: _hand_on(done, told))
        return told

    def _timed(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.own._now_ns = self.clock.now_ns()  # noqa: SLF001 - a clock set by another
        return fn(*args, **kwargs)


def _hand_on(done: Future[Any], told: Future[Any]) -> None:
    fault = done.exception()
    if fault is None:
        told.set_result(done.result())
    else:
        told.set_exception(fault)


class Circuits(Protocol):
    """What a policy would light."""

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet
    ) -> CircuitSet: ...


class MemoryLight:
    """The light of one region of a fabric, the first where none is given. A change lasts as long as its OCS and optics need, and no change lasts no time."""

    def __init__(
        self, fabric: Fabric, policy: Circuits, clock: VirtualClock, region: Region | None = None
    ) -> None:
        self.fabric, self.policy, self.clock, self.lit = fabric, policy, clock, CircuitSet()
        self.region = region or fabric.regions[0]

    def reconfigure(self, demand: DemandMatrix) -> Moved:
        """Light what the policy gives the demand, and wait until it is lit."""
        region, before = self.region, self.lit
        self.lit = self.policy.circuits(self.fabric, region, demand, before)
        if region.ocs is None or self.lit == before:
            return Moved(before, self.lit, Phases())
        settle_ns = region.ocs.settle_ns + region.ocs.link_up_ns
        self.clock.sleep_until(self.clock.now_ns() + settle_ns)
        return Moved(before, self.lit, Phases(settle_s=settle_ns / NS_PER_S, total_s=settle_ns / NS_PER_S))


class MemoryAgents:
    """Agents whose flows of a collective start together and end together in each region, when the fluid model says.

    `lit` tells the circuits that carry light now; a flow on a circuit without any goes by the EPS, as the rules send it. Faults a person can set:
    `broken` holds, by (from, to), why what one server sends another doesn't arrive.
    """

    def __init__(self, fabric: Fabric, lit: Callable[[], CircuitSet], clock: VirtualClock) -> None:
        self.fabric, self.lit, self.clock = fabric, lit, clock
        self.broken: Mapping[tuple[str, str], str] = {}
        self._armed: dict[int, list[FlowRecord]] = {}
        self._woken = False
        self._launched = 0

    def run(
        self, collective: int, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float
    ) -> list[FlowRecord]:
        """A record of each flow, in order. What has no way, or takes longer than `deadline_s`, isn't ok."""
        self.arm(collective, flows, start_ns, deadline_s)
        return self.collect(collective, flows, deadline_s)

    def arm(
        self, collective: int, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float
    ) -> int:
        """When these flows start, over what is lit now; collectives in flight don't slow each other down."""
        start = self.clock.now_ns() if start_ns is None else max(start_ns, self.clock.now_ns())
        took_s = self._seconds(flows)
        late = {name: _late(seconds, deadline_s) for name, seconds in took_s.items()}
        self._armed[collective] = [
            self._record(
                collective,
                flow,
                start,
                start + ceil(min(took_s[name], deadline_s) * NS_PER_S),
                self.broken.get((flow.src, flow.dst), late[name]),
            )
            for flow in flows
            for name in [self.fabric.region_of[flow.src].name]
        ]
        return start

    def collect(self, collective: int, flows: Sequence[PacedFlow], deadline_s: float) -> list[FlowRecord]:
        """What became of the flows that were armed under that number; it is then when the last one has ended."""
        records = self._armed.pop(collective)
        if len(records) != len(flows) or deadline_s <= 0:
            raise AgentError(
                f"collective {collective}: {len(records)} flows armed, {len(flows)} asked for within {deadline_s:g} s"
            )
        self.clock.sleep_until(max((record.last_received_ns for record in records), default=0))
        return records

    def launch(self, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float) -> int:
        """As `arm`, under a number of its own; `ended` tells what became of it."""
        self._launched += 1
        self.arm(-self._launched, flows, start_ns, deadline_s)
        return -self._launched

    def ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        """It is when the next armed collective ends, something happens on the clock or the instant comes; the records of those that have ended."""
        ends = {n: max(record.last_received_ns for record in told) for n, told in self._armed.items()}
        instants = [at for at in (*ends.values(), self.clock.next_ns, until_ns) if at is not None]
        if not self._woken and instants:
            self.clock.sleep_until(min(instants))
        self._woken = False
        return {n: self._armed.pop(n) for n, end in ends.items() if end <= self.clock.now_ns()}

    def wake(self) -> None:
        """Let `ended` return."""
        self._woken = True

    def _seconds(self, flows: Sequence[PacedFlow]) -> dict[str, float]:
        sent = [Flow(flow.src, flow.dst, flow.path, flow.bytes) for flow in flows]
        slower = self.fabric.nic_rate_bps / self.fabric.scale.rate_bps(self.fabric.nic_rate_bps)
        told = predict_regions(self.fabric, self.lit(), sent)
        return {name: prediction.seconds * slower for name, prediction in told.items()}

    @staticmethod
    def _record(collective: int, flow: PacedFlow, start: int, end: int, why: str) -> FlowRecord:
        return FlowRecord(
            collective=collective,
            src=flow.src,
            dst=flow.dst,
            path=flow.path,
            bytes=flow.bytes,
            rate_bps=flow.rate_bps,
            first_sent_ns=start,
            last_sent_ns=end,
            first_received_ns=start,
            last_received_ns=end,
            retransmits=0,
            ok=not why,
            why=why,
        )


def _late(seconds: float, deadline_s: float) -> str:
    """Why what takes this long doesn't arrive; nothing where it does."""
    if seconds <= deadline_s:
        return ""
    return f"not there within {deadline_s:g} s" if isfinite(seconds) else "no way there"
