"""Asynchronous reconfiguration: demands sent to region controllers, with the EPS as the fallback.

Each region has at most one request under way, in a background thread. A controller that doesn't
answer is asked a second time, and then only probed. While it is away, refuses or is silent, its
region uses only circuits that the controller confirms. A late reply takes effect when it comes.

The work of a controller costs model time one to one: in a run that is dilated d-fold, circuits that
took c wall seconds of work carry traffic after c x d. Settling is dilated already. The controller
needs to know nothing of this.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from statistics import median
from typing import Final

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.settling import last_light
from moefabric.core.topology import Fabric, Region
from moefabric.core.transition import ReconfigurationPhases
from moefabric.core.units import NS_PER_S
from moefabric.execution.clock import Clock
from moefabric.execution.observer import RunObserver
from moefabric.execution.region_controllers import ControllerEvent, RetriedController
from moefabric.execution.transfers import ControlSettings
from moefabric.planner.horizon import UNKNOWN, Horizon
from moefabric.planner.sending.flow_pacing import merge_circuits
from moefabric.planner.sending.partial_offload import circuits_after_s
from moefabric.prediction.control_time import JUDGED, ControlPrediction, model_phases
from moefabric.results.records.records import CircuitChange

UNDER_WAY: Final = "its controller hasn't answered the last request"
_CONTROL_SAMPLES: Final = 8
"""Replies of a controller from which the control time of the next one is estimated."""


@dataclass(frozen=True)
class Reply:
    """The outcome of a request.

    Attributes:
        change: The circuits before and after, and the phases in model seconds.
        start_ns: When the circuits were requested.
        end_ns: From when the outcome holds; it may be still to come.
        expected_s: Model seconds that the change was expected to take.
        demand: The region's demand that its controller got; None if none did.
        horizon: The all-to-alls to come that it got.
        expected_control_s: Model seconds besides settling, whatever earlier replies took.
    """

    change: CircuitChange
    start_ns: int
    end_ns: int
    expected_s: float = 0.0
    demand: DemandMatrix | None = None
    horizon: Horizon = UNKNOWN
    expected_control_s: float = 0.0


OnReply = Callable[[Reply], None]


@dataclass
class _Request:
    """A request under way.

    Attributes:
        start_ns: When it was made in the modelled cluster.
        sent_ns: When it was really made.
        events: The phases of the controller's failure meanwhile.
        demand: The region's demand.
        horizon: What is known of the all-to-alls to come.
        took_ns: Wall time until the reply; None until it has come. The future may be done already.
    """

    future: "Future[CircuitChange]"
    start_ns: int
    sent_ns: int
    on_reply: OnReply
    events: "list[ControllerEvent]"
    demand: DemandMatrix
    horizon: Horizon
    cancel_timeout: Callable[[], None] = lambda: None
    took_ns: int | None = None
    timed_out: bool = False


@dataclass
class _RegionState:
    """A region's controller, the circuits that its traffic may use, and the request under way.

    Traffic may use `circuits` from `from_ns` on, and those `before` until then.
    """

    region: Region
    circuits: CircuitSet
    controller: RetriedController | None = None
    before: CircuitSet = field(default_factory=CircuitSet)
    from_ns: int = 0
    request: _Request | None = None
    dark_ns: int = 0
    reported: bool = False
    """Whether nothing was planned yet for the circuits that were reported last."""
    late_dark: CircuitSet = field(default_factory=CircuitSet)
    """Circuits that were dark by the last reply after its timeout, and weren't lit since."""
    control_s: defaultdict[bool, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_CONTROL_SAMPLES))
    )
    """Seconds of the latest replies besides settling, by whether circuits changed."""

    def circuits_at(self, instant_ns: int) -> CircuitSet:
        """Return the circuits that traffic may use at an instant."""
        return self.circuits if instant_ns >= self.from_ns else self.before

    def use(self, circuits: CircuitSet, from_ns: int, now_ns: int) -> None:
        """Let traffic use other circuits from an instant on.

        Until then it may use the circuits that are lit now and in every outcome still to come.
        """
        self.before = CircuitSet(self.circuits_at(now_ns).circuits & self.circuits.circuits)
        self.circuits, self.from_ns = circuits, from_ns


class Reconfigurator:
    """The circuits of all regions, changed by their `controllers`.

    Regions without a controller keep the circuits that are lit, except for failures.

    Attributes:
        replanned_ns: When transfers began that were the first to be planned for reported circuits.
    """

    def __init__(
        self,
        fabric: Fabric,
        controllers: Mapping[str, RetriedController],
        circuits: CircuitSet,
        clock: Clock,
        background: Executor,
        *,
        wake: Callable[[], object],
        schedule: Callable[[int, Callable[[], object]], Callable[[], None]],
        settings: ControlSettings,
        observer: RunObserver,
    ) -> None:
        """Start with `circuits` lit.

        Args:
            fabric: The fabric whose circuits change.
            controllers: The controllers by region.
            circuits: All circuits that traffic may use.
            clock: The clock of the run.
            background: Runs the requests in threads.
            wake: Interrupts the run's wait for events; called by any thread when a reply has come.
            schedule: Calls an action at an instant of `clock`; returns a function that cancels it.
            settings: Times of the requests.
            observer: Learns that a controller fails, and how its region goes on.
        """
        self.fabric, self.clock = fabric, clock
        self._background, self._wake, self._schedule = background, wake, schedule
        self._timeout_s, self._control_s = settings.timeout_s, settings.control_s
        self._expected = ControlPrediction.fixed(settings.control_s)
        self._judged = JUDGED if settings.control_s is None else self._expected
        self._observer, self._dilation = observer, fabric.scale.dilation
        self._states = {
            region.name: _RegionState(
                region,
                CircuitSet(frozenset(c for c in circuits if c.a.server in region.servers)),
                controllers.get(region.name),
            )
            for region in fabric.regions
        }
        self.replanned_ns: list[int] = []
        for region_name, changed, seconds in settings.earlier:
            self._states[region_name].control_s[changed].append(seconds)

    def adopt(self, region: str, circuits: CircuitSet) -> None:
        """Use the circuits that are reported for a region without a controller.

        Failures take circuits away, and their end returns them.
        """
        state, now = self._states[region], self.clock.now_ns()
        if state.controller is None:
            state.use(circuits, now, now)
            state.reported = True

    def note_plan(self, regions: Iterable[str], ready_ns: int) -> None:
        """Note that transfers of these regions, which start at an instant, are planned now."""
        reported = [state for name in regions if (state := self._states[name]).reported]
        for state in reported:
            state.reported = False
        if reported:
            self.replanned_ns.append(ready_ns)

    def controlled(self, regions: Iterable[str]) -> list[str]:
        """Return the regions, of the given ones, whose circuits can change."""
        return [name for name in regions if self._states[name].controller is not None]

    @property
    def pending(self) -> bool:
        """True if a controller owes a reply."""
        return any(state.request is not None for state in self._states.values())

    def waiting_for(self, regions: Iterable[str]) -> bool:
        """Return whether a request of these regions has no outcome yet."""
        states, now = [self._states[name] for name in regions], self.clock.now_ns()
        return any(
            now < state.from_ns or (state.request is not None and not state.request.timed_out)
            for state in states
        )

    def circuits(
        self, regions: Iterable[str] | None = None, at_ns: int | None = None
    ) -> CircuitSet:
        """Return the circuits that traffic of all regions, or of some, may use at an instant.

        Without an instant, these are the circuits of the last replies.
        """
        states = [self._states[name] for name in (self._states if regions is None else regions)]
        return merge_circuits(
            state.circuits if at_ns is None else state.circuits_at(at_ns) for state in states
        )

    def expected_s(self, region: str, at_ns: int, arming_ns: int = 0) -> float | None:
        """Return the model seconds until circuits requested at an instant carry traffic.

        None if they can't be requested then.

        Arming goes on while the run waits for the outcome of a reply that has come. What is left of
        `arming_ns`, the wall time between the order of transfers and their start, is added.
        """
        state = self._states[region]
        if state.controller is None or state.request is not None or at_ns < state.from_ns:
            return None
        control_s = self._expected_control_s(state, changed=True)
        left_s = arming_ns / NS_PER_S / self._dilation - control_s * (1 - 1 / self._dilation)
        return circuits_after_s(self.fabric, control_s + max(0.0, left_s)).get(region)

    def _expected_control_s(self, state: _RegionState, *, changed: bool) -> float:
        """Return the model seconds without settling that a request is expected to take."""
        known = state.control_s[changed] if self._control_s is None else ()
        return median(known) if known else self._expected.seconds(changed=changed)

    def take_dark_ns(self, region: str) -> int:
        """Return for how long circuits of the region were dark since the last call."""
        state = self._states[region]
        dark, state.dark_ns = state.dark_ns, 0
        return dark

    def request(
        self,
        region: str,
        demand: DemandMatrix,
        on_reply: OnReply,
        start_ns: int | None = None,
        horizon: Horizon = UNKNOWN,
    ) -> None:
        """Request the circuits that a region's part of a demand deserves.

        Args:
            region: The region's name.
            demand: Bytes between servers.
            on_reply: Called as soon as the outcome is known, perhaps before it holds.
            start_ns: When the circuits are requested in the modelled cluster; None for now.
            horizon: What is known of the all-to-alls to come.
        """
        state, now = self._states[region], self.clock.now_ns()
        start_ns = now if start_ns is None else start_ns
        if state.request is not None or start_ns < state.from_ns:
            on_reply(self._without_circuits(state, start_ns, start_ns, UNDER_WAY))
            return
        demand = demand.within(state.region.servers)
        events: list[ControllerEvent] = []
        assert state.controller is not None
        future = self._background.submit(state.controller.reconfigure, demand, horizon, events)
        request = _Request(future, start_ns, now, on_reply, events, demand, horizon)
        state.request = request
        request.cancel_timeout = self._schedule(
            now + round(self._timeout_s * NS_PER_S) + 2 * state.region.moving_ns,
            lambda: self._time_out(state, request),
        )

        def note_end(_: "Future[CircuitChange]") -> None:
            request.took_ns = self.clock.now_ns() - request.sent_ns
            self._wake()

        request.future.add_done_callback(note_end)

    def process_replies(self) -> None:
        """Process all replies that have come, late ones included."""
        for state in self._states.values():
            if (request := state.request) is not None and request.took_ns is not None:
                state.request = None
                request.cancel_timeout()
                self._process(state, request, request.took_ns)

    def _process(self, state: _RegionState, request: _Request, took_ns: int) -> None:
        change, start_ns = request.future.result(), request.start_ns
        for at_ns, phase, why in request.events:
            components = [state.region.name]
            report = partial(self._observer.failure_logged, phase, "controller", components, why)
            instant_ns = request.sent_ns + self.fabric.scale.wall_ns(at_ns - request.sent_ns)
            if instant_ns <= self.clock.now_ns():
                report()
            else:
                self._schedule(instant_ns, report)
        if change.error:
            end_ns = start_ns + self.fabric.scale.wall_ns(took_ns)
            reply = self._without_circuits(state, start_ns, end_ns, change.error, change.after)
        else:
            changed = change.before != change.after
            expected_s = self._expected_control_s(state, changed=changed)
            ocs = state.region.ocs
            fixed = ocs is not None and ocs.profile.settle.is_fixed and ocs.link_up.is_fixed
            phases = model_phases(
                change.phases,
                took_ns / NS_PER_S,
                self._dilation,
                most_settling_s=state.region.moving_ns / NS_PER_S if fixed else inf,
                control_s=self._control_s,
            )
            settled_s = change.phases.settle_s / self._dilation
            state.control_s[changed].append(phases.control_s)
            if changed:
                new = change.after - change.before
                expected_ns = last_light(ocs, len(new)).mean_ns if ocs and new else 0.0
                expected_s += expected_ns / NS_PER_S / self._dilation
                if not request.timed_out:
                    state.dark_ns += self.fabric.scale.wall_ns(settled_s * NS_PER_S)
            end_ns = start_ns + self.fabric.scale.wall_ns(phases.total_s * NS_PER_S)
            change = replace(change, phases=phases, settled_s=settled_s)
            stored_s = self._judged.seconds(changed=changed)
            demand, horizon = request.demand, request.horizon
            reply = Reply(change, start_ns, end_ns, expected_s, demand, horizon, stored_s)
            state.late_dark = change.dark if request.timed_out else state.late_dark - change.after
            self._use(state, change.after, end_ns)
        if not request.timed_out:
            request.on_reply(reply)

    def _use(self, state: _RegionState, circuits: CircuitSet, from_ns: int) -> None:
        """Let traffic use other circuits from an instant on, and wake the run by then."""
        now = self.clock.now_ns()
        state.use(circuits, from_ns, now)
        if now < from_ns:
            self._schedule(from_ns, lambda: None)

    def _time_out(self, state: _RegionState, request: _Request) -> None:
        """Go on without circuits once a controller was silent for its wall time.

        Any later reply comes after the timeout in model time too.
        """
        if state.request is request and not request.future.done():
            request.timed_out = True
            waited_ns = self.fabric.scale.wall_ns(self._timeout_s * NS_PER_S)
            waited_ns += 2 * state.region.moving_ns
            waited_s = waited_ns / NS_PER_S / self._dilation
            error = f"its controller didn't answer within {waited_s:.1f} s"
            if state.late_dark:
                error += f"; no light on {state.late_dark} by its last late reply"
            start_ns = request.start_ns
            request.on_reply(self._without_circuits(state, start_ns, start_ns + waited_ns, error))

    def _without_circuits(
        self,
        state: _RegionState,
        start_ns: int,
        end_ns: int,
        error: str,
        relied_on: CircuitSet | None = None,
    ) -> Reply:
        """Restrict the region to the circuits that its controller confirms, or to none.

        Circuits of a late reply carry traffic once its outcome holds.
        """
        before, lit = state.circuits_at(start_ns), relied_on or CircuitSet()
        if end_ns < state.from_ns:
            state.before = lit
        else:
            self._use(state, lit, end_ns)
        waited_s = (end_ns - start_ns) / NS_PER_S / self._dilation
        phases = ReconfigurationPhases(total_s=waited_s)
        change = CircuitChange(before, lit, phases, error=error)
        return Reply(change, start_ns, end_ns)
