"""A testbed in memory: agents, controllers and a clock on which time passes only in waits."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from math import ceil, isfinite
from typing import Any, Final

import numpy as np

from moefabric.agents.engine.wire import framed_size
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import uplink_name
from moefabric.core.errors import AgentError, ServerLossError
from moefabric.core.exchange import Exchange
from moefabric.core.flows import Flow, FlowRecord, PacedFlow
from moefabric.core.paths import relay_root
from moefabric.core.port_counts import (
    FRAME_HEADER_BYTES,
    INTO_OCS,
    IP_TCP_BYTES,
    OUT_OF_OCS,
    RECEIVED,
    SENT,
    PortReading,
    counted_ports,
)
from moefabric.core.routes import route
from moefabric.core.topology import Fabric, Region
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.units import NS_PER_S
from moefabric.execution.clock import RunTimers
from moefabric.execution.transfers import Instruments
from moefabric.planner.horizon import Horizon
from moefabric.planner.plan import with_horizon
from moefabric.planner.sending.flow_pacing import SplitPolicy
from moefabric.results.records.records import CircuitChange
from moefabric.simulator.fluid import predict_regions

SERVERS: Final = ("s0", "s1", "s2", "s3")
TENTH: Final = 0.1 * 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in 100 ms."""
SILENCE_NS: Final = 2_000_000_000
"""How long a server is silent before it counts as lost. The death of a rank is reported at once."""


def demand(*pairs: tuple[int, int]) -> DemandMatrix:
    """Return a tenth of a second of bytes between each of these pairs of servers."""
    rows = [[0.0] * 4 for _ in range(4)]
    for a, b in pairs:
        rows[a][b] = TENTH
    return DemandMatrix(SERVERS, rows)


class VirtualClock:
    """Time that passes only while someone waits for it, in nanoseconds."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._timers = RunTimers()

    def at(self, instant_ns: int, action: Callable[[], None]) -> None:
        """Take an action when a wait reaches that instant."""
        self._timers.add(instant_ns, action)

    @property
    def next_ns(self) -> int | None:
        """The instant of the next action."""
        return self._timers.next_ns

    def now_ns(self) -> int:
        """Return the virtual time."""
        return self._now_ns

    def set(self, instant_ns: int) -> None:
        """Set the time, even to an earlier instant, without taking the actions that are due."""
        self._now_ns = instant_ns

    def sleep_until(self, instant_ns: int) -> None:
        """Advance the time to that instant, and take the actions that are due by then."""
        while (due_ns := self._timers.next_ns) is not None and due_ns <= instant_ns:
            self._now_ns = max(self._now_ns, due_ns)
            self._timers.fire(due_ns)
        self._now_ns = max(self._now_ns, instant_ns)


class ImmediateExecutor(Executor):
    """Runs a function before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as fault:  # noqa: BLE001 - the future's result raises it
            future.set_exception(fault)
        return future


class VirtualTimeExecutor(Executor):
    """Runs a function on a clock of its own.

    The future is done when the main clock shows the instant at which the function ended.
    """

    def __init__(self, clock: VirtualClock, own: VirtualClock) -> None:
        self.clock, self.own = clock, own

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that will be done later."""
        self.own.set(self.clock.now_ns())
        result, future = ImmediateExecutor().submit(fn, *args, **kwargs), Future[Any]()
        self.clock.at(self.own.now_ns(), lambda: _copy_result(result, future))
        return future


def instruments_in_memory(
    clock: VirtualClock, background: Executor | None = None, **others: Any
) -> Instruments:
    """Return the clock and the threads of a run in memory, with other instruments."""
    threads = background or ImmediateExecutor()
    return Instruments(clock=clock, background=threads, **{"cpu_steal": lambda: (0, 0), **others})


def _copy_result(source: Future[Any], target: Future[Any]) -> None:
    fault = source.exception()
    if fault is None:
        target.set_result(source.result())
    else:
        target.set_exception(fault)


class MemoryController:
    """The controller of one region, by default the first.

    A change takes as long as its OCS and optics need, and `work_ns` of the controller's own.
    """

    def __init__(
        self,
        fabric: Fabric,
        policy: SplitPolicy,
        clock: VirtualClock,
        region: Region | None = None,
        work_ns: int = 0,
    ) -> None:
        self.fabric, self.policy, self.clock, self.lit = fabric, policy, clock, CircuitSet()
        self.region, self.work_ns = region or fabric.regions[0], work_ns

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        """Light the circuits that the policy chooses for the demand, and wait for them."""
        region, before = self.region, self.lit
        policy = with_horizon(self.policy, horizon)
        self.lit = policy.circuits(self.fabric, region, demand, before)
        split = self.policy.split(self.fabric, demand, self.lit)
        if region.ocs is None or self.lit == before:
            return CircuitChange(before, self.lit, ReconfigurationPhases(), split=split)
        settle_ns = region.ocs.settle_ns + region.ocs.link_up.fixed_ns
        self.clock.sleep_until(self.clock.now_ns() + settle_ns + self.work_ns)
        settle_s, work_s = settle_ns / NS_PER_S, self.work_ns / NS_PER_S
        phases = ReconfigurationPhases(plan_s=work_s, settle_s=settle_s, total_s=settle_s + work_s)
        return CircuitChange(before, self.lit, phases, split=split)

    def ready(self, _deadline_s: float) -> bool:
        """Return True: a controller in memory always answers."""
        return True

    def relied_on(self) -> CircuitSet:
        """Return the lit circuits."""
        return self.lit


class MemoryPortCounters:
    """Counters of NICs, OCS ports and uplinks in memory.

    The OCS has no unplugged ports and no losses. `spine` is the only one that forwards, if given.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.spine = fabric, ""
        self._rows = {port: row for row, port in enumerate(counted_ports(fabric))}
        self._bytes, self._frames = (np.zeros((len(self._rows), 4), np.int64) for _ in range(2))

    def count(self, flow: PacedFlow, circuits: CircuitSet) -> None:
        """Count a transfer of agents while `circuits` carry light."""
        sent = Flow(flow.src, flow.dst, flow.path, framed_size(flow.bytes))
        frames = ceil(sent.bytes / (self.fabric.mtu - IP_TCP_BYTES))
        for near, far in route(self.fabric, circuits, sent):
            ends: tuple[tuple[str, int], ...] = (near, SENT), (far, RECEIVED)
            if far == "ocs":
                ends = (near, SENT), (near, INTO_OCS)
            elif near == "ocs":
                ends = (far, OUT_OF_OCS), (far, RECEIVED)
            elif far in self.fabric.spines:
                ends = ((uplink_name(near, self.spine or far), SENT),)
            elif near in self.fabric.spines:
                ends = ((uplink_name(far, self.spine or near), RECEIVED),)
            for end, column in ends:
                if end in self._rows:
                    self._frames[self._rows[end], column] += frames
                    self._bytes[self._rows[end], column] += (
                        int(sent.bytes) + FRAME_HEADER_BYTES * frames
                    )

    def add(self, port: str, column: int, payload: int) -> None:
        """Count a frame of foreign payload at a port."""
        self._frames[self._rows[port], column] += 1
        self._bytes[self._rows[port], column] += payload + FRAME_HEADER_BYTES

    def read(self) -> PortReading:
        """Return the counters."""
        return PortReading(self._bytes.copy(), self._frames.copy())


class MemoryAgents:
    """Agents whose flows of one order end together in each region, as the fluid model says.

    `circuits` returns the circuits that carry light now. A flow on a circuit without light crosses
    the EPS, as forwarding rules would have it.

    Faults: `broken` holds, by (from, to), the reason for which flows between two servers don't
    arrive. `die` and `live` take names of servers (`s3`) and of GPUs (`s1/3`).

    Ranks: `ask` makes an exchange, and `on_finish` is called with each exchange that ends and the
    error that ended it.
    """

    def __init__(
        self, fabric: Fabric, circuits: Callable[[], CircuitSet], clock: VirtualClock
    ) -> None:
        self.fabric, self.clock, self._circuits = fabric, clock, circuits
        self.counters = MemoryPortCounters(fabric)
        self.broken: Mapping[tuple[str, str], str] = {}
        self.dead: set[str] = set()
        self.reconnected = 0
        """Number of times that the connections of the remaining servers were reopened."""
        self.on_finish: Callable[[Exchange, str], None] = lambda _exchange, _error: None
        self.ended_ranks: dict[int, str] = {}
        """Ranks that ended early, with the reason."""
        self.sent_parts: list[tuple[Exchange, PacedFlow]] = []
        """The flows of exchanges."""
        self._asked: list[Exchange] = []
        self._orders: dict[int, list[FlowRecord]] = {}
        self._woken, self._last = False, 0
        self._dropped: set[str] = set()
        self._dead_gpus: set[str] = set()
        self._silent_ns: dict[str, int] = {}

    # --- transfers -------------------------------------------------------------------------------

    def launch(
        self,
        flows: Sequence[PacedFlow],
        start_ns: int | None,
        deadline_s: float,
        exchange: Exchange | None = None,
    ) -> int:
        """Start flows over the circuits that are lit now.

        Orders under way don't slow each other down. Raises AgentError for dropped servers.
        """
        if dropped := self._servers(flows) & self._dropped:
            raise AgentError(f"server {', '.join(sorted(dropped))} has no agent")
        now, self._last = self.clock.now_ns(), self._last + 1
        start = now if start_ns is None else max(start_ns, now)
        for flow in flows:
            self.counters.count(flow, self._circuits())
        if exchange is not None:
            self.sent_parts += [(exchange, flow) for flow in flows]
        took_s = self._seconds(flows)
        late = {name: _late(seconds, deadline_s) for name, seconds in took_s.items()}
        self._orders[self._last] = [
            self._record(
                flow,
                start,
                start + ceil(min(took_s[name], deadline_s) * NS_PER_S),
                self.broken.get((flow.src, flow.dst), late[name]),
            )
            for flow in flows
            for name in [self.fabric.region_of[flow.src].name]
        ]
        return self._last

    def wait_ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        """Wait until an order ends, an action on the clock is due or the instant comes.

        Raises ServerLossError once a server of an order under way has been silent for long, or a
        rank on one has died.
        """
        self._refuse_losses()
        ends = {
            number: max(record.acknowledged_ns for record in records)
            for number, records in self._orders.items()
            if not self._missing(records)
        }
        silences = (since + SILENCE_NS for since in self._silent_ns.values())
        instants = (*ends.values(), *silences, self.clock.next_ns, until_ns)
        known = [at for at in instants if at is not None]
        if not self._woken and known:
            self.clock.sleep_until(min(known))
            self._refuse_losses()
        self._woken = False
        now = self.clock.now_ns()
        return {
            number: self._orders.pop(number)
            for number, end in ends.items()
            if end <= now and not self._missing(self._orders[number])
        }

    def wake(self) -> None:
        """Make `wait_ended` return."""
        self._woken = True

    def _seconds(self, flows: Sequence[PacedFlow]) -> dict[str, float]:
        sent = [Flow(flow.src, flow.dst, flow.path, flow.bytes) for flow in flows]
        slower = self.fabric.nic_rate_bps / self.fabric.scale.rate_bps(self.fabric.nic_rate_bps)
        predictions = predict_regions(self.fabric, self._circuits(), sent)
        return {name: prediction.seconds * slower for name, prediction in predictions.items()}

    def _record(self, flow: PacedFlow, start: int, end: int, why: str) -> FlowRecord:
        return FlowRecord(
            collective=self._last,
            src=flow.src,
            dst=flow.dst,
            path=flow.path,
            bytes=flow.bytes,
            received_bytes=0 if why else flow.bytes,
            rate_bps=flow.rate_bps,
            first_sent_ns=start,
            last_sent_ns=end,
            first_received_ns=start,
            last_received_ns=end,
            retransmits=0,
            ok=not why,
            why=why,
            acknowledged_ns=end,
        )

    # --- ranks -----------------------------------------------------------------------------------

    def ask(self, exchange: Exchange) -> None:
        """Let the ranks ask for an exchange now."""
        self._asked.append(exchange)
        self.wake()

    def take_exchanges(self) -> list[Exchange]:
        """Return the exchanges that were asked for since the last call."""
        asked, self._asked = self._asked, []
        return asked

    def finish(self, exchange: Exchange, error: str = "") -> None:
        """End an exchange."""
        self.on_finish(exchange, error)

    def lost_ranks(self) -> dict[int, str]:
        """Return the ranks that ended early."""
        return dict(self.ended_ranks)

    # --- losses ----------------------------------------------------------------------------------

    def die(self, *names: str) -> None:
        """Let servers or GPUs die now."""
        self.dead |= set(names)

    def live(self, *names: str) -> None:
        """Revive servers or GPUs; `readmit` then finds the servers."""
        self.dead -= set(names)
        self._dead_gpus -= set(names)

    def losses(self) -> tuple[frozenset[str], frozenset[str]]:
        """Servers that were dropped, and GPUs whose ranks are known to be dead."""
        self._dead_gpus |= {
            name for name in self.dead if "/" in name and name.split("/")[0] not in self._dropped
        }
        return frozenset(self._dropped), frozenset(self._dead_gpus)

    def drop(self, servers: Iterable[str]) -> None:
        """Go on without these servers."""
        self._dropped |= set(servers)
        self._silent_ns = {s: at for s, at in self._silent_ns.items() if s not in self._dropped}

    def abandon(self, collective: int) -> None:
        """End an order; raises AgentError if it isn't under way."""
        if self._orders.pop(collective, None) is None:
            raise AgentError(f"collective {collective} is not under way")

    def reconnect(self) -> None:
        """Open lost connections.

        Raises AgentError while an order still uses a lost server, ServerLossError for silent
        servers.
        """
        orders = self._orders.items()
        if left := [n for n, records in orders if self._servers(records) & self._dropped]:
            raise AgentError(f"collectives {left} still use lost servers")
        if silent := {name for name in self.dead - self._dropped if "/" not in name}:
            self.clock.sleep_until(self.clock.now_ns() + SILENCE_NS)
            raise ServerLossError(f"{', '.join(sorted(silent))}: no answer", silent)
        self.reconnected += 1

    def readmit(self) -> frozenset[str]:
        """Return servers that live again since the last call."""
        back = frozenset(self._dropped - self.dead)
        self._dropped -= back
        return back

    def _missing(self, records: Collection[FlowRecord]) -> set[str]:
        return self._servers(records) & self.dead

    def _refuse_losses(self) -> None:
        now = self.clock.now_ns()
        concerned = {name for records in self._orders.values() for name in self._servers(records)}
        for name in concerned & self.dead:
            self._silent_ns.setdefault(name, now)
        silent = {s for s, since in self._silent_ns.items() if now - since >= SILENCE_NS}
        servers = silent & concerned
        gpus = {
            name
            for name in self.dead - self._dead_gpus
            if "/" in name and name.split("/")[0] in concerned
        }
        if servers or gpus:
            self._dead_gpus |= gpus
            silent_s = SILENCE_NS / NS_PER_S if servers else 0.0
            what = f"{', '.join(sorted(servers | gpus))}: lost"
            raise ServerLossError(what, servers, gpus, silent_s=silent_s)

    def _servers(self, flows: Collection[PacedFlow | FlowRecord]) -> set[str]:
        """Return the servers whose agents flows need."""
        ends = {name for flow in flows for name in (flow.src, flow.dst)}
        if self.fabric.forwarding_by_hosts:
            roots = (relay_root(self.fabric, flow.src, flow.path) for flow in flows)
            ends |= {root for root in roots if root is not None}
        return ends


def _late(seconds: float, deadline_s: float) -> str:
    """Return why flows of this duration don't arrive; empty if they do."""
    if seconds <= deadline_s:
        return ""
    return f"did not arrive within {deadline_s:g} s" if isfinite(seconds) else "no route"
